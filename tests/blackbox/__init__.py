"""The black box: real server processes, real stores, clients that retry, and a nemesis. Effects are counted outside.

`make blackbox` runs it once, `make blackbox-long` for hours. Nothing in here knows how semel works: it knows HTTP, a
ledger file and the promises of docs/guarantees.md.
"""
