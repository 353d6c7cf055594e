from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from millrace_spark.landing.bad_lines import dead_letter_options
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.config_file import check_config
from millrace_spark.writing.options import parse_write_options

QUERY = "3f2a91c0-4b7d-4c11-9a55-0123456789ab"


def config(**tables: Mapping[str, Any]) -> LandingConfig:
    source = {"endpoints": ["a:1", "b:2"], "channels": ["web"]}
    target = {"path": "/landed/web"}
    return check_config({"source": source, "target": target, "bad_lines": {"channel": "bad"}, **tables}, "web.toml")


def producer_id(**tables: Mapping[str, Any]) -> str:
    return dead_letter_options(config(**tables), QUERY, 3)["producerId"]


def test_letter_options_have_rising_batch_numbers() -> None:
    """Most batches have no bad lines, so gaps in the numbers must be forgotten."""
    options = dead_letter_options(config(), QUERY, 3)
    assert (options["batchNumber"], options["batchNumbersRise"]) == ("3", "true")
    assert (options["endpoints"], options["channel"]) == ("a:1,b:2", "bad")
    parsed = parse_write_options(options, is_streaming=False)
    assert (parsed.producer_id, parsed.batch_number) == (producer_id(), 3)
    assert parsed.batch_numbers_increase
    over_tls = config(source={"endpoints": ["a:1"], "channels": ["web"], "tls": {"ca": "ca.pem"}, "token_file": "t"})
    assert dead_letter_options(over_tls, QUERY, 3)["tls.ca.file"] == "ca.pem"
    assert dead_letter_options(over_tls, QUERY, 3)["token.file"] == "t"
    assert dead_letter_options(config(bad_lines={"channel": "x", "endpoints": ["c:3"]}), QUERY, 3)["endpoints"] == "c:3"


@pytest.mark.parametrize(
    "tables",
    [
        {"parse": {"type": "access_log"}},
        {"parse": {"type": "text", "line_bytes_max": 7}},
        {"partitions": {"by": ["date"], "time": "landing", "no_time": "bad"}},
        {"spark": {"conf": {"spark.sql.legacy.timeParserPolicy": "LEGACY"}}},
    ],
)
def test_letter_options_where_other_lines_are_bad_have_another_stamp(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Otherwise new bad lines of a repeated batch would be taken for repeats."""
    assert producer_id(**tables) != producer_id()


def test_letter_options_where_the_same_lines_are_bad_have_the_same_stamp() -> None:
    """The letters of a repeated batch are recognised, whatever other settings change."""
    assert producer_id(spark={"conf": {"spark.driver.memory": "4g"}}, run={"follow": True}) == producer_id()


def test_letter_options_follow_the_content_of_a_file_of_columns(tmp_path: Path) -> None:
    """The content of the file decides which lines are bad, not its name."""
    file = tmp_path / "columns.ddl"
    reported = set()
    for columns in ("id bigint", "id int", "id bigint"):
        file.write_text(columns, encoding="utf-8")
        reported.add(producer_id(parse={"type": "json", "columns_file": str(file)}))
    assert len(reported) == 2
