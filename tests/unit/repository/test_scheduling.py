"""The tests that run on one worker together."""

import pytest

from tests.scheduling import uses_shared_spark


@pytest.mark.parametrize(
    ("file", "is_sharing"),
    [
        ("tests/integration/test_spark_reader.py", True),
        ("tests/integration/test_main_job_rounds.py", True),
        ("tests/integration/test_rpc_consume.py", False),
        ("tests/unit/spark/test_options.py", False),
    ],
)
def test_uses_shared_spark_tells_files_with_the_fixture(file: str, *, is_sharing: bool) -> None:
    """With a missed file, a second worker would start another Spark."""
    assert uses_shared_spark(f"{file}::test_it[a]") is is_sharing
