"""Generates the committed Python code of the wire contract.

`python tools/generate_protos.py` writes it; `--check` fails if the committed code is stale. The generator is the
version of grpcio-tools in the locked requirements, so that all machines generate the same bytes.

The wire uses google.rpc.Status. The client must not need googleapis-common-protos for that one message, so the two
files of google.rpc are generated too, under `millrace.googleapis`, which gives way to the real package if that is
installed; see its docstring.
"""

import argparse
import filecmp
import re
import sys
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
THIRD_PARTY = ROOT / "third_party" / "googleapis"

FOLDERS = {
    Path("millrace/v1"): Path("client/src/millrace/v1"),
    Path("storage/v1"): Path("server/src/millrace_server/storage/v1"),
    Path("google/rpc"): Path("client/src/millrace/googleapis/rpc"),
}
"""The directory of a package in protoc's output, and in the repository."""

_GOOGLE_RPC_IMPORT = re.compile(r"^from google\.rpc import", re.MULTILINE)


def generate(root: Path) -> None:
    """Writes the generated code below a folder that stands for the repository."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        _run_protoc(out, PROTOS.rglob("*.proto"), "python", "pyi")
        _run_protoc(out, PROTOS.rglob("*_service.proto"), "grpc_python")
        _run_protoc(out, THIRD_PARTY.rglob("*.proto"), "python", "pyi")
        for made, committed in FOLDERS.items():
            _install(out / made, root / committed)


def _run_protoc(out: Path, sources: Iterable[Path], *plugins: str) -> None:
    arguments = [
        "protoc",
        f"--proto_path={PROTOS}",
        f"--proto_path={THIRD_PARTY}",
        f"--proto_path={resources.files('grpc_tools') / '_proto'}",
        *(f"--{plugin}_out={out}" for plugin in plugins),
        *sorted(map(str, sources)),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


def _install(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for generated in sorted(source.iterdir()):
        text = generated.read_text()
        text = _GOOGLE_RPC_IMPORT.sub("from millrace.googleapis import", text)
        (target / generated.name).write_text(text)


def _stale_files() -> list[Path]:
    """The files that generating again would change, add or remove."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        names = _generated_files(fresh) | _generated_files(ROOT)
        return sorted(
            name
            for name in names
            if not (fresh / name).exists()
            or not (ROOT / name).exists()
            or not filecmp.cmp(fresh / name, ROOT / name, shallow=False)
        )


def _generated_files(root: Path) -> set[Path]:
    paths = (path for folder in FOLDERS.values() for path in (root / folder).glob("*_pb2*"))
    return {path.relative_to(root) for path in paths if path.suffix in {".py", ".pyi"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the committed code is stale")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    if stale := _stale_files():
        sys.exit("stale generated code, run `make proto`: " + ", ".join(map(str, stale)))


if __name__ == "__main__":
    main()
