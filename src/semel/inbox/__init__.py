"""Messages that take effect once, however often they are delivered."""

from semel.core.messages import Delivery
from semel.core.verdicts import Handling, Settling, Verdict

__all__ = ["Delivery", "Handling", "Settling", "Verdict"]
