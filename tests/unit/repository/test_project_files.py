"""Rules for every file of the project."""

import ast
import re

import pytest

from tests.unit.repository.checkout import ROOT, project_files, python_files

MACHINE_PATH = re.compile(r"(?<![\w.:-])/(?:work|root|home/\w+|tmp/plan)(?:/|\b(?![\w.-]))")
REGISTRY = re.compile(
    r"\b(?:(?:test\.)?pypi\.org|pythonhosted\.org|registry\.npmjs\.org|(?:docker|ghcr|quay|gcr)\.io|deb\.debian\.org)\b"
)
INDEX_OPTION = re.compile(r"(?<!emit-)(?:index-(?=url)|find-(?=links))")
BARE_EXCEPTION_TO_A_RULE = re.compile(r"#\s*(?:noqa(?!: [A-Z0-9, ]+ - \w)|type: ignore(?!\[[\w, -]+\]\s+# \w))")

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

LICENSE_BYTES_MIN = 11_000


def _matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in project_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), start=1)
        found += [f"{path.relative_to(ROOT)}:{number}: {line}" for number, line in lines if pattern.search(line)]
    return found


def test_links_between_pages_lead_to_files() -> None:
    """Readers of the repository, who have no site, find what a page links to; the site's tests check headings."""
    lost = []
    for page in project_files():
        if page.suffix == ".md":
            targets = _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
            paths = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
            lost += [(page.name, path) for path in paths if path and not (page.parent / path).exists()]
    assert lost == []


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY, INDEX_OPTION], ids=["machine", "registry", "index"])
def test_files_searched_for_places_name_none(pattern: re.Pattern[str]) -> None:
    """No file contains a folder of one machine, a package registry, or an option for one."""
    assert _matches(pattern) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATH, "cd /{}/main"),
        (MACHINE_PATH, '"/{}"'),
        (REGISTRY, "https://{}.org/simple"),
        (INDEX_OPTION, "--extra-{}-url file:///x"),
    ],
)
def test_patterns_on_what_they_look_for_match(pattern: re.Pattern[str], line: str) -> None:
    """The patterns of the test above match what they should."""
    word = {MACHINE_PATH: "work", REGISTRY: "pypi", INDEX_OPTION: "index"}[pattern]
    assert pattern.search(line.format(word))


def test_rules_broken_on_purpose_tell_why() -> None:
    """Each `noqa` and each `type: ignore` names its rule and gives its reason."""
    assert _matches(BARE_EXCEPTION_TO_A_RULE) == []


def test_tests_read_as_source_promise_something() -> None:
    """Each test is named after call, condition and outcome, and its docstring is a sentence."""
    offenders = []
    for path in python_files():
        if not path.name.startswith("test_"):
            continue
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            first_line = (ast.get_docstring(node) or "").partition("\n\n")[0]
            if node.name.count("_") < 3 or not first_line.endswith("."):
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert offenders == []


def test_license_in_every_distribution_is_the_whole_apache_license() -> None:
    """The root and each distribution contain the full text of the license."""
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert len(text) > LICENSE_BYTES_MIN
    assert {(ROOT / name / "LICENSE").read_text() for name in ("client", "server", "spark_connector")} == {text}


def test_ruff_exceptions_in_pyproject_have_reasons() -> None:
    """Each disabled rule has its reason in a comment."""
    section = (
        (ROOT / "pyproject.toml").read_text().partition("[tool.ruff.lint]")[2].partition("[tool.ruff.lint.pydoc")[0]
    )
    rules = [line for line in section.splitlines() if re.match(r'\s*"(?:[A-Z]+\d*"|[^"]+" = \["[A-Z])', line)]
    assert len(rules) > 10
    assert [line for line in rules if not re.search(r"# \w.*\.$", line)] == []
