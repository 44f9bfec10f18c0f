"""The exactly-once arm of the black box: services whose record and rows are one transaction, on PostgreSQL and SQLite.

`make blackbox-exactly-once` runs it. Effects are committed rows: every payment writes four, which carry the key, the
run of the handler that wrote them, and their position. So a payment that was committed by half, twice, or by another
request's transaction is seen.
"""
