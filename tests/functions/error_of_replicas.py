"""An exception whose module the submitting process may lack."""


class LocalError(Exception):
    pass
