"""What `semel try` does: sends a request in the ways that clients really repeat it, and judges what the service did."""
