"""Store URLs."""

from __future__ import annotations

from semel.errors import StoreMisconfigured
from semel.runtime.url import ServiceUrl


class StoreUrl(ServiceUrl):
    what = "store"
    examples = "sqlite:///semel.db or postgresql://host/database"
    refusal = StoreMisconfigured
