"""The alerts for Prometheus, their unit tests, and the runbook."""

import re
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboard import panels_of, queries_of
from tests.fenced_blocks import blocks_of
from tests.fork_server import run_program
from tests.prometheus import ALERTS, installed
from tests.unit.repository.checkout import ROOT

TESTS = ALERTS.with_name("alerts.test.yaml")
RUNBOOK = ROOT / "docs" / "runbook.md"
METRICS = ROOT / "docs" / "metrics.md"
_NAME = re.compile(r"[a-z][a-z-]*")
_OPTION = re.compile(r"--[a-z-]+")


def _alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def _promtool(*arguments: str | Path) -> None:
    command = [installed("promtool"), *arguments]
    ran = subprocess.run(command, cwd=ALERTS.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_alerts_and_example_configuration_are_valid_for_prometheus() -> None:
    """Prometheus' own tool finds no error; the configuration names the file of the alerts."""
    _promtool("check", "config", ALERTS.with_name("prometheus.yml"))
    assert yaml.safe_load(ALERTS.with_name("prometheus.yml").read_text())["rule_files"] == [ALERTS.name]


def test_alerts_on_simulated_metrics_fire_in_time_and_only_where_they_should() -> None:
    """The unit tests, of which there is one for each alert, pass by the documented commands."""
    tested = [test["name"] for test in yaml.safe_load(TESTS.read_text())["tests"]]
    assert sorted(tested) == sorted(alert["alert"] for alert in _alerts())
    [commands] = blocks_of(ROOT / "docs" / "monitoring.md", "promtool")
    for command in commands.splitlines():
        _promtool(*command.split()[1:])


def test_command_of_the_page_points_alerts_to_another_runbook(tmp_path: Path) -> None:
    """The documented `sed` replaces the page of every link, and keeps its section."""
    [command] = blocks_of(ROOT / "docs" / "monitoring.md", "alerts")
    (tmp_path / ALERTS.name).write_text(ALERTS.read_text())
    subprocess.run(["bash", "-euc", command.replace("alerts.yaml", ALERTS.name)], cwd=tmp_path, check=True)
    replaced = (tmp_path / ALERTS.name).read_text()
    assert replaced.count("https://wiki.example/millrace/runbook.md#") == len(_alerts())


def test_alerts_say_what_is_wrong_where_and_how_urgent_it_is() -> None:
    """Each has a severity, a summary and a longer description, and the link to its section of the runbook."""
    for alert in _alerts():
        name = alert["alert"]
        assert alert["labels"]["severity"] in {"critical", "warning"}, name
        annotations = alert["annotations"]
        assert len(annotations["summary"]) < len(annotations["description"]), name
        assert annotations["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        # These concern all servers together.
        if "absent(" not in alert["expr"] and " by (job, channel) " not in alert["expr"]:
            assert "{{ $labels.instance }}" in annotations["summary"] + annotations["description"], name


def test_runbook_compared_with_the_alerts_has_the_same_sections() -> None:
    """Each alert has its section, in the order of the file, and no section is about another one."""
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    assert [section.split("\n", 1)[0] for section in sections] == [alert["alert"] for alert in _alerts()]
    for section in sections:
        assert "**Confirm.**" in section
        assert "**Cause and remedy.**" in section
    anchors = set(re.findall(r"\]\(#(\w+)\)", RUNBOOK.read_text()))
    assert anchors <= {alert["alert"].lower() for alert in _alerts()}


def test_metrics_in_alerts_and_on_the_dashboard_are_documented() -> None:
    """No query asks for a metric that no server has."""
    queries = [alert["expr"] for alert in _alerts()]
    queries += [query for panel in panels_of("stat", "timeseries", "table") for query in queries_of(panel)]
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bmillrace_\w+", " ".join(queries))}
    assert asked - set(re.findall(r"`(millrace_\w+)`", METRICS.read_text())) == set()


def _commands() -> set[str]:
    """The commands in the runbook, as they are written."""
    return {" ".join(command.split()) for command in re.findall(r"`(millraced? [^`]+)`", RUNBOOK.read_text())}


@pytest.mark.parametrize("command", sorted(_commands()))
def test_command_in_the_runbook_is_one_that_the_programs_have(command: str) -> None:
    """Programs, commands and options exist as they are written; arguments are in capitals."""
    program, *names = takewhile(_NAME.fullmatch, command.split())
    shown = run_program(program, (*names, "--help"), timeout=60.0)
    assert shown.returncode == 0, shown.stderr
    assert " ".join((program, *names)) in " ".join(shown.stdout.split())
    assert set(_OPTION.findall(command)) <= set(_OPTION.findall(shown.stdout))
