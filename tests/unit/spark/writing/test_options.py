import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from millrace_client import Tls
from millrace_spark import OptionError
from millrace_spark.option_values import Security
from millrace_spark.writing.options import WRITE_OPTIONS, WriteOptions, WriteRouting, parse_write_options
from millrace_spark.writing.schema import options_for

LEAST = {"endpoints": "b:1,a:1", "channel": "orders"}


def parsed(options: dict[str, str], *, is_streaming: bool = False) -> WriteOptions:
    return parse_write_options(LEAST | options, is_streaming=is_streaming)


def test_parse_write_options_with_the_least_takes_defaults() -> None:
    """Only endpoints are required, and their order has no meaning."""
    assert parse_write_options({"endpoints": "b:1, a:1"}, is_streaming=True) == WriteOptions(
        endpoints=("a:1", "b:1"),
        channel="",
        producer_id="",
        batch_number=0,
        batch_numbers_increase=True,
        routing=None,
        lease_seconds=600.0,
        retry_seconds=120.0,
    )


def test_parse_write_options_with_all_takes_them() -> None:
    """Each option is parsed, whatever the case of its name and the spaces around its value."""
    options = CaseInsensitiveDict(
        {
            "ENDPOINTS": "a:1",
            "Channel": " orders ",
            "producerid": "nightly",
            "BatchNumber": "0",
            "batchnumbersrise": "True",
            "ROUTING": "roundrobin",
            "leaseSeconds": "10m",
            "retryseconds": "7",
            "TLS.CA.FILE": "/ca.pem",
            "Token": "secret",
        }
    )
    assert parse_write_options(options, is_streaming=False) == WriteOptions(
        endpoints=("a:1",),
        channel="orders",
        producer_id="nightly",
        batch_number=0,
        batch_numbers_increase=True,
        routing=WriteRouting.ROUND_ROBIN,
        lease_seconds=600.0,
        retry_seconds=7.0,
        security=Security(tls=Tls(ca="/ca.pem"), token="secret"),  # noqa: S106 - of a test
    )


def test_parse_write_options_of_a_save_lets_lower_numbers_come() -> None:
    """Saves with explicit numbers may come in any order by default."""
    assert not parsed({"producerId": "x", "batchNumber": "7"}).batch_numbers_increase


def test_parse_write_options_of_a_stream_leaves_spark_s_own_out() -> None:
    """Spark's own options are ignored."""
    of_spark = {"checkpointlocation": "/x", "queryName": "q", "asyncProgressTrackingEnabled": "false"}
    assert parsed(of_spark, is_streaming=True) == parsed({}, is_streaming=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endpoints": ""}, "option endpoints: is missing; give servers that hold the channels"),
        ({"endpoints": "a"}, "option endpoints: 'a' is not host:port"),
        ({"channels": "orders"}, r"option channels: is for reading; did you mean channel\?"),
        (
            {"readerId": "x"},
            "option readerId: is for reading; the options of writing are endpoints, channel, producer",
        ),
        ({"producer": "x"}, r"option producer: is unknown; did you mean producerId\?"),
        ({"producerId": "a b"}, "option producerId: is 'a b'; it must be 1 to 100 printable ASCII characters"),
        ({"producerId": "x" * 101}, "option producerId: is .*; it must be 1 to 100 printable"),
        ({"batchNumber": "1"}, "option batchNumber: needs producerId; set both"),
        ({"producerId": "x", "batchNumber": "-1"}, "option batchNumber: is '-1'; it must be a whole number from 0 on"),
        ({"producerId": "x", "batchNumbersRise": "true"}, "option batchNumbersRise: needs batchNumber; set"),
        (
            {"producerId": "x", "batchNumber": "1", "batchNumbersRise": "yes"},
            "option batchNumbersRise: is 'yes'; it must be true or false",
        ),
        ({"routing": "random"}, "option routing: is 'random'; it must be key or roundRobin"),
        ({"leaseSeconds": "2h"}, "option leaseSeconds: is '2h'; it must be at most 3,600 seconds"),
        ({"retrySeconds": "2d"}, "option retrySeconds: is '2d'; it must be at most 86,400 seconds, which is a day"),
        ({"retrySeconds": "0"}, "option retrySeconds: is '0'; it must be a number of seconds above 0"),
        ({"path": "/x"}, "path '/x': is not supported; name the servers by the option endpoints"),
        ({"checkpointLocation": "/x"}, "option checkpointLocation: is unknown"),
    ],
)
def test_parse_write_options_that_are_wrong_says_why(options: dict[str, str], sentence: str) -> None:
    """The error names the option, its value and the allowed values."""
    with pytest.raises(OptionError, match=f"^{sentence}"):
        parsed(options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"producerId": "x", "batchNumber": "1"}, "option batchNumber: is for batch saves; remove it"),
        ({"batchNumbersRise": "true"}, "option batchNumbersRise: is for batch saves; remove it"),
        ({"asyncProgressTrackingEnabled": "true"}, "option asyncProgressTrackingEnabled: is true; Spark may"),
    ],
)
def test_parse_write_options_wrong_for_a_stream_says_why(options: dict[str, str], sentence: str) -> None:
    """Options that would break exactly-once streams are refused."""
    with pytest.raises(OptionError, match=f"^{sentence}"):
        parsed(options, is_streaming=True)


# Columns.

TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "headers": MapType(StringType(), StringType()),
    "counts": MapType(StringType(), IntegerType()),
    "struct": StructType([StructField("a", IntegerType())]),
}


def routing_of(columns: str, options: dict[str, str]) -> WriteRouting | None:
    """Returns the routing for columns such as `body:binary key:string`."""
    fields = [StructField(name, TYPES[kind]) for name, kind in (column.split(":") for column in columns.split())]
    return options_for(StructType(fields), parsed(options)).routing


@pytest.mark.parametrize(
    ("columns", "options", "routing"),
    [
        ("body:binary", {}, WriteRouting.ROUND_ROBIN),
        ("Body:string HEADERS:headers key:binary", {}, WriteRouting.KEY),
        ("body:string key:string", {"routing": "roundRobin"}, WriteRouting.ROUND_ROBIN),
        ("channel:string endpoint:string sequence:bigint headers:headers body:binary", {}, None),
    ],
)
def test_options_for_good_columns_choose_the_routing(
    columns: str, options: dict[str, str], routing: WriteRouting | None
) -> None:
    """The column key decides by default, and all columns of a read can be written."""
    assert routing_of(columns, options) == (routing or WriteRouting.ROUND_ROBIN)


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("value:string", {}, "column value: has no place in an event; remove it with drop"),
        ("headers:headers", {}, r"column body: is missing; name the column to store with alias\('body'\)"),
        ("body:string BODY:string", {}, "column BODY: is duplicated"),
        ("body:struct", {}, "column body: is struct<a:int>; it must be binary or string; cast it"),
        (
            "body:string headers:counts",
            {},
            "column headers: is map<string,int>; it must be map<string,string>",
        ),
        ("body:string key:int", {}, "column key: is int; it must be string or binary; cast it to string"),
        ("body:string channel:int", {}, "column channel: is int; it must be string"),
        ("body:string", {"channel": ""}, "option channel: is missing, and there is no column channel; set one of them"),
        ("body:string", {"routing": "key"}, "option routing: is key, but there is no column key"),
    ],
)
def test_options_for_wrong_columns_say_why(columns: str, options: dict[str, str], sentence: str) -> None:
    """The error names the column, its type and the allowed types."""
    with pytest.raises(OptionError, match=f"^{sentence}"):
        routing_of(columns, options)


def test_readme_documents_each_write_option() -> None:
    """The README's table is that of `WRITE_OPTIONS`."""
    readme = (Path(__file__).resolve().parents[4] / "spark_connector" / "README.md").read_text()
    section = readme.partition("### Options of writing")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
    assert {name: text.replace("`", "") for name, text in rows} == dict(WRITE_OPTIONS)
