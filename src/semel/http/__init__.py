"""What the HTTP fronts share: from a keyed request to its lease, and from the end of the work to its answer."""
