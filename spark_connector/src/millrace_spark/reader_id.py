"""Who claims a channel where the user gave no name."""

import getpass
import platform
import re

_LENGTH_MAX = 128


def reader_id_of(process_id: int) -> str:
    """A name that tells whoever is refused by the claim where to look: user, machine and process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        user = "unknown"
    name = f"spark-{user}@{platform.node()}-{process_id}"
    return re.sub(r"[^!-~]", "_", name)[-_LENGTH_MAX:]
