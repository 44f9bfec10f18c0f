"""Pages of the documentation, read as a newcomer does: files are written, commands run, outputs compared."""
