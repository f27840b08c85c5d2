class ServerError(RuntimeError):
    """The private PostgreSQL could not be started, stopped or reached; the text says why."""
