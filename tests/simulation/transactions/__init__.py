"""Exactly-once over HTTP in the simulation: the real middleware, plans and scripts on one simulated database, whose
transactions hold records and business rows, and whose connections are lost at any statement.
"""
