"""The metrics of a server: their names, types and documentation, and their values against what clients did."""

import json
import re
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

import millrace_client as millrace
from millrace_client import Tls
from tests import certificates
from tests.access_site import WAIT_SECONDS_MAX, Site
from tests.millraced import Millraced
from tests.unit.repository.checkout import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()
EVERYTHING = ["*:*"]
Labels = tuple[tuple[str, str], ...]


class Watched:
    """A server with tokens, a quota and TLS, its clients, and what it says in its metrics."""

    def __init__(self, folder: Path) -> None:
        tls_files = certificates.Site(folder / "tls")
        self.site = Site(folder, dict.fromkeys(("boss", "slow", "beginner"), EVERYTHING))
        self.site.quotas = {
            "slow": "bytes_per_second = 1, read_bytes_per_second = 1_000_000",
            "beginner": "open_transactions = 1",
        }
        self.site.further_toml = tls_files.toml(requires_certificates=False).splitlines()[0]
        self.tls = Tls(ca=tls_files.ca)
        config, data_dir = folder / "millrace.toml", folder / "data"
        tiers = '[channels.tiers]\ntype = "spillable"\ncapacity = 4\nmemory_capacity = 2\nkeep_alive_seconds = 0.0\n'
        config.write_text(self.site.toml() + tiers)
        free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        self.server = Millraced(("--config", str(config), "--data-dir", str(data_dir), *free_ports), data_dir)

    def client(self, identity: str = "boss") -> millrace.Client:
        return millrace.connect(self.server.grpc, tls=self.tls, token=self.site.tokens[identity])

    def text(self, accept: str = "text/plain") -> str:
        headers = {"Authorization": f"Bearer {self.site.tokens['boss']}", "Accept": accept}
        asked = urllib.request.Request(f"https://{self.server.http}/metrics", headers=headers)
        context = ssl.create_default_context(cafile=str(self.tls.ca))
        with urllib.request.urlopen(  # noqa: S310 - our own server
            asked, timeout=WAIT_SECONDS_MAX, context=context
        ) as response:
            return str(response.read().decode())

    def families(self) -> list[Metric]:
        return list(text_string_to_metric_families(self.text()))

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name with these labels."""
        return sum(
            sample.value
            for family in self.families()
            for sample in family.samples
            if sample.name == name and sample.labels.items() >= labels.items()
        )


def promtool(*arguments: str, text: str = "") -> int:
    """Runs promtool; returns its exit code, and shows what it says if the test fails."""
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; it is in Debian's package prometheus")
    ended = subprocess.run([program, *arguments], input=text, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    return ended.returncode


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(tmp_path_factory.mktemp("watched"))
    yield watched
    watched.server.kill()


def test_metrics_of_commits_and_queue_times_are_the_clients_account(watched: Watched) -> None:
    """Under concurrent appends and deliveries, each commit, call and consumed event is counted once."""
    append_count, events_each = 60, 5
    count = append_count * events_each

    def append(_number: int) -> None:
        with watched.client() as client:
            client.channel("orders").append([b"body"] * events_each)

    value = watched.value
    with ThreadPoolExecutor(4) as threads, watched.client() as client:
        list(threads.map(append, range(append_count)))
        deliveries, consumed = 0, 0
        with client.channel("orders").consume(max_events=70) as stream:
            for delivery in stream:
                deliveries, consumed = deliveries + 1, consumed + sum(batch.count for batch in delivery.batches)
                delivery.ack()
                if consumed == count:
                    break
    assert value("millrace_channel_put_successes_total", channel="orders") == count
    assert value("millrace_channel_take_successes_total", channel="orders") == count
    assert value("millrace_rpc_duration_seconds_count", method="Append", code="OK") == append_count
    assert value("millrace_queue_duration_seconds_count", type="file") == count
    commits = value("millrace_commit_duration_seconds_count", type="file")
    assert commits == append_count + deliveries
    assert value("millrace_log_group_commits_count") <= value("millrace_log_group_commits_sum")
    assert value("millrace_log_group_commits_sum") >= commits
    assert value("millrace_log_sync_duration_seconds_count") > 0


def test_metrics_of_a_stream_count_the_batches_of_its_producer(watched: Watched) -> None:
    """Each append of the stream is timed."""
    stored = partial(watched.value, "millrace_channel_put_successes_total", channel="orders")
    token, before = watched.site.tokens["boss"], stored()
    with millrace.Producer(watched.server.grpc, channel="orders", tls=watched.tls, token=token) as producer:
        sent = [producer.send(b"%d" % number) for number in range(500)]
        for one in sent:
            one.result(WAIT_SECONDS_MAX)
        metrics = producer.metrics()
    assert stored() - before == metrics.events_stored == len(sent)
    assert watched.value("millrace_stream_append_duration_seconds_count", code="OK") == metrics.batches_stored


def test_metrics_of_refusals_are_the_errors_of_the_clients(watched: Watched) -> None:
    """Each reason is counted, at its channel and its identity too."""
    refused = []
    with watched.client() as boss, watched.client("slow") as slow:
        for client, name, bodies in (
            (boss, "tiers", [b"a"] * 4),
            (boss, "tiers", [b"b"]),
            (boss, "missing", [b"c"]),
            (slow, "tiers", [b"d" * 1_000]),
            (slow, "tiers", [b"e"]),
        ):
            try:
                client.channel(name).append(bodies)
            except millrace.MillraceError as error:
                refused.append(error.reason)
    assert sorted(set(refused)) == ["CHANNEL_FULL", "CHANNEL_NOT_FOUND", "QUOTA_EXCEEDED"]
    for reason in ("CHANNEL_FULL", "CHANNEL_NOT_FOUND", "QUOTA_EXCEEDED"):
        assert watched.value("millrace_refusals_total", reason=reason) == refused.count(reason)
    full = {"channel": "tiers", "reason": "CHANNEL_FULL"}
    assert watched.value("millrace_channel_refusals_total", **full) == refused.count("CHANNEL_FULL")
    quota = {"identity": "slow", "quota": "bytes_per_second"}
    assert watched.value("millrace_quota_refusals_total", **quota) == refused.count("QUOTA_EXCEEDED")
    assert watched.value("millrace_quota_bytes_per_second_max", **quota) == 1
    assert watched.value("millrace_quota_bytes_total", **quota) > 0
    assert watched.value("millrace_rpc_duration_seconds_count", method="Append", code="NOT_FOUND") == 1
    assert watched.value("millrace_channel_time_to_full_seconds", channel="tiers") == 0


def test_metrics_of_open_transactions_are_those_of_the_client(watched: Watched) -> None:
    """Those of an identity with a quota, and how many it refused."""
    beginner = {"identity": "beginner"}
    with watched.client("beginner") as client:
        transaction = client.channel("other").transaction().begin()
        with pytest.raises(millrace.QuotaExceededError):
            client.channel("other").transaction().begin()
        assert watched.value("millrace_quota_open_transactions", **beginner) == 1
        assert watched.value("millrace_channel_open_transactions", channel="other") == 1
        transaction.rollback()
    assert watched.value("millrace_quota_open_transactions", **beginner) == 0
    assert watched.value("millrace_quota_open_transactions_max", **beginner) == 1
    assert watched.value("millrace_quota_refusals_total", **beginner, quota="open_transactions") == 1


def test_histograms_add_up(watched: Watched) -> None:
    """The buckets of each series ascend, and the last one has all observations."""
    for family in watched.families():
        if family.type != "histogram":
            continue
        buckets: dict[Labels, list[float]] = {}
        counts: dict[Labels, float] = {}
        for sample in family.samples:
            labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
            if sample.name.endswith("_bucket"):
                buckets.setdefault(labels, []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        assert counts, family.name
        assert {labels: values[-1] for labels, values in buckets.items()} == counts
        assert all(values == sorted(values) for values in buckets.values())


def test_formats_tell_the_same_metrics(watched: Watched) -> None:
    """OpenMetrics has the names and types of Prometheus' text."""
    text = watched.text("application/openmetrics-text; version=1.0.0")
    found = {family.name: family.type for family in open_families(text)}  # type: ignore[no-untyped-call] # the library's
    plain = {family.name: family.type for family in watched.families()}
    assert {name for name in found if name.startswith("millrace_")} == {
        name.removesuffix("_info") for name in plain if name.startswith("millrace_")
    }


def test_metrics_follow_the_rules_of_promtool(watched: Watched) -> None:
    """Names, types, units and help texts pass its checks."""
    assert promtool("check", "metrics", text=watched.text()) == 0


def test_queries_of_the_page_are_valid(tmp_path: Path) -> None:
    """They are in PromQL, and about metrics that exist."""
    [queries] = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
    expressions = [line for line in queries.splitlines() if line and not line.startswith("#")]
    rules = [{"record": f"query:{number}", "expr": text} for number, text in enumerate(expressions)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}))
    assert promtool("check", "rules", str(tmp_path / "rules.yaml")) == 0
    table = PAGE.replace(queries, "")
    for name in set(re.findall(r"millrace_\w+", queries)):
        assert f"`{re.sub('_(bucket|sum|count)$', '', name)}`" in table


def test_page_lists_every_metric_with_its_type_and_labels(watched: Watched) -> None:
    """docs/metrics.md has all metrics of a server, and no others."""
    rows = re.findall(r"^\| `(millrace_\w+)` \| (\w+) \|([^|]*)\| (.+) \|$", PAGE, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    families = {
        f"{family.name}{'_total' * (family.type == 'counter')}": family
        for family in watched.families()
        if family.name.startswith("millrace_")
    }
    assert documented.keys() == families.keys()
    assert len(rows) == len(documented)
    for name, family in families.items():
        kind, labels = documented[name]
        assert kind == family.type, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, name
