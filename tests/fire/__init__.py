"""Stores under fire: real servers, cut off by a proxy, killed, full, read-only and out of connections."""
