"""The DynamoDB store: one item for each key, decided by conditional writes, a claim in one request."""
