"""The chain: request, transaction, event, broker, consumer, ledger; and a nemesis that kills all of them."""
