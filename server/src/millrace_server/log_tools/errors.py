"""Why a tool did not do what it was asked to, by what its caller can do about it."""


class ToolError(Exception):
    """Base of all refusals; a sentence for whoever runs the tool."""


class DamagedError(ToolError):
    """Returned when files are not what they must be for what was asked."""


class UsageError(ToolError):
    """Returned when what was named is not what the tool needs."""


class UnavailableError(ToolError):
    """Returned when the files may be good, but not now or not for this program: in use, sealed, of another version."""
