"""Redis and Valkey: one string for each record, decided by Lua scripts, a batch in one round trip.

What Redis alone cannot promise: a failover may lose what the old primary acknowledged, and without an append-only file
so does a restart. The start-up check (`check.py`) refuses a server that evicts and warns about one that forgets.
"""
