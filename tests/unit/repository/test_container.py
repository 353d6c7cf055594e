"""The container: Dockerfile, build context, configuration and Compose, checked without a container engine."""

import re
import shlex
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from millrace_server.configuration.settings import load_settings
from millrace_server.network import Address
from tests.unit.repository.checkout import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
SUFFIX_SECONDS = re.compile(r"(\d+)s")


def _instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    lines = (line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for line in joined.splitlines() if line for name, _, rest in [line.partition(" ")]]


def _is_sent_to_the_build(path: str) -> bool:
    """Whether .dockerignore, which excludes everything except some paths, includes a path."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert patterns[0] == "*"
    allowed = [PurePosixPath(pattern.removeprefix("!")) for pattern in patterns if pattern.startswith("!")]
    return any(PurePosixPath(path).is_relative_to(let_in) for let_in in allowed)


@pytest.fixture
def service() -> dict[str, Any]:
    """The only service of compose.yaml."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert list(services) == ["millraced"]
    found = services["millraced"]
    assert isinstance(found, dict)
    return found


def test_dockerfile_linted_has_no_findings() -> None:
    """The linter hadolint, which also checks the shell commands, finds nothing."""
    hadolint = Path(sys.executable).with_name("hadolint")
    lint = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")


def test_copied_sources_compared_with_the_checkout_exist_and_are_sent() -> None:
    """Everything that the build copies from the checkout exists, and .dockerignore includes it."""
    copied = [shlex.split(rest)[:-1] for name, rest in _instructions() if name == "COPY" and "--from" not in rest]
    sources = [source for group in copied for source in group]
    assert "server/" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert _is_sent_to_the_build(source), source


def test_files_that_run_steps_name_are_copied_before() -> None:
    """Each requirements file and each distribution that a step installs is copied by an earlier step."""
    copied: list[PurePosixPath] = []
    named = []
    for name, rest in _instructions():
        if name == "COPY":
            copied += [PurePosixPath(source) for source in shlex.split(rest)[:-1]]
        elif name == "RUN":
            for word in re.findall(r"requirements/[\w.]+|(?<= )\./\w+", rest):
                named.append(word)
                assert PurePosixPath(word) in copied, word
    assert named == ["requirements/build.txt", "requirements/server.txt", "./client", "./server"]


def test_last_stage_of_the_dockerfile_does_not_run_as_root() -> None:
    """The daemon runs under a numeric user id other than root's."""
    instructions = _instructions()
    last_stage = max(index for index, (name, _) in enumerate(instructions) if name == "FROM")
    names = [name for name, _ in instructions[last_stage:]]
    users = [rest for name, rest in instructions[last_stage:] if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_health_check_compared_with_the_configuration_asks_the_right_port() -> None:
    """The health check uses the port of the container's configuration, and both ports are exposed."""
    server = load_settings(ROOT / "deploy" / "container.toml").server
    ports = [Address.parse(address).port for address in (server.listen, server.http_listen)]
    (health_check,) = (rest for name, rest in _instructions() if name == "HEALTHCHECK")
    assert f"http://127.0.0.1:{ports[1]}/healthz" in health_check
    (exposed,) = (rest for name, rest in _instructions() if name == "EXPOSE")
    assert [int(port) for port in exposed.split()] == ports


def test_data_of_the_container_is_kept_in_its_volume(service: dict[str, Any]) -> None:
    """The persistent data is in the volume, in the image and in Compose."""
    server = load_settings(ROOT / "deploy" / "container.toml").server
    assert ("VOLUME", str(server.data_dir)) in _instructions()
    assert f"data:{server.data_dir}" in service["volumes"]
    assert "data" in yaml.safe_load(COMPOSE.read_text())["volumes"]


def test_compose_read_as_yaml_names_files_that_exist(service: dict[str, Any]) -> None:
    """The build's context, its Dockerfile and the mounted configuration exist at the expected paths."""
    context = COMPOSE.parent / service["build"]["context"]
    assert context.resolve() == ROOT
    assert (context / service["build"]["dockerfile"]).samefile(DOCKERFILE)
    mounts = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
    commands = " ".join(rest for name, rest in _instructions() if name == "CMD")
    for source, target, mode in mounts:
        assert (COMPOSE.parent / source).exists()
        assert target in commands
        assert mode == "ro"


def test_compose_ports_are_published_to_this_machine_only(service: dict[str, Any]) -> None:
    """Since nothing is encrypted, other machines cannot connect by default."""
    assert service["ports"]
    assert all(str(port).startswith("127.0.0.1:") for port in service["ports"])
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True


def test_stop_grace_period_in_compose_is_above_the_servers(service: dict[str, Any]) -> None:
    """The engine kills the daemon only after its own grace time."""
    match = SUFFIX_SECONDS.fullmatch(service["stop_grace_period"])
    assert match is not None
    assert float(match[1]) > load_settings(ROOT / "deploy" / "container.toml").server.shutdown_grace_seconds
