"""Problem in, allocation out: pure functions of numpy and scipy."""
