"""The tutorial and the guides that need Spark, followed by a reader from their first block to their last."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.guide_reader import GuideReader
from tests.unit.repository.checkout import ROOT

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["tutorial.md", "how_to/read_with_spark.md"])
def test_guide_followed_with_spark_does_what_it_says(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """Every block works after the one before it, and prints what the page shows."""
    GuideReader(tmp_path, spark).follow(ROOT / "docs" / name)
