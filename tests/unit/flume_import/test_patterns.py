import re
from fnmatch import fnmatchcase

import pytest

from millrace_server.agent.sinks.files.paths import PathTemplate
from millrace_server.flume_import.options import to_glob, to_path_template, to_replacement, to_strptime_format


@pytest.mark.parametrize(
    ("pattern", "glob"),
    [
        ("example.log", "example.log"),
        (r".*\.log", "*.log"),
        (r"^app-[0-9].log$", "app-[0-9].log"),
        ("[^a]bc", "[!a]bc"),
        (".+x", "?*x"),
        (r"a\*b", "a[*]b"),
        (".*log.*", "*log*"),
    ],
)
def test_glob_of_a_simple_expression_matches_the_same_names(pattern: str, glob: str) -> None:
    """Expressions common in Flume's configurations have a shell pattern."""
    assert to_glob(pattern) == glob
    for name in ("example.log", "app-1.log", "xbc", "abc", "a*b", "my.log.1", "x"):
        assert bool(re.fullmatch(pattern, name)) == fnmatchcase(name, glob)


@pytest.mark.parametrize("pattern", ["(a|b).log", r"a\d+", "ab?", "x{2}", "[ab]+"])
def test_glob_of_anything_else_is_none(pattern: str) -> None:
    """Patterns that a shell pattern cannot express are left to the operator."""
    assert to_glob(pattern) is None


def test_path_template_of_flumes_escapes_has_their_places() -> None:
    """Headers and times are translated, times of one name are merged, braces are escaped, unknown escapes returned."""
    template, unknown = to_path_template("/x/%y-%m-%d/%H%M/%{host}/{a}/%Q")
    assert template == "/x/{time:%y-%m-%d}/{time:%H%M}/{header:host}/{{a}}/Q"
    assert unknown == ["%Q"]
    PathTemplate.parse(template)


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
