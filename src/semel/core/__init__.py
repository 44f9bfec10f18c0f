"""The protocol: values, tables, the model of a store, and plans.

No IO, no clock, no randomness, no environment: everything here is a value or a function of values.

The time, an owner's random bits and a store's reply arrive as arguments or as replies to effects. So the simulator,
the tests and production run the same lines.
"""
