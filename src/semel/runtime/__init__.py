"""What every front stands on: it runs plans, keeps leases, and knows the operation that is running."""
