import pytest

from millrace_server.flume_import import parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b  ", {"a": "b  "}),
        ("a b=c", {"a": "b=c"}),
        ("# one\n! two\n\na = b", {"a": "b"}),
        ("a = one \\\n    two\\\n\tthree", {"a": "one twothree"}),
        ("a = ends in two \\\\\nb = c", {"a": "ends in two \\", "b": "c"}),
        ("a\\=b = c\\td", {"a=b": "c\td"}),
        ("a = \\u00e4\\n", {"a": "ä\n"}),
        ("a = 1\r\na = 2\rb = 3", {"a": "2", "b": "3"}),
        ("alone", {"alone": ""}),
        ("a = # no comment", {"a": "# no comment"}),
        ("", {}),
    ],
)
def test_parse_properties_reads_as_java_does(text: str, properties: dict[str, str]) -> None:
    """Separators, continued lines, comments, escapes, and keys that come twice."""
    assert parse_properties(text) == properties
