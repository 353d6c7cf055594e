import re
from fnmatch import fnmatchcase

import pytest

from millrace_server.agent.interceptors.regexes import compile_pattern
from millrace_server.agent.sinks.files.paths import PathTemplate
from millrace_server.flume_import.patterns import (
    has_single_dot,
    to_globs,
    to_path_template,
    to_posix,
    to_regex,
    to_replacement,
    to_strptime_format,
)
from millrace_server.flume_import.references import is_to_be_filled_in


@pytest.mark.parametrize(
    ("pattern", "globs"),
    [
        ("example.log", ["example.log"]),
        (r".*\.log", ["*.log"]),
        (r"^app-[0-9].log$", ["app-[0-9].log"]),
        ("[^a]bc", ["[!a]bc"]),
        (".+x", ["?*x"]),
        (r"a\*b", ["a[*]b"]),
        (".*log.*", ["*log*"]),
        (r"app-\d\.log", ["app-[0-9].log"]),
        (r"(my|a)\.log(?:|\.1)", ["my.log", "my.log.1", "a.log", "a.log.1"]),
    ],
)
def test_globs_of_a_simple_expression_match_the_same_names(pattern: str, globs: list[str]) -> None:
    """Expressions common in Flume's configurations have shell patterns."""
    assert to_globs(pattern) == globs
    for name in ("example.log", "app-1.log", "xbc", "abc", "a*b", "my.log.1", "a.log", "x"):
        assert bool(re.fullmatch(pattern, name)) == any(fnmatchcase(name, glob) for glob in globs)


@pytest.mark.parametrize(
    ("java", "posix"),
    [
        (r"^topic\d$", "^topic[0-9]$"),
        (r"(?:web|shop)\.[\w.]+?", r"(web|shop)\.[A-Za-z0-9_.]+"),
        ("[+?]x{1,2}?", "[+?]x{1,2}"),
    ],
)
def test_posix_of_javas_expression_matches_the_same_names(java: str, posix: str) -> None:
    """Topics of a Kafka source stay those that they were."""
    assert to_posix(java) == posix
    for name in ("topic1", "topicd", "web.a", "shop.b-", "+x", "?xx", "ax"):
        assert bool(re.fullmatch(java, name)) == bool(re.fullmatch(posix, name))


@pytest.mark.parametrize(
    "pattern", ["(?i)a", "(?!a).*", "a++", r"\Qa.b\E", r"[\d\-]", "[a-z&&[^b]]", "[a[b]]", r"\p{Alpha}"]
)
def test_posix_of_what_only_java_has_is_none(pattern: str) -> None:
    """POSIX would take it for something else, silently."""
    assert to_posix(pattern) is None


@pytest.mark.parametrize(
    ("java", "matching", "others"),
    [
        ("[a-z&&[^b]]+", ["a", "caz"], ["b", "&"]),
        ("x[a[bc]]", ["xa", "xc"], ["x[]", "xd"]),
        (r"[^\[\]]+", ["a"], ["[", "]"]),
        (r"\[a&&b", ["[a&&b"], ["a"]),
        (r"\d|\w", ["1", "a"], ["\u0663", "\u00e9"]),
        (r"[\D&&[^x]]", ["\u0663"], ["x", "7"]),
        (r"\\d", ["\\d"], ["7"]),
    ],
)
def test_regex_of_javas_expression_matches_the_same(java: str, matching: list[str], others: list[str]) -> None:
    """Without flags, the library takes unions and intersections for characters, and has digits of all scripts."""
    compiled = compile_pattern(to_regex(java))
    assert [text for text in matching + others if compiled.fullmatch(text)] == matching


def test_regex_of_any_other_expression_is_the_same() -> None:
    """So that people recognize it."""
    assert to_regex(r"^(\S+) [0-9] (?:x|\[y\])$") == r"^(\S+) [0-9] (?:x|\[y\])$"


@pytest.mark.parametrize(
    "pattern", [r"a\d+", "ab?", "x{2}", "[ab]+", "(a|b)+", "((a|b)|c)", r"\w", "(" + "a|" * 65 + ")"]
)
def test_globs_of_anything_else_are_none(pattern: str) -> None:
    """Patterns that shell patterns cannot express are left to the operator."""
    assert to_globs(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "has_one"), [("a.log", True), (r"a\.log", False), (".*", False), ("[.]x.+", False)]
)
def test_has_single_dot_of_a_pattern_finds_dots_that_match_anything(pattern: str, has_one: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Only a dot that is neither escaped nor repeated nor in a set counts."""
    assert has_single_dot(pattern) is has_one


def test_path_template_of_flumes_escapes_has_their_places() -> None:
    """Headers and times are translated, times of one name are merged, and braces are escaped."""
    converted = to_path_template("/x/%y-%m-%d/%H%M/%{host}/{a}/%D")
    template = "/x/{time:%y-%m-%d}/{time:%H%M}/{header:host}/{{a}}/{time:%m}/{time:%d}/{time:%y}"
    assert converted == (template, [], [])
    PathTemplate.parse(template)


def test_path_template_of_an_escape_without_counterpart_has_to_be_filled_in() -> None:
    """Neither a time zone nor a time in milliseconds nor the agent's host has a place; padded numbers are told."""
    template, unknown, padded = to_path_template("/x/%t/%z/%[localhost]/%e%k")
    assert is_to_be_filled_in(template)
    assert unknown == ["%t", "%z", "%[localhost]"]
    assert padded == ["%e", "%k"]


def test_strptime_format_of_javas_pattern_reads_the_same_times() -> None:
    """Letters and quoted text are translated; the result is None for a letter without a counterpart."""
    assert to_strptime_format("yyyy-MM-dd'T'HH:mm:ss.SSS") == "%Y-%m-%dT%H:%M:%S.%f"
    assert to_strptime_format("dd/MMM/yyyy:HH:mm:ss Z") == "%d/%b/%Y:%H:%M:%S %z"
    assert to_strptime_format("wwww") is None


@pytest.mark.parametrize(
    ("java", "text"),
    [("$2 and $1", "b and a"), (r"costs \$1", "costs $1"), ("${x}!", "a!"), (r"back\\slash", r"back\slash")],
)
def test_replacement_of_javas_text_replaces_the_same(java: str, text: str) -> None:
    """Groups by number and by name are translated, and escapes."""
    assert re.sub("(?P<x>a)(b)", to_replacement(java), "ab") == text
