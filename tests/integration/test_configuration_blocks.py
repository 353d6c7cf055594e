"""The configurations in the documentation, checked as `millraced check` does."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace_server.cli import app
from millrace_spark.landing.program import app as spark_app
from tests.fenced_blocks import CHECKED, all_blocks, blocks_of
from tests.scripts import run_script
from tests.unit.repository.checkout import ROOT

_PLACE = re.compile(r"/(data|etc/millrace|var/log|var/lib)(?=/)")
_ADDRESSES = "--name collector-1 --name collector-2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine's folders, with the certificates, the token and the files that configurations name."""
    made = tmp_path_factory.mktemp("machine")
    run_script(f"millraced dev-certificates {made}/etc/millrace/tls {_ADDRESSES}", made)
    command = f"millraced token make edge-1 --tokens-file {made}/etc/millrace/tokens"
    run_script(f"(umask 077; {command} > {made}/etc/millrace/edge-1.token)", made)
    return made


def test_configurations_of_all_pages_are_good(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one is accepted as a whole; those that name files are given them."""
    monkeypatch.chdir(folder / "etc" / "millrace")
    found = [
        (page, block.text)
        for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
        for block in all_blocks(page)
        if block.kind == CHECKED
    ]
    assert len(found) > 8
    for page, text in found:
        config = folder / "etc" / "millrace" / "millrace.toml"
        config.write_text(_PLACE.sub(lambda match: f"{folder}{match[0]}", text), encoding="utf-8")
        checked = CliRunner().invoke(app, ["check", str(config)])
        assert checked.exit_code == 0, (page.name, checked.output)


def test_landing_of_the_page_without_an_example_run_is_good(tmp_path: Path) -> None:
    """The configuration that lands payments by a regular expression is accepted."""
    [text] = blocks_of(ROOT / "docs" / "landing.md", "payments")
    config = tmp_path / "payments.toml"
    config.write_text(text, encoding="utf-8")
    checked = CliRunner().invoke(spark_app, ["check", str(config)])
    assert checked.exit_code == 0, checked.output
