"""`semel demo`: a shop that takes payments, a bank that counts them, and buttons for everything that goes wrong.

A supervisor holds the listening socket and keeps one worker alive; the worker serves a payments API behind the
middleware, and the page. The bank's ledger and the timeline are files of their own, so a killed worker takes nothing
with it.
"""
