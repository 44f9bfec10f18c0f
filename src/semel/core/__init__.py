"""The protocol: values, tables, the model of a store, and plans, without IO, clock or randomness.

No IO, no clock, no randomness, no environment: everything here is a value or a function of values.

What is needed from outside (the time, an owner's random bits, a store's reply) arrives as an argument or as the
answer to an effect, so the simulator, the tests and production run the same lines.
"""
