import re

import pytest

from millrace_spark.landing.formats import (
    ACCESS_LOG,
    SYSLOG_3164,
    SYSLOG_5424,
    PatternError,
    java_pattern,
    numbered_pattern,
)

COMMON = '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'


def groups(pattern: str, line: str) -> dict[str, str | None] | None:
    found = re.compile(pattern).fullmatch(line)
    return found and found.groupdict()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (COMMON, {"client": "127.0.0.1", "user": "frank", "status": "200", "bytes": "2326", "agent": None}),
        (COMMON + ' "http://x/" "Mozilla (\\"x\\")"', {"referrer": "http://x/", "agent": 'Mozilla (\\"x\\")'}),
        ('::1 - - [10/Oct/2000:13:55:36 -0700] "\\x16\\x03" 400 -', {"request": "\\x16\\x03", "bytes": "-"}),
        ('h - - [t] "" 408 0 "-" "-" ', {"request": "", "agent": "-"}),
    ],
)
def test_access_log_matches_lines_of_both_formats(line: str, expected: dict[str, str | None]) -> None:
    """Common and combined lines match, also with escaped quotes and invalid requests."""
    found = groups(ACCESS_LOG, line)
    assert found is not None
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        COMMON[:-5],
        COMMON + ' "a"',
        COMMON + ' "a" "b',
        COMMON.replace(" 200 ", " 2000 "),
        COMMON + "\n" + COMMON,
    ],
)
def test_access_log_does_not_match_other_lines(line: str) -> None:
    """Truncated and joined lines do not match."""
    assert groups(ACCESS_LOG, line) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \ufeff'su root' failed",
            {
                "priority": "34",
                "app": "su",
                "message_id": "ID47",
                "structured_data": "-",
                "message": "'su root' failed",
            },
        ),
        (
            '<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - [a@1 x="]\\"" y="2"][b] multi\nline',
            {"process_id": "8710", "structured_data": '[a@1 x="]\\"" y="2"][b]', "message": "multi\nline"},
        ),
        ("<0>1 - - - - - -", {"time": "-", "message": None}),
    ],
)
def test_syslog_5424_matches_its_examples(line: str, expected: dict[str, str | None]) -> None:
    """The examples of the RFC match, with brackets and quotes in structured data, and without a message."""
    found = groups(SYSLOG_5424, line)
    assert found is not None
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("<34>Oct 11 22:14:15 mymachine su: failed", {"priority": "34", "app": "su", "process_id": None}),
        ("Oct  1 02:04:05 host CRON[12]: (root) CMD", {"priority": None, "app": "CRON", "process_id": "12"}),
        ("<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!", {"host": "10.0.0.99", "app": None, "message": "Use the BFG!"}),
    ],
)
def test_syslog_3164_matches_what_daemons_write(line: str, expected: dict[str, str | None]) -> None:
    """Lines match with and without priority, tag and process id."""
    found = groups(SYSLOG_3164, line)
    assert found is not None
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    "line",
    [
        '1.2.3.4 - - [x] "' + '\\"' * 100_000,
        "<1>1 - - - - - [" + '"\\""' * 50_000,
        "<1>1 - - - - - " + "[a]" * 50_000 + "x",
        " " * 100_000,
    ],
)
def test_patterns_on_long_lines_of_nonsense_end_soon(line: str) -> None:
    """No pattern backtracks catastrophically; otherwise pytest's timeout fails the test."""
    assert [groups(pattern, line) for pattern in (ACCESS_LOG, SYSLOG_5424, SYSLOG_3164)] == [None, None, None]


def test_numbered_pattern_takes_names_out_and_leaves_the_rest() -> None:
    """Both spellings of named groups are replaced, but not within sets or after a backslash."""
    numbered = numbered_pattern(r"(?P<a_1>x)(y)(?:z)\(?<b>[(?P<c>](?<d>.)(?P=a_1)(?<!q)(?<=r)")
    assert numbered.names == {"a_1": 1, "d": 3}
    assert numbered.text == r"(x)(y)(?:z)\(?<b>[(?P<c>](.)\1(?<!q)(?<=r)"
    assert numbered.group_count == 3
    assert java_pattern(numbered).startswith(r"(?d)\A(?:(x)")


@pytest.mark.parametrize("pattern", ["(", "(?P<a>x)(?P<a>y)", "[", "*"])
def test_numbered_pattern_of_nonsense_is_refused(pattern: str) -> None:
    """The error includes Python's message."""
    with pytest.raises(PatternError, match="is not a valid regular expression: "):
        numbered_pattern(pattern)
