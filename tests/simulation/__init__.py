"""Deterministic simulation: the real front, plans, keeper and batcher in several simulated processes on one simulated
store, in virtual time, with every fault that a seed asks for, watched by an oracle outside of them.

`make sim` runs the quick profile, `SEMEL_SEED=n make sim` replays one history with a readable trace.
"""
