"""Operations of several steps."""
