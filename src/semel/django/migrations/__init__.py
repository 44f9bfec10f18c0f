"""Semel's migrations for Django. Each applies the migration of the same number of the store's own schema."""
