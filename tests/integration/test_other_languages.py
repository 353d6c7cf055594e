"""The examples in other languages, compiled and run against a server."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import millrace_client as millrace
from tests.millraced import Millraced
from tests.unit.repository.checkout import ROOT

EXAMPLES = ROOT / "examples" / "languages"
PROTO_PATHS = (ROOT / "protos", ROOT / "third_party" / "googleapis")
PROTOS = ("millrace/v1/event.proto", "millrace/v1/channel_service.proto")
GO_PACKAGES = Path("/usr/share/gocode")
JARS = Path("/usr/share/java")

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command in the test's directory, and returns what it prints."""

    def run_here(*command: str | Path, **environment: str) -> str:
        program = shutil.which(command[0])
        if program is None:
            pytest.skip(f"needs {command[0]}")
        variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment}
        done = subprocess.run(
            [program, *command[1:]], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr, done.stdout)
        return done.stdout

    return run_here


def _check_twice(server: Millraced, language: str, run_example: Callable[[], str]) -> None:
    """The first run stores and takes an event; the second recognizes that it was stored, and finds none."""
    with millrace.connect(server.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(type=millrace.ChannelType.FILE, capacity=1_000))
        assert run_example().splitlines() == ["stored as 1", f"{language} hello"]
        client.channel("orders").append([millrace.Event(b"hello", {"language": "another"})])
        assert run_example().splitlines() == ["was there already", "another hello"]


def test_example_in_typescript_appends_and_takes(run: Run, millraced: Millraced, tmp_path: Path) -> None:
    """It compiles without errors, against the packages that its lock file names."""
    for name in ("append_and_take.ts", "package.json", "package-lock.json", "tsconfig.json"):
        shutil.copy(EXAMPLES / name, tmp_path)
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", npm_config_cache=_npm_cache())
    run("node", "node_modules/typescript/bin/tsc")
    _check_twice(
        millraced, "TypeScript", lambda: run("node", "append_and_take.js", millraced.grpc, "orders", *PROTO_PATHS)
    )


def _npm_cache() -> str:
    """Where npm keeps packages, so that they need not be fetched with each run."""
    return str(Path.home() / ".npm")


@pytest.mark.torture
def test_example_in_go_appends_and_takes(run: Run, millraced: Millraced, tmp_path: Path) -> None:
    """It compiles with Debian's packages golang-google-grpc-dev, golang-google-protobuf-dev and protoc-gen-go-grpc."""
    if not (GO_PACKAGES / "src/google.golang.org/grpc").is_dir():
        pytest.skip("needs Debian's package golang-google-grpc-dev")
    source = tmp_path / "src" / "append"
    source.mkdir(parents=True)
    shutil.copy(EXAMPLES / "append_and_take.go", source)
    go = {"GO111MODULE": "off", "GOPATH": f"{tmp_path}:{GO_PACKAGES}", "GOCACHE": str(tmp_path / "cache")}
    run("go", "build", "-o", "protoc-gen-go", "google.golang.org/protobuf/cmd/protoc-gen-go", **go)
    packages = [f"--{kind}_opt=M{proto}=millrace/v1" for kind in ("go", "go-grpc") for proto in PROTOS]
    plugin = f"--plugin={tmp_path / 'protoc-gen-go'}"
    paths = [f"--proto_path={path}" for path in PROTO_PATHS]
    run("protoc", plugin, *paths, "--go_out=src", "--go-grpc_out=src", *packages, *PROTOS)
    run("go", "build", "-o", "example", "append", **go)
    _check_twice(millraced, "Go", lambda: run(str(tmp_path / "example"), millraced.grpc, "orders"))


@pytest.mark.torture
def test_example_in_java_appends_and_takes(run: Run, millraced: Millraced, tmp_path: Path) -> None:
    """It compiles with Debian's packages libgrpc-java, libnetty-java and protobuf-compiler-grpc-java-plugin."""
    plugin = shutil.which("grpc_java_plugin")
    if plugin is None or not (JARS / "grpc-stub.jar").exists():
        pytest.skip("needs Debian's packages libgrpc-java and protobuf-compiler-grpc-java-plugin")
    shutil.copy(EXAMPLES / "AppendAndTake.java", tmp_path)
    paths = [f"--proto_path={path}" for path in PROTO_PATHS]
    outputs = (f"--plugin=protoc-gen-grpc-java={plugin}", "--java_out=.", "--grpc-java_out=.")
    run("protoc", *outputs, *paths, *PROTOS, "google/rpc/status.proto")
    run("javac", "-nowarn", "-cp", f"{JARS}/*", "-d", "classes", *tmp_path.rglob("*.java"))
    _check_twice(
        millraced, "Java", lambda: run("java", "-cp", f"classes:{JARS}/*", "AppendAndTake", millraced.grpc, "orders")
    )
