"""The tool that generates code; `make lint` checks that the committed code is up to date."""

import filecmp
from pathlib import Path

from tests.unit.repository.checkout import ROOT
from tools import generate_protos


def test_generate_into_an_empty_folder_makes_services_and_messages(tmp_path: Path) -> None:
    """The generated code does not depend on existing files."""
    generate_protos.generate(tmp_path)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*")}
    assert Path("client/src/millrace/v1/channel_service_pb2_grpc.py") in made
    assert Path("client/src/millrace/googleapis/rpc/status_pb2.pyi") in made
    assert all(filecmp.cmp(tmp_path / path, ROOT / path, shallow=False) for path in made)
