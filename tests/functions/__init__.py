"""Functions and blocks: decorators, codecs, crashes."""
