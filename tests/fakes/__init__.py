"""In-memory doubles of what is slow to start; each passes the contract suite of the real thing."""
