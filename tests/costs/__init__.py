"""What a request costs, counted and not timed, and that the suite which does take times still runs."""
