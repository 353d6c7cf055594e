"""What a user probably meant by a name that the server does not have."""

import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress

from millrace.command_line.notes import printable


def question(name: str, names: Callable[[], Iterable[str]]) -> str:
    """Asks whether the user meant the most similar name.

    Args:
        name: The name that does not exist.
        names: Asks the server for those that do. A user who may not list them is not asked.

    Returns:
        The beginning of a sentence that continues with the advice for another response; empty if no name is similar.
    """
    # It brings gRPC, which the help does not need.
    from millrace_client import MillraceError

    with suppress(MillraceError):
        similar = difflib.get_close_matches(name, list(names()), n=1)
        return f"did you mean {printable(similar[0])}? If not, " if similar else ""
    return ""
