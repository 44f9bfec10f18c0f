"""What every front (a middleware, a decorator, a block) uses: it runs plans, keeps leases, and knows the operation that
is running.
"""
