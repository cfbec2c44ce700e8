"""The exit codes of processes that were asked to stop, and so have not failed."""

STOPPED_BY_SIGTERM = 143
"""128 + 15, as a shell gives it: also of a script that wrote its checkpoint after SIGTERM."""

STOPPED_EXIT_CODES = (130, STOPPED_BY_SIGTERM)
"""Of processes that were stopped by SIGINT or SIGTERM."""
