"""The gateway's log on stderr: lines of text or of JSON, in which repeated warnings are summed."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.gateway.rules import Rules
    from semel.gateway.settings import GatewaySettings

FIELD = "semel_"
"""The prefix of a log record's own fields. A line of text has them in its message already."""
SUMMARY = "semel_more"
BURST = 5
WINDOW_S = 5.0
"""At most `BURST` lines of one kind are written in this time. The rest are counted, and one more line says how many."""


class TextLines(logging.Formatter):
    converter = time.gmtime  # type: ignore[assignment]  # a function of C, which is not bound
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")


class JsonLines(TextLines):
    """One object in each line: `time`, `level`, `process`, `logger`, `message`, and the fields of the line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name.removeprefix(FIELD): value for name, value in vars(record).items() if name.startswith(FIELD)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@dataclass
class Window:
    """The lines of one kind in the last few seconds."""

    began: float
    last: logging.LogRecord
    written: int = 1
    left_out: int = 0


def _call_later(delay_s: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()


class Sums(logging.Filter):
    """Lets the first lines of a kind through and counts the others, for warnings and for lines about a request."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], None] = _call_later,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._call_later = call_later
        self._lock = threading.Lock()
        self._windows = dict[tuple[str, int, str], Window]()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = _kind_of(record)
        if kind is None:
            return True
        now = self._clock()
        with self._lock:
            window = self._windows.get(kind)
            if window is None or (now - window.began >= WINDOW_S and not window.left_out):
                self._windows[kind] = Window(now, record)
                return True
            if window.written < BURST:
                window.written += 1
                return True
            window.left_out += 1
            window.last = record
            if window.left_out > 1:
                return False
            left_s = max(0.0, window.began + WINDOW_S - now)
        self._call_later(left_s, lambda: self._write_sum(kind))
        return False

    def flush(self) -> None:
        """Write all sums now."""
        for kind in list(self._windows):
            self._write_sum(kind)

    def _write_sum(self, kind: tuple[str, int, str]) -> None:
        with self._lock:
            window = self._windows.pop(kind, None)
        if window is None or not window.left_out:
            return
        name, level, label = kind
        extra = {attribute: value for attribute, value in vars(window.last).items() if attribute in REPEATED}
        logging.getLogger(name).log(
            level,
            "%s: %d more in the last %.1f s",
            *(label, window.left_out, self._clock() - window.began),
            extra=extra | {SUMMARY: window.left_out},
        )


REPEATED = ("semel_status", "semel_problem", "semel_event")
"""The fields that all lines of one kind have in common."""


def _kind_of(record: logging.LogRecord) -> tuple[str, int, str] | None:
    """What the line has in common with others of its kind. None for a line that is always written."""
    fields = vars(record)
    if SUMMARY in fields or (record.levelno < logging.WARNING and "semel_status" not in fields):
        return None
    if "semel_status" in fields:
        return record.name, record.levelno, f"{fields['semel_status']} {fields.get('semel_problem', '')}".rstrip()
    return record.name, record.levelno, str(fields.get("semel_event", record.msg))


class GatewayLog:
    """The log of this process."""

    def __init__(self) -> None:
        self._handler = logging.StreamHandler()
        self._sums = Sums()
        logging.getLogger().addHandler(self._handler)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def set(self, settings: GatewaySettings, rules: Rules | None = None) -> None:
        """Write as the options say, else as the rules file says. At the level debug nothing is summed."""
        chosen = None if rules is None else rules.log
        level = logging.getLevelName((settings.log_level or (chosen and chosen.level) or "info").upper())
        format = settings.log_format or (chosen and chosen.format) or "text"
        self._handler.setFormatter(JsonLines() if format == "json" else TextLines())
        self._handler.removeFilter(self._sums)
        if level > logging.DEBUG:
            self._handler.addFilter(self._sums)
        logging.getLogger().setLevel(max(level, logging.INFO))  # libraries' debugging is not for operators
        logging.getLogger("semel").setLevel(level)

    def flush(self) -> None:
        self._sums.flush()
