"""The stores. Nothing here is imported before it is asked for: see `semel.open_store`."""
