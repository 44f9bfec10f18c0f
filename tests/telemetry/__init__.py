"""What is reported: events, logs, metrics, traces, and the examples that use them."""
