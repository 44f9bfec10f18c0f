"""How answers and values become bytes, and back.

Stored data is decoded as data only; nothing stored is ever executed.
"""
