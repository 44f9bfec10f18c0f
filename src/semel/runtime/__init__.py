"""What every front (middleware, decorator, block) uses: it runs plans, keeps leases, and knows the running operation."""
