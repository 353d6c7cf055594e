"""The container: Dockerfile, build context, configuration and Compose, checked without a container engine."""

import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from millrace_server.configuration.settings import Settings, load_settings
from millrace_server.network import Address
from tests.certificates import Authority
from tests.dockerfile import DOCKERFILE, instructions
from tests.unit.repository.checkout import ROOT
from tests.unit.repository.nats_config import nats_accepts

COMPOSE = ROOT / "deploy" / "compose.yaml"
CLUSTER = ROOT / "deploy" / "compose.cluster.yaml"
SUFFIX_SECONDS = re.compile(r"(\d+)s")


def _is_sent_to_the_build(path: str) -> bool:
    """Whether .dockerignore, which excludes everything except some paths, includes a path."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert patterns[0] == "*"
    allowed = [PurePosixPath(pattern.removeprefix("!")) for pattern in patterns if pattern.startswith("!")]
    return any(PurePosixPath(path).is_relative_to(let_in) for let_in in allowed)


@pytest.fixture
def services() -> dict[str, Any]:
    """The services of compose.yaml: the one that starts by default, and the one for trying."""
    found = yaml.safe_load(COMPOSE.read_text())["services"]
    assert isinstance(found, dict)
    assert list(found) == ["millraced", "insecure"]
    assert "profiles" not in found["millraced"]
    return found


@pytest.fixture
def service(services: dict[str, Any]) -> dict[str, Any]:
    found = services["millraced"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def image_settings(secrets: Path) -> Settings:
    """The configuration with which the image serves by default."""
    return _loaded((ROOT / "deploy" / "container.toml").read_text(), ["/run/secrets"], secrets)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The files that the examples mount, by the names that they have there."""
    for name in ("server.pem", "tls.crt", "server.key", "tls.key", "tokens"):
        (tmp_path / name).touch(0o640)
    certificate, private_key = Authority().issue(tmp_path, "made")
    for name in ("server.pem", "tls.crt"):
        (tmp_path / name).write_bytes(certificate.read_bytes())
    for name in ("server.key", "tls.key"):
        (tmp_path / name).write_bytes(private_key.read_bytes())
    return tmp_path


def _ports(settings: Settings) -> dict[str, int]:
    listening = {"grpc": settings.server.listen, "http": settings.server.http_listen}
    return {name: Address.parse(address).port for name, address in listening.items()}


def _loaded(toml: str, folders: Iterable[str], secrets: Path) -> Settings:
    """The settings of a configuration whose secrets are mounted in these folders."""
    for folder in folders:
        assert folder in toml
        toml = toml.replace(folder, str(secrets))
    path = secrets / "millrace.toml"
    path.write_text(toml)
    return load_settings(path)


def test_dockerfile_linted_has_no_findings() -> None:
    """The linter hadolint, which also checks the shell commands, finds nothing."""
    hadolint = Path(sys.executable).with_name("hadolint")
    lint = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")


def test_copied_sources_compared_with_the_context_are_sent() -> None:
    """Everything that the build copies is in its context: files of the checkout, and what `make dist` builds."""
    copied = [shlex.split(rest)[:-1] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    sources = [source for group in copied for source in group]
    assert "dist/" in sources
    for source in sources:
        assert source.startswith("dist/") or (ROOT / source).exists(), source
        assert _is_sent_to_the_build(source), source


def test_only_one_step_of_the_dockerfile_needs_a_shell() -> None:
    """Steps are commands with arguments, except where the shell finds the wheels by their pattern."""
    by_shell = [rest for name, rest in instructions() if name == "RUN" and not rest.startswith("[")]
    assert [re.search(r"[;&|$`<>]", step) for step in by_shell] == [None]
    assert ".whl" in by_shell[0]


def test_last_stage_of_the_dockerfile_does_not_run_as_root() -> None:
    """The daemon runs under a numeric user id other than root's."""
    found = instructions()
    last_stage = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    names = [name for name, _ in found[last_stage:]]
    users = [rest for name, rest in found[last_stage:] if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_health_check_compared_with_the_configuration_asks_the_right_port(image_settings: Settings) -> None:
    """The health check uses the port of the container's configuration, over TLS, and both ports are exposed."""
    ports = list(_ports(image_settings).values())
    (variables,) = (rest for name, rest in instructions() if name == "ENV")
    assert f'MILLRACE_HEALTH_URL="https://127.0.0.1:{ports[1]}/healthz"' in variables
    (exposed,) = (rest for name, rest in instructions() if name == "EXPOSE")
    assert [int(port) for port in exposed.split()] == ports


def test_data_of_the_container_is_kept_in_its_volume(service: dict[str, Any], image_settings: Settings) -> None:
    """The persistent data is in the volume, in the image and in Compose."""
    data_dir = image_settings.server.data_dir
    assert ("VOLUME", str(data_dir)) in instructions()
    assert f"data:{data_dir}" in service["volumes"]
    assert "data" in yaml.safe_load(COMPOSE.read_text())["volumes"]


def test_compose_read_as_yaml_names_files_that_exist(service: dict[str, Any]) -> None:
    """The build's context, its Dockerfile and the mounted configuration exist at the expected paths."""
    context = COMPOSE.parent / service["build"]["context"]
    assert context.resolve() == ROOT
    assert (context / service["build"]["dockerfile"]).samefile(DOCKERFILE)
    mounts = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
    commands = " ".join(rest for name, rest in instructions() if name == "CMD")
    for source, target, mode in mounts:
        assert (COMPOSE.parent / source).exists()
        assert target in commands
        assert mode == "ro"


def test_services_in_compose_have_no_rights_that_they_do_not_need(services: dict[str, Any]) -> None:
    """Neither of the two may change its image, nor have capabilities."""
    for one in services.values():
        assert one["cap_drop"] == ["ALL"]
        assert one["read_only"] is True


def test_service_without_tls_in_compose_is_published_to_this_machine_only(services: dict[str, Any]) -> None:
    """Nobody starts it without asking for it, by its configuration's name."""
    insecure = services["insecure"]
    assert insecure["profiles"] == ["insecure"]
    assert insecure["ports"]
    assert all(str(port).startswith("127.0.0.1:") for port in insecure["ports"])
    target = insecure["command"][-1]
    (source,) = (shlex.split(rest)[0] for name, rest in instructions() if name == "COPY" and rest.endswith(target))
    settings = load_settings(ROOT / source)
    assert settings.server.allow_anonymous
    assert f"insecure-data:{settings.server.data_dir}" in insecure["volumes"]
    assert insecure["environment"]["MILLRACE_HEALTH_URL"] == f"http://127.0.0.1:{_ports(settings)['http']}/healthz"


def test_stop_grace_period_in_compose_is_above_the_servers(service: dict[str, Any], image_settings: Settings) -> None:
    """The engine kills the daemon only after its own grace time."""
    match = SUFFIX_SECONDS.fullmatch(service["stop_grace_period"])
    assert match is not None
    assert float(match[1]) > image_settings.server.shutdown_grace_seconds


def _allows(settings: Settings, identity: str, wanted: str) -> bool:
    """Whether a role of an identity, which the configuration names, allows `PERMISSION:CHANNEL`."""
    roles = settings.identities[identity].roles
    return any(fnmatch(wanted, grant) for role in roles for grant in settings.roles[role].allow)


def test_image_serves_over_tls_and_with_tokens_by_default(
    service: dict[str, Any], image_settings: Settings, secrets: Path
) -> None:
    """Its configuration names the secrets where Compose mounts them."""
    compose = yaml.safe_load(COMPOSE.read_text())
    assert all(compose["secrets"][name] == {"file": f"./secrets/{name}"} for name in service["secrets"])
    assert image_settings.server.tls is not None
    assert image_settings.auth is not None
    tls, auth = image_settings.server.tls, image_settings.auth
    named = (tls.certificate, tls.private_key, auth.tokens_file)
    assert list(named) == [secrets / name for name in service["secrets"]]
    assert (image_settings.server.allow_plaintext, image_settings.server.allow_anonymous) == (False, False)
    assert service["ports"][0] == "7070:7070"
    assert _allows(image_settings, "web", "append:web.access")


def test_cluster_in_compose_has_three_servers_that_share_channels_on_three_nodes(
    secrets: Path, image_settings: Settings
) -> None:
    """Each server has an address of its own that is published, and finds the nodes by the names of their services."""
    compose = yaml.safe_load(CLUSTER.read_text())
    found = compose["services"]
    nodes, servers = ([name for name in found if name.startswith(kind)] for kind in ("nats-", "millrace-"))
    assert (len(nodes), len(servers)) == (3, 3)
    toml = (CLUSTER.parent / "cluster.toml").read_text()
    advertised = set()
    for name in servers:
        words = found[name]["command"]
        options = dict(itertools.pairwise(words))
        address = options["--advertise"].replace("${MILLRACE_HOST:-localhost}", "localhost")
        assert f"./cluster.toml:{options['--config']}:ro" in found[name]["volumes"]
        (published,) = found[name]["ports"]
        port, _, inside = published.partition(":")
        assert (address, int(inside)) == (f"localhost:{port}", _ports(image_settings)["grpc"])
        advertised.add(address)
        path = secrets / "cluster.toml"
        path.write_text(toml.replace("/run/secrets", str(secrets)))
        settings = load_settings(path, {"advertise": address})
        assert settings.server.engine is not None
        assert [urlsplit(url).hostname for url in settings.server.engine.servers] == nodes
        assert found[name]["networks"] == ["clients", "engine"]
        assert f"{name}:{settings.server.data_dir}" in found[name]["volumes"]
        assert float(found[name]["stop_grace_period"].removesuffix("s")) > settings.server.shutdown_grace_seconds
    assert len(advertised) == len(servers)


def test_nodes_in_compose_are_reached_by_the_servers_only(tmp_path: Path) -> None:
    """They ask for no credentials, so nothing of them is published; their program accepts their configuration."""
    compose = yaml.safe_load(CLUSTER.read_text())
    assert compose["networks"]["engine"] == {"internal": True}
    config = (CLUSTER.parent / "nats.conf").read_text()
    for name, service in compose["services"].items():
        if name.startswith("nats-"):
            assert "ports" not in service
            assert (service["networks"], service["environment"]) == (["engine"], {"NATS_NAME": name})
            assert f"{name}:/data" in service["volumes"]
            assert f"nats://{name}:6222" in config
    assert "sync_interval: always" in config
    assert nats_accepts(config, tmp_path, {"NATS_NAME": "n"})


def test_services_of_the_cluster_in_compose_have_no_rights_that_they_do_not_need() -> None:
    """None may change its image, nor have capabilities."""
    for one in yaml.safe_load(CLUSTER.read_text())["services"].values():
        assert (one["cap_drop"], one["read_only"]) == (["ALL"], True)
