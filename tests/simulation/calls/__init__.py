"""Callers in the simulation: the real plan of a call and the model of a journal, before the real middleware."""
