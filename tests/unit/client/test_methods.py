"""The table of methods, and the gRPC configuration made of it."""

import json
from typing import Any

import pytest

from millrace.v1 import admin_service_pb2, channel_service_pb2
from millrace_client import _methods
from millrace_client._methods import Method
from millrace_client._settings import REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, channel_options, service_config

DESCRIPTORS = {
    f"/{service.full_name}/{method.name}": method
    for module in (channel_service_pb2, admin_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
METHODS: dict[str, Method[Any, Any]] = {
    value.path: value for value in vars(_methods).values() if isinstance(value, Method)
}


def test_table_holds_every_method() -> None:
    """No method of the contract is missing."""
    assert set(METHODS) == set(DESCRIPTORS)


@pytest.mark.parametrize("path", METHODS)
def test_method_speaks_the_contracts_messages(path: str) -> None:
    """Requests and responds are those of the contract; encoded requests pass unchanged."""
    method, descriptor = METHODS[path], DESCRIPTORS[path]
    request, response = descriptor.input_type._concrete_class(), descriptor.output_type._concrete_class()
    assert method.serialize(request) == b""
    assert method.serialize(b"encoded") == b"encoded"
    assert method.parse(b"") == response


def test_service_config_repeats_all_but_streams() -> None:
    """Each call with a single request is repeated if the server is unavailable, and only then, 5 times in all."""
    [config] = json.loads(service_config())["methodConfig"]
    repeated = {f"/{name['service']}/{name['method']}" for name in config["name"]}
    assert repeated == {
        path for path in METHODS if not (d := DESCRIPTORS[path]).client_streaming and not d.server_streaming
    }
    policy = config["retryPolicy"]
    assert (policy["maxAttempts"], policy["retryableStatusCodes"]) == (5, ["UNAVAILABLE"])


def test_channel_options_leave_space() -> None:
    """Responses may be larger than requests, and a request of any size fits into gRPC's retry buffer."""
    options = dict(channel_options())
    assert options["grpc.max_receive_message_length"] == RESPONSE_BYTES_MAX == (64 << 20) + (1 << 20)
    assert int(options["grpc.per_rpc_retry_buffer_size"]) > REQUEST_BYTES_MAX
