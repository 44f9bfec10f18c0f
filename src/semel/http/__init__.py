"""What the HTTP fronts (ASGI, WSGI, Django) share: from a keyed request to its lease, from its work to its answer."""
