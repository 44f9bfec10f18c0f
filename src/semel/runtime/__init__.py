"""What every front (middleware, decorator, block) uses: it runs plans, keeps leases, knows the running operation."""
