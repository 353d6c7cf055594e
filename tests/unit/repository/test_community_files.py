"""The files by which a community works, as hosts and tools read them."""

import re

import pytest
import yaml

from tests.unit.repository.checkout import ROOT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml"))


def test_decisions_are_numbered_and_listed_in_order() -> None:
    """The index names each decision with its number and title."""
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for number, path in enumerate(DECISIONS, start=1):
        assert path.name.startswith(f"{number:04}-")
        title = path.read_text().splitlines()[0].removeprefix(f"# {number}. ")
        assert f"| [{number}]({path.name}) | {title} |" in listed


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
