"""The tiered store: a database that decides, and copies of its answers in Redis, which only make replays quick.

A copy costs a round trip at worst: one that is missing, late, unreadable or out of reach sends the call to the
database. No call is answered because a copy is absent.
"""
