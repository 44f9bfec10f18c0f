"""`semel try`, against services of all kinds."""
