"""The manifests for Kubernetes, checked against its schemas, the server's settings and each other."""

import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
from tests.unit.repository.nats_config import nats_accepts

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.31", "1.37")
MOUNTED = ("/etc/millrace-tls", "/var/run/secrets/kubernetes.io/serviceaccount")
SERVERS = ("millrace", "millrace-replicated")
NODES = "millrace-nats"
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
    """The configuration of the servers with file channels, with secrets where they are mounted."""
    return _settings_of(manifests, "millrace", tmp_path)


@pytest.fixture
def replicated_settings(manifests: Manifests, tmp_path: Path) -> Settings:
    """The configuration of the first server with replicated channels."""
    return _settings_of(manifests, "millrace-replicated", tmp_path)


def _settings_of(manifests: Manifests, name: str, scratch: Path) -> Settings:
    authority = Authority()
    certificate, private_key = authority.issue(scratch, "made")
    certificate.rename(scratch / "tls.crt")
    private_key.rename(scratch / "tls.key")
    (scratch / "ca.crt").write_bytes(authority.certificate)
    (scratch / "token").write_text("header.claims.signature")
    (scratch / "password").write_text("secret")
    (scratch / "password").chmod(0o640)
    toml = manifests["ConfigMap", name]["data"]["millrace.toml"]
    for folder in MOUNTED:
        assert folder in toml
    for folder in (*MOUNTED, "/etc/millrace-nats/"):
        toml = toml.replace(folder, f"{scratch}/")
    path = scratch / "millrace.toml"
    path.write_text(toml)
    (container,) = manifests["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
    words = [word.replace("$(POD_NAME)", f"{name}-0") for word in container.get("args", ())]
    assert words[:1] in ([], ["serve"])
    given = dict(zip(words[1::2], words[2::2], strict=True))
    return load_settings(path, {"advertise": given["--advertise"]} if given else None)


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
    # Takes seconds, which every run that collects this file would spend.
    import kubernetes_validate

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
        claimed = {"data"} if {"millraced", "nats"} & {one["name"] for one in template["spec"]["containers"]} else set()
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys() | claimed
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= created


@pytest.mark.parametrize("name", SERVERS)
def test_servers_serve_over_tls_where_their_probes_ask(manifests: Manifests, tmp_path: Path, name: str) -> None:
    """Ports, probes, the user, the rights of the key and the volumes fit the configuration and the image."""
    settings = _settings_of(manifests, name, tmp_path)
    ports = _ports(settings)
    assert {port["name"]: port["port"] for port in manifests["Service", name]["spec"]["ports"]} == ports
    pod = manifests["StatefulSet", name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    user = dict(instructions())["USER"].partition(":")[0]
    assert {pod["securityContext"][key] for key in ("runAsUser", "fsGroup")} == {int(user)}
    assert all(volume["secret"]["defaultMode"] & 0o007 == 0 for volume in pod["volumes"] if "secret" in volume)
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
    own = {*SERVERS, NODES}
    clients = [template for template in _pods(manifests) if template["spec"]["serviceAccountName"] not in own]
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


def _names_of(manifests: Manifests, name: str) -> list[str]:
    """The names of the pods of a StatefulSet, by which its Service, of the same name, makes them known."""
    spec = manifests["StatefulSet", name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["serviceName"] == name
    assert spec["selector"]["matchLabels"] == manifests["Service", name]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"] == labels
    return [f"{name}-{number}.{name}.default.svc" for number in range(spec["replicas"])]


def test_servers_that_share_channels_reach_all_nodes_of_the_engine(
    manifests: Manifests, replicated_settings: Settings
) -> None:
    """Each has an address of its own, and the nodes' names, ports and password, and no channel that is not shared."""
    own, nodes = _names_of(manifests, "millrace-replicated"), _names_of(manifests, NODES)
    assert replicated_settings.server.advertise == f"{own[0]}:{_ports(replicated_settings)['grpc']}"
    engine = replicated_settings.server.engine
    assert engine is not None
    assert (len(nodes), engine.replicas, len(own)) == (3, 3, 3)
    ports = {port["name"]: port["port"] for port in manifests["Service", NODES]["spec"]["ports"]}
    for urls, port in ((engine.servers, ports["client"]), (engine.monitoring_urls, ports["monitor"])):
        assert [(urlsplit(url).hostname, urlsplit(url).port) for url in urls] == [(node, port) for node in nodes]
    (container,) = manifests["StatefulSet", NODES]["spec"]["template"]["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    pod = manifests["StatefulSet", "millrace-replicated"]["spec"]["template"]["spec"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    password = next(one for one in container["env"] if one["name"] == "CLIENT_PASSWORD")
    assert password["valueFrom"]["secretKeyRef"] == {"name": secrets["engine"], "key": "password"}
    assert {channel.type for channel in replicated_settings.channels.values()} == {"replicated"}


def test_nodes_are_configured_as_the_engine_understands(manifests: Manifests, tmp_path: Path) -> None:
    """The program accepts the configuration, and each node has the routes to all of them, by names in certificates."""
    config = manifests["ConfigMap", NODES]["data"]["nats.conf"]
    _settings_of(manifests, "millrace-replicated", tmp_path)
    assert all(f"nats://{node}:6222" in config for node in _names_of(manifests, NODES))
    assert "sync_interval: always" in config
    environment = {"POD_NAME": "n", "CLIENT_PASSWORD": "p1"}
    assert nats_accepts(config.replace("/etc/nats-tls", str(tmp_path)), tmp_path, environment)


def test_commands_of_the_page_fit_the_manifests(manifests: Manifests, settings: Settings, tmp_path: Path) -> None:
    """The page applies files that exist, creates what they name, and its certificate has every name of a server."""
    page = ROOT / "docs" / "kubernetes.md"
    commands = [line for kind in ("image", "apply") for block in blocks_of(page, kind) for line in block.splitlines()]
    for command in commands:
        for word in shlex.split(command):
            if word.startswith("deploy/"):
                assert (ROOT / word).is_file(), word
    created = {shlex.split(line)[4] for line in commands if " create secret " in line}
    mounted = {
        volume["secret"]["secretName"]
        for template in _pods(manifests)
        for volume in template["spec"]["volumes"]
        if "secret" in volume
    }
    assert created == mounted | {"millrace-scrape"}
    assert any("create configmap millrace-ca " in line for line in commands)
    expected = {
        "certificates": {*settings.server.http_hosts, "millrace-any.default.svc"},
        "replicated-certificates": {
            *_names_of(manifests, "millrace-replicated"),
            *_names_of(manifests, NODES),
            "millrace-replicated-any.default.svc",
        },
    }
    for kind, hosts in expected.items():
        (block,) = blocks_of(page, kind)
        words = shlex.split(block)
        assert {words[index + 1] for index, word in enumerate(words) if word == "--name"} == hosts
        words[words.index(kind)] = str(tmp_path / kind)
        assert run_millraced(*words[1:]).returncode == 0
        assert {"ca.pem", "server.pem", "server.key"} <= {path.name for path in (tmp_path / kind).iterdir()}
