import pytest

from millrace_server.channels.config import check_channel_name, check_identifier, shown
from millrace_server.errors import BadArgumentError, BadNameError


@pytest.mark.parametrize("name", ["a", "0", "orders", "a.b_c-d", "a" * 64, "0-.", "x.."])
def test_check_channel_name_that_is_allowed_passes(name: str) -> None:
    """A name has lower-case letters, digits, dots, dashes and underscores, and begins with a letter or digit."""
    check_channel_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/b", "a\\b", "-a", "_a", ".a", "A", "aB", "a b"),
        *("a\n", "\n", "a\0", "ä", "\u0661", "\u212a", "a" * 65, "a" * 300),
    ],
)
def test_check_channel_name_that_is_not_allowed_refuses(name: str) -> None:
    """The message quotes the name with escapes, and states what is allowed."""
    with pytest.raises(BadNameError, match=r"^channel: is .*; it must match \[a-z0-9\]") as refused:
        check_channel_name(name)
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("identifier", ["a", " ", "~", "a/b c", "x" * 128])
def test_check_identifier_that_is_allowed_passes(identifier: str) -> None:
    """An identifier has 1 to 128 printable ASCII characters."""
    check_identifier("txn_id", identifier)


@pytest.mark.parametrize("identifier", ["", "a\n", "\x7f", "a\0b", "\t", "ü", "x" * 129, "\x1f"])
def test_check_identifier_that_is_not_allowed_refuses(identifier: str) -> None:
    """The message names the field."""
    with pytest.raises(BadArgumentError, match=r"^txn_id: is .*; it must have 1 to 128 printable ASCII characters$"):
        check_identifier("txn_id", identifier)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("a", "'a'"),
        ("\x1b[2J\n", r"'\x1b[2J\n'"),
        ("ü", r"'\xfc'"),
        ("x" * 80, f"'{'x' * 80}'"),
        ("x" * 81, f"'{'x' * 80}'... (81 characters)"),
    ],
)
def test_shown_text_from_outside_is_harmless(text: str, quoted: str) -> None:
    """Untrusted text can neither control a terminal nor fill a log."""
    assert shown(text) == quoted
