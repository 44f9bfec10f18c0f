"""Django's book of semel's migrations. Each applies the one of the same number in the store's schema."""
