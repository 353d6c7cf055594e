"""The files by which a community works, as hosts and tools read them."""

import re

import pytest
import yaml

from tests.unit.repository.checkout import ROOT, project_files

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml"))


def test_decisions_are_numbered_and_listed_in_order() -> None:
    """The index names each decision with its number and title."""
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for number, path in enumerate(DECISIONS, start=1):
        assert path.name.startswith(f"{number:04}-")
        title = path.read_text().splitlines()[0].removeprefix(f"# {number}. ")
        assert f"| [{number}]({path.name}) | {title} |" in listed


def test_page_for_contributors_names_what_exists() -> None:
    """Files, folders, and names in the code that were renamed since would send a reader astray."""
    prose = re.sub(r"^```.*?^```$", "", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    quoted = set(re.findall(r"`([^`\n]+)`", prose)) - {"build/site", "dist/"}
    paths = [f"/{path.relative_to(ROOT)}" for path in project_files()]
    code = "\n".join(path.read_text() for path in project_files() if path.suffix in {".py", ".js", ".toml", ".proto"})
    words = set(re.findall(r"\w+", code))
    lost = [name for name in quoted if re.fullmatch(r"[A-Za-z_]\w*(\.[a-z_]+)?(\(\))?", name)]
    lost = [name for name in lost if not any(path.endswith(f"/{name}") for path in paths)]
    lost = [name for name in lost if not {*re.findall(r"\w+", name)} <= words]
    places = [name for name in quoted if re.fullmatch(r"[\w-]+/[\w./-]*", name)]
    lost += [place for place in places if not any(f"/{place.rstrip('/')}" in path for path in paths)]
    assert lost == []


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_decision_has_all_parts(path: object) -> None:
    """A reader finds the status, what forced the decision, what follows, and what was rejected."""
    text = (ROOT / "docs" / "decisions" / str(path)).read_text()
    assert re.search(r"^Status: (accepted|replaced by \d+)$", text, re.MULTILINE)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Rejected"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form_for_issues_has_what_hosts_require(path: object) -> None:
    """A form without a name, a description or a body is not offered."""
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / str(path)).read_text())
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0


def test_citation_has_the_required_keys() -> None:
    """Tools refuse a citation file without these."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
