"""Why a server could not start."""


class StartError(Exception):
    """Returned when the server cannot start; the message is a sentence for whoever started it."""
