import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.flume_import import PropertiesError, Property, parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b  ", {"a": "b  "}),
        ("a b=c", {"a": "b=c"}),
        ("# one\n! two\n\na = b", {"a": "b"}),
        ("a = one \\\n    two\\\n\tthree", {"a": "one twothree"}),
        ("a = ends in two \\\\\nb = c", {"a": "ends in two \\", "b": "c"}),
        ("a = one\\\n# two\nb = c", {"a": "one# two", "b": "c"}),
        ("a = one\\", {"a": "one"}),
        ("a\\=b = c\\td", {"a=b": "c\td"}),
        ("a\\ b\\: = c", {"a b:": "c"}),
        ("a = \\u00e4\\n\\q", {"a": "ä\nq"}),
        ("a = \\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a = 1\r\na = 2\rb = 3", {"a": "2", "b": "3"}),
        ("alone", {"alone": ""}),
        ("a = # no comment", {"a": "# no comment"}),
        ("", {}),
    ],
)
def test_parse_properties_reads_as_java_does(text: str, properties: dict[str, str]) -> None:
    """Separators, continued lines, comments, escapes, and keys that come twice."""
    assert {item.key: item.value for item in parse_properties(text)} == properties


def _escaped(text: str) -> str:
    """Text as Java writes it, with white space and separators escaped, and what is not ASCII in UTF-16."""
    written = re.sub(r"[\\ \t\f\n\r=:#!]", lambda match: f"\\u{ord(match[0]):04x}", text)
    units = written.encode("utf-16-be")
    codes = [int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


@given(st.dictionaries(st.text(), st.text()))
def test_parse_properties_of_what_java_has_written_gives_it_back(properties: dict[str, str]) -> None:
    """Any text survives, unless it has what no configuration can hold."""
    lines = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items())
    if re.search("[\0\ufdd0-\ufdef]", "".join([*properties, *properties.values()])):
        with pytest.raises(PropertiesError):
            parse_properties(lines)
    else:
        assert {item.key: item.value for item in parse_properties(lines)} == properties


def test_parse_properties_numbers_lines_as_editors_do() -> None:
    """A continued line has the number of its first line, and a repeated key that of its last one."""
    text = "# comment\na = 1\n\nb = 2\\\n  3\na = 4\n"
    assert parse_properties(text) == [Property("b", "23", 4), Property("a", "4", 6)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = 1\nb = \\u12g4", r"line 2: \\u must be followed by four hexadecimal digits"),
        ("\n\nb\\u = 1", r"line 3: \\u must be"),
        ("a = \\ud83d", r"line 1: contains U\+D83D, which is not a character"),
        ("a = \\u0000", r"line 1: contains U\+0000"),
        ("a = \ufdd0", r"line 1: contains U\+FDD0"),
    ],
)
def test_parse_properties_of_a_bad_file_raises_with_the_line(text: str, sentence: str) -> None:
    """Java refuses the first two; the others cannot be written to a configuration."""
    with pytest.raises(PropertiesError, match=sentence):
        parse_properties(text)
