"""How processes end that were asked to stop, or to leave, and so have not failed."""

STOPPED_BY_SIGTERM = 143
"""128 + 15, as a shell gives it: also of a script that wrote its checkpoint after SIGTERM."""

STOPPED_EXIT_CODES = (130, STOPPED_BY_SIGTERM)
"""Of processes that were stopped by SIGINT or SIGTERM."""


class LeftTraining(SystemExit):
    """Ends the script of a replica that has left a training which goes on without it."""

    def __init__(self) -> None:
        super().__init__(0)
