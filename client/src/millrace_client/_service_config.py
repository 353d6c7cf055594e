"""How gRPC is told to connect, to repeat calls, and how large messages may be."""

import json

from millrace_client._methods import METHODS

MIB = 1 << 20

REQUEST_BYTES_MAX = 64 * MIB
"""Largest request that is sent; what is larger goes as several. The server's default limit."""
ANSWER_BYTES_MAX = 65 * MIB
"""Largest answer that is taken: the server's limit, and room for what does not count to it."""

ATTEMPTS_MAX = 5
"""How often a call is tried in all. gRPC allows no more."""
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 2.0
BACKOFF_FACTOR = 2

_RECONNECT_MILLISECONDS = 100
_RECONNECT_MILLISECONDS_MAX = 500
"""Shorter than a call's attempts take together, so that a call finds a server that came back before it."""
_CONNECT_MILLISECONDS_MAX = 5_000
_PING_MILLISECONDS = 30_000
_PONG_MILLISECONDS = 10_000


def service_config() -> str:
    """Repeats where the server could not be reached or the connection broke; every call is safe to repeat.

    Of streams, those that send one request are begun anew as long as nothing has come.
    """
    names = [{"service": method.service, "method": method.name} for method in METHODS if method.is_repeatable]
    retry_policy = {
        "maxAttempts": ATTEMPTS_MAX,
        "initialBackoff": f"{BACKOFF_SECONDS}s",
        "maxBackoff": f"{BACKOFF_SECONDS_MAX}s",
        "backoffMultiplier": BACKOFF_FACTOR,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": retry_policy}]})


def channel_options() -> list[tuple[str, str | int]]:
    """Options of the gRPC channel."""
    return [
        ("grpc.service_config", service_config()),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
        # A call whose request does not fit into this is never repeated, without a word; the default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", REQUEST_BYTES_MAX + MIB),
        # A server that starts anew is found soon, and one that does not answer is given up within one call.
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS_MAX),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MILLISECONDS_MAX),
        # Streams may be silent for long; so a dead connection must show by itself.
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _PONG_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients share no connection, least of all with one that a parent process made before a fork.
        ("grpc.use_local_subchannel_pool", 1),
        # Millrace servers are reached directly, whatever proxy the environment names for the web.
        ("grpc.enable_http_proxy", 0),
    ]
