"""A gRPC server that responds by script."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message

from millrace.googleapis import error_details_pb2, status_pb2
from millrace.v1 import admin_service_pb2, channel_service_pb2
from tests.free_ports import free_port

_SERVICES = [
    service
    for module in (channel_service_pb2, admin_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
_THREADS = 32


class RefusalError(Exception):
    """Ends a call with a status, as Millrace's server does; without a reason as other servers do."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str = "",
        message: str = "refused",
        *,
        retry_delay_seconds: float | None = None,
        domain: str = "millrace",
        **metadata: str,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        details: list[Message] = []
        if reason:
            details.append(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
        if retry_delay_seconds is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(round(retry_delay_seconds * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        self.status = status_pb2.Status(code=code.value[0], message=message, details=map(_packed, details))
        self.metadata = (("grpc-status-details-bin", self.status.SerializeToString()),) if details else ()


def unavailable() -> RefusalError:
    """The error with which gRPC reports a broken connection."""
    return RefusalError(grpc.StatusCode.UNAVAILABLE, message="Socket closed")


Step = Message | RefusalError | list[Any] | Callable[..., Any]
"""A response; a refusal; the responses of a stream, perhaps with a refusal at the end; or a function."""


class FakeServer:
    """Responds to each call with the next step of its method's script; the last step is repeated.

    Args:
        port: Where it listens; by default on a port that no other process gets once it has ended.
        scripts: The only step of each method, for a server that gets calls as soon as it listens.

    Attributes:
        address: The address at which it listens.
        requests: The requests received, by method, in order; messages of a stream are listed one by one.
        deadlines: The seconds that were left to each call when it arrived, by method.
    """

    def __init__(self, port: int | None = None, **scripts: Step) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.deadlines: dict[str, list[float]] = defaultdict(list)
        self._scripts: dict[str, deque[Step]] = {method: deque([step]) for method, step in scripts.items()}
        self._pool = ThreadPoolExecutor(_THREADS)
        self._server = grpc.server(self._pool, options=[("grpc.max_receive_message_length", -1)])
        self._server.add_generic_rpc_handlers(tuple(map(self._handler, _SERVICES)))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port or free_port()}')}"
        self._server.start()
        self.closing = threading.Event()

    def script(self, method: str, *steps: Step) -> None:
        """Sets the responses of a method from now on."""
        self._scripts[method] = deque(steps)

    def close(self) -> None:
        """Ends all calls and the server."""
        self.closing.set()
        self._server.stop(None).wait()
        self._pool.shutdown()

    def _handler(self, service: Any) -> grpc.GenericRpcHandler:
        handlers = {method.name: self._method_handler(method) for method in service.methods}
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def _method_handler(self, method: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        request_kind, response_kind = method.input_type._concrete_class, method.output_type._concrete_class
        codec = {
            "request_deserializer": request_kind.FromString,
            "response_serializer": response_kind.SerializeToString,
        }
        match method.client_streaming, method.server_streaming:
            case False, False:
                return grpc.unary_unary_rpc_method_handler(self._serve_unary(method.name), **codec)
            case False, True:
                return grpc.unary_stream_rpc_method_handler(self._serve_responses(method.name), **codec)
            case _:
                return grpc.stream_stream_rpc_method_handler(self._serve_stream(method.name), **codec)

    def _next_step(self, name: str, context: Any) -> Step:
        self.deadlines[name].append(context.time_remaining() or 0.0)
        script = self._scripts[name]
        return script.popleft() if len(script) > 1 else script[0]

    def _serve_unary(self, name: str) -> Callable[..., Any]:
        def serve(request: Any, context: Any) -> Any:
            self.requests[name].append(request)
            step = self._next_step(name, context)
            try:
                return step(request, context) if callable(step) else _respond(step)
            except RefusalError as refusal:
                _abort(context, refusal)

        return serve

    def _serve_responses(self, name: str) -> Callable[..., Any]:
        def serve(request: Any, context: Any) -> Iterator[Any]:
            self.requests[name].append(request)
            step = self._next_step(name, context)
            try:
                responses: Any = step(request, context) if callable(step) else step
                yield from map(_respond, responses if isinstance(responses, Iterable) else [responses])
            except RefusalError as refusal:
                _abort(context, refusal)

        return serve

    def _serve_stream(self, name: str) -> Callable[..., Any]:
        def serve(requests: Iterator[Any], context: Any) -> Iterator[Any]:
            def noted() -> Iterator[Any]:
                for request in requests:
                    self.requests[name].append(request)
                    yield request

            step = self._next_step(name, context)
            assert callable(step)
            try:
                yield from step(noted(), context)
            except RefusalError as refusal:
                _abort(context, refusal)

        return serve


def _respond(step: Any) -> Any:
    if isinstance(step, RefusalError):
        raise step
    return step


def _abort(context: Any, refusal: RefusalError) -> None:
    context.set_trailing_metadata(refusal.metadata)
    context.abort(refusal.code, refusal.message)


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
