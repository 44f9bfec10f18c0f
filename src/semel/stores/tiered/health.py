"""Whether the front is asked at all: a dead one must not add its time-out to every call."""

from __future__ import annotations

import logging
import time

from semel.errors import StoreError


class FrontHealth:
    """A front that failed is left alone for a while. Then one call finds out whether it answers again."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._until_s = 0.0

    def may_ask(self) -> bool:
        if not self._until_s:
            return True
        now_s = time.monotonic()
        if now_s < self._until_s:
            return False
        self._until_s = now_s + self._rest_s
        return True

    def note_answer(self) -> None:
        self._until_s = 0.0

    def note_failure(self, failure: StoreError) -> None:
        if not self._until_s:
            logging.getLogger("semel").warning("the database answers without its front: %s", failure)
        self._until_s = time.monotonic() + self._rest_s
