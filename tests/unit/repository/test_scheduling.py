"""The tests that run on one worker together."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import scheduling
from tests.scheduling import import_share, uses_shared_spark
from tests.unit.repository.checkout import ROOT


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


def test_import_share_of_all_workers_imports_each_module_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares have about the same size, and a module that cannot be imported keeps no other from it."""
    folder, other = ROOT / "tests" / "unit" / "wal", ROOT / "tests" / "unit" / "repository" / "test_alerts.py"
    imported: list[str] = []

    def fail_to_import(name: str) -> None:
        imported.append(name)
        raise ImportError(name)

    monkeypatch.setattr(scheduling, "import_module", fail_to_import)
    sizes = []
    for number in range(3):
        before = len(imported)
        given = {"workerid": f"gw{number}", "workercount": 3}
        config: Any = SimpleNamespace(args=[str(folder), f"{other}::test_some[a::b]"], workerinput=given)
        import_share(config)
        sizes.append(len(imported) - before)
    files = [path.stem for path in folder.rglob("test_*.py")]
    wanted = [f"tests.unit.wal.{name}" for name in files] + ["tests.unit.repository.test_alerts"]
    assert sorted(imported) == sorted(wanted)
    assert max(sizes) - min(sizes) <= 1
