from millrace_client.cli.plain_text import beginning, beginning_of_bytes, printable, printable_bytes


def test_printable_with_control_characters_escapes_them() -> None:
    """Escape sequences, newlines and C1 controls are shown instead of sent; tabs and letters stay."""
    assert printable("a\tä\x1b[31m\n\x9b\x7f") == "a\tä\\x1b[31m\\n\\x9b\\x7f"


def test_printable_with_surrogates_escapes_them() -> None:
    """Arguments that were not UTF-8 can still be shown."""
    assert printable("\udcff") == "\\udcff"


def test_printable_bytes_not_utf8_shows_the_bytes() -> None:
    """Bytes that are no text are shown by their numbers."""
    assert printable_bytes(b"ok \xff\xc3\xa9") == "ok \\xffé"


def test_beginning_of_a_long_text_says_that_there_is_more() -> None:
    """No longer than asked for, the sign included."""
    assert beginning("abcd", 4) == "abcd"
    assert beginning("abcde", 4) == "abc…"


def test_beginning_of_bytes_cuts_no_character_in_two() -> None:
    """What looks broken is broken in the bytes themselves; the rest of them is not looked at."""
    assert beginning_of_bytes("€".encode() * 3, 3) == "€€€"
    assert beginning_of_bytes("€".encode() * 1_000_000, 3) == "€€…"
    assert beginning_of_bytes(b"ab\xe2", 9) == "ab\\xe2"
    assert beginning_of_bytes(b"\x1b[31m", 9) == "\\x1b[31m"
