"""The container: Dockerfile, build context, configuration and Compose, checked without a container engine."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from millrace_server.configuration.settings import Settings, load_settings
from millrace_server.network import Address
from tests.certificates import Authority
from tests.unit.repository.checkout import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
KUBERNETES = ROOT / "deploy" / "kubernetes.yaml"
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


def test_health_check_compared_with_the_configuration_asks_the_right_port(image_settings: Settings) -> None:
    """The health check uses the port of the container's configuration, over TLS, and both ports are exposed."""
    ports = list(_ports(image_settings).values())
    assert ("ENV", f'MILLRACE_HEALTH_URL="https://127.0.0.1:{ports[1]}/healthz"') in _instructions()
    (exposed,) = (rest for name, rest in _instructions() if name == "EXPOSE")
    assert [int(port) for port in exposed.split()] == ports


def test_data_of_the_container_is_kept_in_its_volume(service: dict[str, Any], image_settings: Settings) -> None:
    """The persistent data is in the volume, in the image and in Compose."""
    data_dir = image_settings.server.data_dir
    assert ("VOLUME", str(data_dir)) in _instructions()
    assert f"data:{data_dir}" in service["volumes"]
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
    (source,) = (shlex.split(rest)[0] for name, rest in _instructions() if name == "COPY" and rest.endswith(target))
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


MOUNTED = ("/etc/millrace-tls", "/var/run/secrets/kubernetes.io/serviceaccount")
Manifests = dict[tuple[str, str], Any]


@pytest.fixture
def manifests() -> Manifests:
    """The objects of the example for Kubernetes, by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(KUBERNETES.read_text())}


@pytest.fixture
def settings(manifests: Manifests, secrets: Path) -> Settings:
    """The configuration of its server."""
    return _loaded(manifests["ConfigMap", "millrace"]["data"]["millrace.toml"], MOUNTED, secrets)


def _ports(settings: Settings) -> dict[str, int]:
    listening = {"grpc": settings.server.listen, "http": settings.server.http_listen}
    return {name: Address.parse(address).port for name, address in listening.items()}


def test_kubernetes_example_serves_over_tls_where_its_probes_ask(manifests: Manifests, settings: Settings) -> None:
    """Ports, probes, the user, the rights of the key and the volumes fit the configuration."""
    ports = _ports(settings)
    assert {port["name"]: port["port"] for port in manifests["Service", "millrace"]["spec"]["ports"]} == ports
    pod = manifests["StatefulSet", "millrace"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    user = dict(_instructions())["USER"].partition(":")[0]
    assert {pod["securityContext"][key] for key in ("runAsUser", "fsGroup")} == {int(user)}
    secret = next(volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert secret["defaultMode"] & 0o007 == 0
    assert {mount["mountPath"] for mount in container["volumeMounts"]} > {MOUNTED[0], str(settings.server.data_dir)}
    assert pod["terminationGracePeriodSeconds"] > settings.server.shutdown_grace_seconds


def test_kubernetes_example_proves_service_accounts(manifests: Manifests, settings: Settings) -> None:
    """The producer's token is for the audience of the server, which lets it append; Prometheus may see all channels."""
    producer = manifests["CronJob", "web"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    environment = {one["name"]: one["value"] for one in producer["containers"][0]["env"]}
    (token,) = (volume["projected"] for volume in producer["volumes"] if volume["name"] == "token")
    assert settings.auth is not None
    assert settings.auth.jwt is not None
    assert token["sources"][0]["serviceAccountToken"]["audience"] == settings.auth.jwt.audience
    (command,) = producer["containers"][0]["command"][2:]
    channel = command.rpartition(" ")[2]
    assert channel in settings.channels
    assert _allows(settings, f"system:serviceaccount:default:{producer['serviceAccountName']}", f"append:{channel}")
    mounts = {mount["mountPath"] for mount in producer["containers"][0]["volumeMounts"]}
    assert {str(Path(environment[name]).parent) for name in ("MILLRACE_TLS_CA", "MILLRACE_TOKEN_FILE")} == mounts

    (scrape,) = yaml.safe_load(manifests["ConfigMap", "millrace-scrape"]["data"]["prometheus.yaml"])["scrape_configs"]
    host, _, port = scrape["static_configs"][0]["targets"][0].partition(":")
    assert (scrape["scheme"], host in settings.server.http_hosts, int(port)) == (
        "https",
        True,
        _ports(settings)["http"],
    )
    assert environment["MILLRACE_SERVER"] == f"{host}:{_ports(settings)['grpc']}"
    assert scrape["authorization"]["credentials_file"] == environment["MILLRACE_TOKEN_FILE"]
    assert _allows(settings, "system:serviceaccount:monitoring:prometheus", "describe:*")
