"""Rules for the names of channels, transactions, producers and readers."""

import re

from millrace_server.errors import BadArgumentError, BadNameError

CHANNEL_NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
IDENTIFIER_LENGTH_MAX = 128

_CHANNEL_NAME = re.compile(CHANNEL_NAME_PATTERN)
_IDENTIFIER = re.compile(rf"[ -~]{{1,{IDENTIFIER_LENGTH_MAX}}}")
_SHOWN_LENGTH_MAX = 80


def check_channel_name(name: str) -> None:
    """Raises BadNameError where the name is not allowed for a channel."""
    if not _CHANNEL_NAME.fullmatch(name):
        raise BadNameError(f"channel: is {shown(name)}; it must match {CHANNEL_NAME_PATTERN}")


def check_identifier(field: str, identifier: str) -> None:
    """Raises BadArgumentError where a txn_id, producer_id or reader_id is not allowed."""
    if not _IDENTIFIER.fullmatch(identifier):
        raise BadArgumentError(
            f"{field}: is {shown(identifier)}; it must have 1 to {IDENTIFIER_LENGTH_MAX} printable ASCII characters"
        )


def shown(text: str) -> str:
    """Quotes external text for messages: control characters are escaped, the length is capped."""
    if len(text) > _SHOWN_LENGTH_MAX:
        return f"{text[:_SHOWN_LENGTH_MAX]!a}... ({len(text)} characters)"
    return ascii(text)
