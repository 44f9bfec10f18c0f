"""`semel gateway`: the middleware in front of any HTTP service, in any language, unchanged.

A supervisor listens and hands its socket to workers; each worker is the ASGI middleware around a forwarder.
"""

from semel.gateway.rules import Rules, read_rules
from semel.gateway.settings import GatewaySettings, SettingsInvalid

__all__ = ["GatewaySettings", "Rules", "SettingsInvalid", "read_rules"]
