"""The manifests for Kubernetes, checked against its schemas, the server's settings and each other."""

import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from millrace_server.configuration.settings import Settings, load_settings
from millrace_server.network import Address
from millrace_spark.landing.config_file import load_config
from tests.certificates import Authority
from tests.dockerfile import instructions
from tests.fenced_blocks import blocks_of
from tests.millraced import run_millraced
from tests.unit.repository.checkout import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.31", "1.37")
MOUNTED = ("/etc/millrace-tls", "/var/run/secrets/kubernetes.io/serviceaccount")
CUSTOM_KINDS = {"ServiceMonitor"}
"""Kinds that are not Kubernetes' own, of which there is no schema here."""

Manifests = dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    """All objects, by kind and name."""
    found: Manifests = {}
    for path in FOLDER.glob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            assert (one["kind"], one["metadata"]["name"]) not in found
            found[one["kind"], one["metadata"]["name"]] = one
    return found


@pytest.fixture
def settings(manifests: Manifests, tmp_path: Path) -> Settings:
    """The configuration of the servers, with secrets where they are mounted."""
    certificate, private_key = Authority().issue(tmp_path, "made")
    certificate.rename(tmp_path / "tls.crt")
    private_key.rename(tmp_path / "tls.key")
    toml = manifests["ConfigMap", "millrace"]["data"]["millrace.toml"]
    for folder in MOUNTED:
        assert folder in toml
        toml = toml.replace(folder, str(tmp_path))
    path = tmp_path / "millrace.toml"
    path.write_text(toml)
    return load_settings(path)


def _pods(manifests: Manifests) -> Iterator[dict[str, Any]]:
    """The specifications of all pods, with the labels of their templates."""
    for (kind, _), one in manifests.items():
        spec = one.get("spec", {})
        if kind == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if kind in {"StatefulSet", "CronJob", "Job", "Deployment"}:
            yield spec["template"]


def _ports(settings: Settings) -> dict[str, int]:
    listening = {"grpc": settings.server.listen, "http": settings.server.http_listen}
    return {name: Address.parse(address).port for name, address in listening.items()}


def _allows(settings: Settings, identity: str, wanted: str) -> bool:
    """Whether a role of an identity, which the configuration names, allows `PERMISSION:CHANNEL`."""
    roles = settings.identities[identity].roles
    return any(fnmatch(wanted, grant) for role in roles for grant in settings.roles[role].allow)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_by_the_schemas(manifests: Manifests, version: str) -> None:
    """No field is unknown or of another type, in an older and in a newer version."""
    checked = [one for (kind, _), one in manifests.items() if kind not in CUSTOM_KINDS]
    for one in checked:
        kubernetes_validate.validate(one, version, strict=True)
    assert len(checked) + 1 == len(manifests)


def test_pods_have_no_rights_that_they_do_not_need(manifests: Manifests) -> None:
    """Each runs as a fixed user that is not root, without capabilities, and with bounded memory."""
    for template in _pods(manifests):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"].get("readOnlyRootFilesystem") or container["image"] == "pipeline"
            assert container["resources"]["limits"]["memory"]


def test_volumes_that_are_mounted_are_there(manifests: Manifests) -> None:
    """Each mount names a volume, and each volume a ConfigMap of these files or one that the documentation creates."""
    created = {"millrace-ca", *(name for kind, name in manifests if kind == "ConfigMap")}
    for template in _pods(manifests):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        claimed = {"data"} if "millraced" in {one["name"] for one in template["spec"]["containers"]} else set()
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys() | claimed
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= created


def test_servers_serve_over_tls_where_their_probes_ask(manifests: Manifests, settings: Settings) -> None:
    """Ports, probes, the user, the rights of the key and the volumes fit the configuration and the image."""
    ports = _ports(settings)
    assert {port["name"]: port["port"] for port in manifests["Service", "millrace"]["spec"]["ports"]} == ports
    pod = manifests["StatefulSet", "millrace"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    user = dict(instructions())["USER"].partition(":")[0]
    assert {pod["securityContext"][key] for key in ("runAsUser", "fsGroup")} == {int(user)}
    secret = next(volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert secret["defaultMode"] & 0o007 == 0
    assert {mount["mountPath"] for mount in container["volumeMounts"]} > {MOUNTED[0], str(settings.server.data_dir)}
    assert pod["terminationGracePeriodSeconds"] > settings.server.shutdown_grace_seconds


def test_servers_have_the_names_that_others_call_them(manifests: Manifests, settings: Settings) -> None:
    """Each replica's name is one that HTTP accepts, and those that the landing reads; one Service has them all."""
    servers = manifests["StatefulSet", "millrace"]["spec"]
    names = {f"millrace-{number}.millrace.default.svc" for number in range(servers["replicas"])}
    assert set(settings.server.http_hosts) == names
    selected = servers["template"]["metadata"]["labels"]
    for kind, name in (("Service", "millrace"), ("Service", "millrace-any")):
        assert manifests[kind, name]["spec"]["selector"] == selected
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        assert manifests[kind, "millrace"]["spec"]["selector"]["matchLabels"] == selected
    (endpoint,) = manifests["ServiceMonitor", "millrace"]["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] in names
    assert endpoint["port"] == "http"


def test_clients_may_do_what_they_do(manifests: Manifests, settings: Settings, tmp_path: Path) -> None:
    """The network admits them, their tokens are for the servers' audience, and their roles allow their work."""
    assert settings.auth is not None
    assert settings.auth.jwt is not None
    policy = manifests["NetworkPolicy", "millrace"]["spec"]["ingress"]
    admitted = policy[0]["from"][0]["podSelector"]["matchLabels"]
    clients = [template for template in _pods(manifests) if template["spec"]["serviceAccountName"] != "millrace"]
    clients.append({**yaml.safe_load(manifests["ConfigMap", "landing"]["data"]["executor.yaml"])})
    for template in clients:
        assert admitted.items() <= template["metadata"]["labels"].items()
        (token,) = (volume["projected"] for volume in template["spec"]["volumes"] if volume["name"] == "token")
        assert token["sources"][0]["serviceAccountToken"]["audience"] == settings.auth.jwt.audience
    producer = manifests["CronJob", "web"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    channel = producer["containers"][0]["command"][2]
    assert channel in settings.channels
    assert _allows(settings, "system:serviceaccount:default:web", f"append:{channel}")
    assert _allows(settings, "system:serviceaccount:monitoring:prometheus", "describe:*")
    (tmp_path / "landing.toml").write_text(manifests["ConfigMap", "landing"]["data"]["landing.toml"])
    landing = load_config(tmp_path / "landing.toml")
    assert {endpoint.partition(":")[0] for endpoint in landing.source.endpoints} == set(settings.server.http_hosts)
    for name in landing.source.channels:
        assert _allows(settings, "system:serviceaccount:default:spark", f"read:{name}")
        assert _allows(settings, "system:serviceaccount:default:spark", f"describe:{name}")


def test_commands_of_the_page_fit_the_manifests(manifests: Manifests, settings: Settings, tmp_path: Path) -> None:
    """The page applies files that exist, creates what they name, and its certificate has every name of a server."""
    page = ROOT / "docs" / "kubernetes.md"
    commands = [line for kind in ("image", "apply") for block in blocks_of(page, kind) for line in block.splitlines()]
    for command in commands:
        for word in shlex.split(command):
            if word.startswith("deploy/"):
                assert (ROOT / word).is_file(), word
    created = {shlex.split(line)[4] for line in commands if " create secret " in line}
    assert created == {"millrace-tls", "millrace-scrape"}
    assert any("create configmap millrace-ca " in line for line in commands)
    (block,) = blocks_of(page, "certificates")
    words = shlex.split(block)
    names = {words[index + 1] for index, word in enumerate(words) if word == "--name"}
    assert names == {*settings.server.http_hosts, "millrace-any.default.svc"}
    words[words.index("certificates")] = str(tmp_path / "certificates")
    assert run_millraced(*words[1:]).returncode == 0
    assert {"ca.pem", "server.pem", "server.key"} <= {path.name for path in (tmp_path / "certificates").iterdir()}
