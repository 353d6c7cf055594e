import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from millrace_spark import OPTIONS, ClaimedRange, OptionError
from millrace_spark.options import EVENTS_PER_PARTITION, ClaimOptions, ReadOptions, parse_options
from millrace_spark.ranges import ranges_to_json

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


def parsed(**options: str) -> ReadOptions:
    return parse_options(options, default_reader_id="somebody")


def test_parse_options_with_the_least_takes_defaults() -> None:
    """Endpoints and channel are enough."""
    assert parsed(endpoints="a:1", channel="orders") == ReadOptions(
        source=ClaimOptions(
            endpoints=("a:1",), channel="orders", reader_id="somebody", lease_seconds=5.0, takeover=False
        ),
        events_per_partition_max=EVENTS_PER_PARTITION,
    )


def test_parse_options_with_all_takes_them() -> None:
    """Each option arrives, whatever the case of its name and the spaces around its value."""
    options = CaseInsensitiveDict(
        {
            "EndPoints": "a:1, [::1]:7070 ,b.example:2",
            "CHANNEL": "orders",
            "readerid": "nightly",
            "LEASEseconds": "12.5",
            "takeOver": "TRUE",
            "maxEventsPerPartition": " 7 ",
        }
    )
    assert parse_options(options, default_reader_id="somebody") == ReadOptions(
        source=ClaimOptions(
            endpoints=("a:1", "[::1]:7070", "b.example:2"),
            channel="orders",
            reader_id="nightly",
            lease_seconds=12.5,
            takeover=True,
        ),
        events_per_partition_max=7,
    )


def test_parse_options_with_ranges_takes_what_was_claimed() -> None:
    """What `claim_ranges` gave comes back whole."""
    assert parsed(ranges=ranges_to_json([RANGE]), maxeventsperpartition="2") == ReadOptions(
        source=(RANGE,), events_per_partition_max=2
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"channel": "orders"}, "option endpoints: is missing; give servers that hold the channel: host:port"),
        ({"endpoints": "", "channel": "orders"}, "option endpoints: is missing"),
        ({"endpoints": "a:1"}, "option channel: is missing; give the channel's name"),
        ({"endpoints": "a:1", "chanel": "orders"}, "option chanel: is unknown; did you mean channel?"),
        ({"endpoints": "a:1", "path": "orders"}, "option path: is unknown; the options are endpoints, channel,"),
        ({"endpoints": "a", "channel": "orders"}, "option endpoints: 'a' is no host:port such as 127.0.0.1:7070"),
        ({"endpoints": "a:1,", "channel": "orders"}, "option endpoints: '' is no host:port"),
        ({"endpoints": "http://a:1", "channel": "orders"}, "option endpoints: 'http://a:1' is no host:port"),
        ({"endpoints": "a:1,a:1", "channel": "orders"}, "option endpoints: a:1 comes twice"),
        ({"endpoints": "a:1", "channel": "o", "leaseSeconds": "soon"}, "option leaseSeconds: is 'soon'; it must be a"),
        ({"endpoints": "a:1", "channel": "o", "leaseSeconds": "-1"}, "option leaseSeconds: is '-1'; it must be a"),
        ({"endpoints": "a:1", "channel": "o", "leaseSeconds": "nan"}, "option leaseSeconds: is 'nan'; it must be a"),
        (
            {"endpoints": "a:1", "channel": "o", "takeover": "yes"},
            "is 'yes'; it must be true or false",
        ),
        (
            {"endpoints": "a:1", "channel": "o", "maxEventsPerPartition": "0"},
            "is '0'; it must be a whole number",
        ),
        ({"endpoints": "a:1", "channel": "o", "maxEventsPerPartition": "1e3"}, "is '1e3'; it must be a whole number"),
        ({"ranges": "[]", "channel": "orders"}, "option ranges: says what was claimed already; leave out channel"),
        ({"ranges": "{"}, "option ranges: is not what millrace_spark.claim_ranges() gives"),
        ({"ranges": '[{"endpoint": "a:1"}]'}, "option ranges: is not what millrace_spark.claim_ranges() gives"),
        ({"ranges": "7"}, "option ranges: is not what millrace_spark.claim_ranges() gives"),
    ],
)
def test_parse_options_that_are_not_allowed_is_refused(options: dict[str, str], sentence: str) -> None:
    """The sentence names the option, what it was, and what is allowed."""
    with pytest.raises(OptionError) as refused:
        parsed(**options)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_tell_of_each_option() -> None:
    """What is documented is what is understood."""
    for name in OPTIONS:
        with pytest.raises(OptionError) as refused:
            parsed(**{name: "?"})
        assert "unknown" not in str(refused.value)


def test_readme_tells_of_each_option() -> None:
    """The README's table is the one that `OPTIONS` holds."""
    readme = (Path(__file__).resolve().parents[3] / "spark_connector" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", readme.partition("## Options")[2], re.MULTILINE)
    assert {name: text.replace("`", "") for name, text in rows} == {
        name: text.replace("millrace_spark.", "") for name, text in OPTIONS.items()
    }
