"""What the SQL stores share: statements as effects, the row that is a record, and migrations."""
