"""Long runs: three service processes on one engine, of which a server is killed every few seconds. Effects are counted.

`make fire-long` runs one for ten minutes. Application, clients and judge are those of the black box. An engine is a
small class (`engine.py`); name a new one in `ENGINES`.
"""
