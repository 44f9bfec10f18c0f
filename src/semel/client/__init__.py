"""The caller's side: a journal that keeps one durable key for each logical operation."""
