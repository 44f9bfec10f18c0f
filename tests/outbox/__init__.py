"""Relays, and the publishers of each broker, on real databases and real brokers."""
