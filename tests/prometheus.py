"""A real Prometheus for tests, on this machine only."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.unit.repository.checkout import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"

_WAIT_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.1

ValueT = TypeVar("ValueT")


def installed(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; on Debian: apt-get install --no-install-recommends prometheus")
    return found


class Sample(NamedTuple):
    """One value of the response to a query."""

    labels: Mapping[str, str]
    value: float


class Alert(NamedTuple):
    """An alert that fires, with the words that the operator gets."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Prometheus:
    """A running Prometheus that scrapes twice a second; as a context, it ends with the block.

    Its rules are those of `deploy/prometheus/alerts.yaml`, which fire at once: no test waits for the time in `for`.
    """

    def __init__(self, folder: Path, **job: Any) -> None:
        """Starts it with further settings of the job, such as `tls_config`."""
        self._folder = folder
        self._targets: list[dict[str, Any]] = []
        self._write_targets()
        (folder / "rules.yaml").write_text(yaml.safe_dump(_without_delays(yaml.safe_load(ALERTS.read_text()))))
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "millrace", "file_sd_configs": [{"files": ["targets.json"]}], **job}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0")
        with (folder / "log").open("w") as log:
            command = [installed("prometheus"), *options, "--log.format=json"]
            self._process = subprocess.Popen(command, cwd=folder, stderr=log)
        try:
            self._address = self._wait_for(self._listening_address, "address")
        except AssertionError:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def scrape(self, address: str, instance: str, scheme: str = "http") -> None:
        """Scrapes one more server, which is shown under this name.

        Prometheus looks for new servers every 5 seconds: name all of them in the first ones.
        """
        self._targets.append({"targets": [address], "labels": {"instance": instance, "__scheme__": scheme}})
        self._write_targets()

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """The values of an expression of PromQL, at present or at a time; an error fails the test."""
        response = self._get("query", query=expression, **({} if at is None else {"time": str(at)}))
        return [Sample(one["metric"], float(one["value"][1])) for one in response["result"]]

    def wait_for_values(self, expression: str) -> list[Sample]:
        """Queries until there is a value."""
        return self._wait_for(lambda: self.query(expression), expression)

    def wait_for_scrape(self) -> float:
        """Waits until all servers were read after this call; returns the time of the last of them.

        At that time there are values even if a later scrape takes too long, after which there are none.
        """
        called_at = time.time()

        def last() -> float | None:
            times = [one.value for one in self.query("timestamp(millrace_server_info)")]
            return max(times) if times and min(times) > called_at else None

        return self._wait_for(last, "scrape")

    def wait_for_alert(self, name: str, **labels: str) -> Alert:
        """Waits until an alert with this name and these labels fires."""
        return self._wait_for(lambda: self._firing(name, labels), name)

    def wait_for_end(self, name: str, **labels: str) -> None:
        """Waits until no alert with this name and these labels fires any more."""
        self._wait_for(lambda: self._firing(name, labels) is None, f"end of {name}")

    def _firing(self, name: str, labels: Mapping[str, str]) -> Alert | None:
        wanted = {"alertname": name, **labels}.items()
        alerts = self._get("alerts")["alerts"]
        firing = (Alert(one["labels"], one["annotations"]) for one in alerts if one["state"] == "firing")
        return next((alert for alert in firing if wanted <= alert.labels.items()), None)

    def _get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=20.0) as response:
            return json.load(response)["data"]

    def _write_targets(self) -> None:
        # Renamed, since Prometheus reads the file as soon as it changes.
        written = self._folder / "targets.json.new"
        written.write_text(json.dumps(self._targets))
        written.rename(self._folder / "targets.json")

    def _listening_address(self) -> str | None:
        lines = (self._folder / "log").read_text().splitlines(keepends=True)
        entries = {entry.get("msg"): entry for entry in (json.loads(line) for line in lines if line.endswith("\n"))}
        is_ready = "Server is ready to receive web requests." in entries
        return str(entries["Listening on"]["address"]) if is_ready else None

    def _wait_for(self, look: Callable[[], ValueT | None], wanted: str) -> ValueT:
        give_up = time.monotonic() + _WAIT_SECONDS_MAX
        while not (found := look()):
            assert time.monotonic() < give_up, f"no {wanted}; Prometheus: {(self._folder / 'log').read_text()}"
            time.sleep(_POLL_SECONDS)
        return found


def _without_delays(rules: dict[str, Any]) -> dict[str, Any]:
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("for", None)
    return rules
