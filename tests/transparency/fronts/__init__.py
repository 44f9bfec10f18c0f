"""How each framework's applications are put behind semel, without editing a test: one function for each arm."""
