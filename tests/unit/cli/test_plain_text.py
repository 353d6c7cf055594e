from millrace_client.cli.plain_text import printable, printable_bytes


def test_printable_with_control_characters_escapes_them() -> None:
    """Escape sequences, newlines and C1 controls are shown instead of sent; tabs and letters stay."""
    assert printable("a\tä\x1b[31m\n\x9b\x7f") == "a\tä\\x1b[31m\\n\\x9b\\x7f"


def test_printable_with_surrogates_escapes_them() -> None:
    """Arguments that were not UTF-8 can still be shown."""
    assert printable("\udcff") == "\\udcff"


def test_printable_bytes_not_utf8_shows_the_bytes() -> None:
    """Bytes that are no text are shown by their numbers."""
    assert printable_bytes(b"ok \xff\xc3\xa9") == "ok \\xffé"
