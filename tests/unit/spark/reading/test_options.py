import getpass
import pickle
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from millrace_client import Tls
from millrace_spark import OPTIONS, ClaimedRange, OptionError
from millrace_spark.option_values import Security
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.options import (
    AckMode,
    BatchOptions,
    ClaimOptions,
    PartitionLimits,
    StreamOptions,
    TaskOptions,
    TriggerLimits,
    check_options,
    parse_batch_options,
    parse_stream_options,
    reader_id_of,
)
from millrace_spark.reading.ranges import ranges_to_json

RANGE = ClaimedRange(
    endpoint="a:1",
    channel="orders",
    reader_id="r",
    epoch=3,
    first_sequence=5,
    next_sequence=9,
    lease_seconds=30.0,
    channel_id="id",
    is_held=True,
)


LEAST = {"endpoints": "a:1", "channels": "orders"}
"""The options that must be there."""


def claim(**changes: object) -> ClaimOptions:
    values: dict[str, object] = {
        "endpoints": ("a:1",),
        "channels": ("orders",),
        "reader_id": "somebody",
        "lease_seconds": 5.0,
        "takeover": False,
        "retry_seconds": 120.0,
    }
    return ClaimOptions(**(values | changes))  # type: ignore[arg-type] # the fields, by name


def test_parse_batch_options_with_the_least_takes_defaults() -> None:
    """Only endpoints and channels are required."""
    assert parse_batch_options(LEAST, "somebody") == BatchOptions(
        source=claim(),
        partitions=PartitionLimits(events_max=250_000, count_min=1),
        starting=Bounds("earliest"),
        ending=Bounds("latest"),
        tasks=TaskOptions(fail_on_data_loss=True, retry_seconds=120.0),
    )


def test_parse_stream_options_with_the_least_takes_defaults() -> None:
    """Only endpoints and channels are required; the claiming process chooses the reader id."""
    assert parse_stream_options(LEAST) == StreamOptions(
        claim=claim(reader_id="", lease_seconds=30.0),
        partitions=PartitionLimits(events_max=100_000, count_min=1),
        limits=TriggerLimits(events_max=None, bytes_max=None, events_min=1, delay_seconds_max=900.0),
        starting=Bounds("earliest"),
        ack_mode=AckMode.PROGRESS,
        tasks=TaskOptions(fail_on_data_loss=True, retry_seconds=120.0),
    )


def test_parse_batch_options_with_all_takes_them() -> None:
    """Each option is parsed, whatever the case of its name and the spaces around its value."""
    options = CaseInsensitiveDict(
        {
            "EndPoints": "a:1, [::1]:7070 ,b.example:2",
            "CHANNELS": "orders, audit-*",
            "startingsequences": '{"orders": 7, "audit-1@a:1": "LATEST"}',
            "ENDINGsequences": '{"orders": 9}',
            "readerid": "nightly",
            "LEASEseconds": "12.5",
            "takeOver": "TRUE",
            "maxEventsPerPartition": " 7 ",
            "minPartitions": "3",
            "failOnDataLoss": "False",
            "retrySeconds": "2m",
            "ACK": "Never",
        }
    )
    assert parse_batch_options(options, "somebody") == BatchOptions(
        source=claim(
            endpoints=("a:1", "[::1]:7070", "b.example:2"),
            channels=("orders", "audit-*"),
            reader_id="nightly",
            lease_seconds=12.5,
            takeover=True,
            retry_seconds=120.0,
        ),
        partitions=PartitionLimits(events_max=7, count_min=3),
        starting=Bounds("earliest", {"orders": 7, "audit-1@a:1": "latest"}),
        ending=Bounds("latest", {"orders": 9}),
        tasks=TaskOptions(fail_on_data_loss=False, retry_seconds=120.0),
    )


def test_parse_stream_options_with_limits_takes_them() -> None:
    """The limits of a micro-batch are parsed."""
    options = parse_stream_options(
        LEAST
        | {
            "maxeventspertrigger": "100",
            "maxBytesPerTrigger": "1000",
            "minEventsPerTrigger": "10",
            "maxTriggerDelay": "1500ms",
            "ackMode": "COMMIT",
            "startingSequences": "Latest",
        }
    )
    assert options.limits == TriggerLimits(events_max=100, bytes_max=1_000, events_min=10, delay_seconds_max=1.5)
    assert (options.ack_mode, options.starting) == (AckMode.COMMIT, Bounds("latest"))


@pytest.mark.parametrize("text", ["2026-05-04T03:02:01Z", "2026-05-04T05:02:01.000+02:00", "1777863721000"])
def test_parse_options_with_a_starting_timestamp_takes_it(text: str) -> None:
    """ISO 8601, or milliseconds as in Spark's Kafka source, for batch reads and streams."""
    options = LEAST | {"startingtimestamp": text}
    time = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    assert (parse_batch_options(options, "").starting, parse_stream_options(options).starting) == (time, time)


def test_parse_batch_options_with_ranges_takes_what_was_claimed() -> None:
    """The ranges of `claim_ranges` are parsed without loss."""
    given = {"ranges": ranges_to_json([RANGE]), "maxeventsperpartition": "2", "failOnDataLoss": "false"}
    options = parse_batch_options(given, "somebody")
    assert (options.source, options.partitions.events_max, options.tasks.fail_on_data_loss) == ((RANGE,), 2, False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"channels": "orders"}, "option endpoints: is missing; give servers that hold the channels: host:port"),
        ({"endpoints": "", "channels": "orders"}, "option endpoints: is missing"),
        ({"endpoints": "a:1"}, "option channels: is missing; give channels to read"),
        ({"endpoints": "a:1", "channel": "orders"}, "option channel: is unknown; did you mean channels?"),
        (
            {"endpoints": "a:1", "path": "orders"},
            "option path: does not name channels; call load() and save() ",
        ),
        ({"endpoints": "a:1", "provider": "millrace"}, "option provider: tables in Spark's catalog are not supported"),
        (LEAST | {"tlsCaFile": "x"}, "option tlsCaFile: is unknown; did you mean tls.ca.file?"),
        (LEAST | {"tls.ca.file": ""}, "option tls.ca.file: is ''; it must be the path of a file"),
        (LEAST | {"tls.key.file": "x"}, "option tls.key.file: needs tls.certificate.file; set both, or neither"),
        (
            LEAST | {"TLS.certificate.FILE": "x"},
            "option tls.certificate.file: needs tls.key.file; set both",
        ),
        (LEAST | {"token": "", "tokens": "x"}, "option tokens: is unknown; did you mean token?"),
        (LEAST | {"token": ""}, "option token: is empty, or there is token.file too; set one of them"),
        (LEAST | {"token": "x", "token.file": "y"}, "option token: is empty, or there is token.file too"),
        (LEAST | {"endpoints": "a"}, "option endpoints: 'a' is not host:port, such as 127.0.0.1:7070"),
        (LEAST | {"endpoints": "a:1,"}, "option endpoints: '' is not host:port"),
        (LEAST | {"endpoints": "http://a:1"}, "option endpoints: 'http://a:1' is not host:port"),
        (LEAST | {"endpoints": "a:1,a:1"}, "option endpoints: a:1 is duplicated"),
        (LEAST | {"endpoints": "a:1/b:1,b:1"}, "option endpoints: b:1 is duplicated"),
        (LEAST | {"endpoints": "a:1/"}, "option endpoints: 'a:1/' is not host:port"),
        (LEAST | {"channels": "orders,"}, "option channels: is 'orders,'; it must be names with commas between"),
        (LEAST | {"channels": "orders,orders"}, "option channels: orders is duplicated"),
        (LEAST | {"leaseSeconds": "soon"}, "option leaseSeconds: is 'soon'; it must be a number of seconds above 0"),
        (LEAST | {"leaseSeconds": "-1"}, "option leaseSeconds: is '-1'; it must be a"),
        (LEAST | {"leaseSeconds": "0"}, "option leaseSeconds: is '0'; it must be a"),
        (LEAST | {"leaseSeconds": "nan"}, "option leaseSeconds: is 'nan'; it must be a"),
        (LEAST | {"leaseSeconds": "2h"}, "option leaseSeconds: is '2h'; it must be at most 3,600 seconds"),
        (LEAST | {"retrySeconds": "2d"}, "option retrySeconds: is '2d'; it must be at most 86,400 seconds"),
        (LEAST | {"takeover": "yes"}, "is 'yes'; it must be true or false"),
        (LEAST | {"maxEventsPerPartition": "0"}, "is '0'; it must be a whole number"),
        (LEAST | {"maxEventsPerPartition": "1e3"}, "is '1e3'; it must be a whole number"),
        (LEAST | {"startingSequences": "first"}, "is 'first'; it must be earliest, latest, or JSON such as"),
        (LEAST | {"startingSequences": '{"orders": 0}'}, "it must be earliest, latest, or JSON such as"),
        (LEAST | {"startingSequences": '{"orders": true}'}, "it must be earliest, latest, or JSON such as"),
        (LEAST | {"startingSequences": "[7]"}, "it must be earliest, latest, or JSON such as"),
        (
            LEAST | {"startingTimestamp": "yesterday"},
            "is 'yesterday'; it must be a time in ISO 8601 with a zone, such",
        ),
        (LEAST | {"startingTimestamp": "2026-05-04T03:02:01"}, "it must be a time in ISO 8601 with a zone, such as"),
        (
            LEAST | {"startingTimestamp": "0001-01-01T00:00:00+01:00"},
            "it must be a time in ISO 8601 with a zone, such as",
        ),
        (LEAST | {"startingTimestamp": "9" * 30}, "it must be a time in ISO 8601 with a zone, such as"),
        (
            LEAST | {"startingTimestamp": "0", "startingSequences": "latest"},
            "option startingTimestamp: excludes startingSequences; remove one of them",
        ),
        (LEAST | {"endingSequences": "earliest"}, "option endingSequences: is 'earliest'; it must be latest, or JSON"),
        (LEAST | {"ack": "always"}, "option ack: is 'always'; it must be never or onSuccess"),
        (LEAST | {"ack": "onSuccess"}, "with millrace_spark.claim_ranges(..., ack='onSuccess') as claimed:"),
        (
            {"ranges": "[]", "channels": "orders"},
            "option ranges: names ranges that are already claimed; remove channels",
        ),
        ({"ranges": "{"}, "option ranges: is not a result of millrace_spark.claim_ranges()"),
        ({"ranges": '[{"endpoint": "a:1"}]'}, "option ranges: is not a result of millrace_spark.claim_ranges()"),
        ({"ranges": "7"}, "option ranges: is not a result of millrace_spark.claim_ranges()"),
        (LEAST | {"ackMode": "soon"}, "option ackMode: is 'soon'; it must be progress or commit or never"),
        (LEAST | {"maxTriggerDelay": "5s"}, "option maxTriggerDelay: needs minEventsPerTrigger"),
        (
            LEAST | {"minEventsPerTrigger": "5", "maxEventsPerTrigger": "4"},
            "option minEventsPerTrigger: is 5, above maxEventsPerTrigger, which is 4; make it no larger",
        ),
    ],
)
def test_check_options_that_are_not_allowed_is_refused(options: dict[str, str], sentence: str) -> None:
    """The error names the option, its value and the allowed values."""
    with pytest.raises(OptionError) as refused:
        check_options(options)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_document_each_option() -> None:
    """The documented options are exactly the supported ones."""
    for name in OPTIONS:
        with pytest.raises(OptionError) as refused:
            check_options({name: "?"})
        assert "unknown" not in str(refused.value)


def test_options_document_streams_and_batch_reads() -> None:
    """Options for streams only or batch reads only say so, and are refused elsewhere."""
    for name, text in OPTIONS.items():
        is_stream_only, is_batch_only = text.startswith("streams: "), text.startswith("batch: ")
        for is_refused, parse in (
            (is_stream_only, lambda options: parse_batch_options(options, "somebody")),
            (is_batch_only, parse_stream_options),
        ):
            try:
                parse(LEAST | {name: "?"})
            except OptionError as error:
                reported = str(error)
            else:
                reported = ""
            assert ("is for streams" in reported or "is for batch reads" in reported) == is_refused, name


def test_security_options_reach_tasks_as_paths() -> None:
    """Reads and streams are planned, pickled and shown with paths, never with contents; a token itself is not shown."""
    tls = Tls(ca="/ca.pem", certificate="/c.pem", private_key="/c.key")
    files = {
        "tls.ca.file": " /ca.pem ",
        "TLS.Certificate.File": "/c.pem",
        "tls.key.file": "/c.key",
        "token.file": "/token",
    }
    batch = parse_batch_options(LEAST | files, "somebody")
    assert pickle.loads(pickle.dumps(batch)) == batch  # noqa: S301 - made here
    security = Security(tls=tls, token_file="/token")  # noqa: S106 - a path
    assert (batch.tasks.security, batch.source) == (security, claim(security=security))
    assert parse_stream_options(LEAST | files).claim.security == security
    assert parse_batch_options(LEAST | {"tls.ca.file": "/ca.pem"}, "").tasks.security == Security(tls=Tls(ca="/ca.pem"))
    assert parse_batch_options({"ranges": ranges_to_json([RANGE]), **files}, "").tasks.security == security
    kept = parse_batch_options(LEAST | {"Token": "secret"}, "")
    assert (kept.tasks.security.token, "secret" in repr(kept)) == ("secret", False)


def test_servers_that_share_channels_are_one_endpoint_with_the_name_of_the_first() -> None:
    """A query's checkpoint stays valid when others are added, and claimed ranges are read from any of them."""
    claim = parse_stream_options(LEAST | {"endpoints": "a:1 / b:1,c:1"}).claim
    assert claim.endpoints == ("a:1", "c:1")
    with claim.security.connect("a:1") as shared, claim.security.connect("c:1") as alone:
        assert (shared.endpoint, alone.endpoint) == ("a:1,b:1", "c:1")
    options = {"ranges": ranges_to_json([RANGE]), **claim.security.options}
    assert parse_batch_options(options, "").tasks.security == claim.security


def test_readme_documents_each_option() -> None:
    """The README's table is that of `OPTIONS`."""
    readme = (Path(__file__).resolve().parents[4] / "spark_connector" / "README.md").read_text()
    section = readme.partition("## Options of reading")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
    assert {name: text.replace("`", "") for name, text in rows} == dict(OPTIONS)


def test_reader_id_names_user_machine_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default reader id identifies the process that holds a claim."""
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    monkeypatch.setattr(platform, "node", lambda: "mill-1")
    assert reader_id_of(42) == "spark-ann@mill-1-42"


def test_reader_id_of_a_user_without_name_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers, a user id may have no name."""

    def fail() -> str:
        raise KeyError("uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", fail)
    assert reader_id_of(42).startswith("spark-unknown@")


def test_reader_id_of_odd_names_is_allowed_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id has 1 to 128 printable ASCII characters and ends with the process id."""
    monkeypatch.setattr(getpass, "getuser", lambda: "jörg müller")
    monkeypatch.setattr(platform, "node", lambda: "h" * 300)
    reader_id = reader_id_of(42)
    assert reader_id.endswith("h-42")
    assert len(reader_id) == 128
    monkeypatch.setattr(platform, "node", lambda: "h")
    assert reader_id_of(42) == "spark-j_rg_m_ller@h-42"
