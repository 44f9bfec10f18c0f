"""Messages in the simulation: real relays and consumers between a simulated outbox, broker and database."""
