"""Generates `docs/errors.md`: the reasons of errors, as the code has them.

`python -m tools.generate_errors_page` writes it; `--check` fails if the committed page is stale. The meaning of a
reason is the docstring of the server's error, or of the client's if only the client has it.
"""

import inspect
from collections.abc import Iterator

from millrace_client.cli.exit_status import ADVICE
from millrace_client.errors import ERRORS_BY_REASON, MillraceError, RefusedError, RetryAdvice
from millrace_server import errors
from millrace_server.grpc_services.status import code_of
from tools.generated_page import docstrings_of, write_or_check

_INTRODUCTION = """\
# Errors

Every failed call has a *reason*. Reasons never change; messages may. Over gRPC the reason is in `google.rpc.ErrorInfo`,
with the domain `millrace` and with the channel or transaction in its metadata; `google.rpc.RetryInfo` is added if a
retry makes sense after some time. Over HTTP it is the field `reason` of the JSON response. `millrace_client` has an
exception class for each reason; its `advice` says what a program should do. `make docs` generates this page from the
code.

## Advice

| advice | what a program should do |
| --- | --- |
"""

_SERVER = """
## Reasons of the server

The effect is `none` if the call is known to have changed nothing on the server.

| reason | gRPC code | cause | effect | advice | remedy, for example with `millrace` |
| --- | --- | --- | --- | --- | --- |
"""

_CLIENT = """
## Reasons of the Python client

| reason | cause | effect | advice | remedy, for example with `millrace` |
| --- | --- | --- | --- | --- |
"""

_REMEDIES = {
    "BAD_ARGUMENT": "correct the argument that the message names, with its value and what is allowed",
    "BAD_NAME": "choose a name that matches the pattern in the message",
    "OFFSET_GAP": "begin a new transaction, and use it in one program only; send the numbers of stamps in order",
    "TXN_STATE": "begin a new transaction; after a lost response retry the commit, whose outcome the channel keeps",
    "NOT_CLAIMED": "claim the channel again, and read from the first sequence of the new claim",
    "NOT_A_CHANNEL": "name one of the source's channels, which `millraced graph` shows",
    "CHANNEL_CONFIGURED": "remove its table from the file, and reload the server with SIGHUP",
    "STALE_EPOCH": "let the newer reader continue; give each pipeline its own reader id, or claim the channel again",
    "CANCELLED": "repeat the call, with the same transaction or stamp if it changes something",
    "CLIENT_CLOSED": "connect again, and keep the client open for as long as its channels are used",
    "CLIENT_FORKED": "connect in the child process, after the fork",
    "STREAM_ENDED": "wait for the events to be delivered again; acknowledge sooner if the lease has run out",
    "BUFFER_FULL": "wait for results, raise `buffer_bytes_max`, or let `send` block",
    "PRODUCER_CLOSED": "create a new producer; close a producer only after its last `send`",
    "EVENT_DROPPED": "raise `buffer_bytes_max`, or choose another `overflow`",
    "SEND_FAILED": "see the reason of the cause on this page",
}
"""Remedies for programs, where the command line has no advice to add to the message."""


def page() -> str:
    """The content of the page."""
    meanings = docstrings_of(RetryAdvice)
    advice = (f"| {one.value} | {meanings[one.name]} |\n" for one in RetryAdvice)
    return "".join([_INTRODUCTION, *advice, _SERVER, *_server_rows(), _CLIENT, *_client_rows()])


def _server_kinds() -> list[type[errors.MillraceError]]:
    kinds = vars(errors).values()
    return [
        kind
        for kind in kinds
        if inspect.isclass(kind) and issubclass(kind, errors.MillraceError) and "reason" in vars(kind)
    ]


def _server_rows() -> Iterator[str]:
    for kind in _server_kinds():
        code = code_of(kind("")).name
        yield f"| `{kind.reason}` | {code} | {_meaning(kind)} | {_end_of_row(ERRORS_BY_REASON[kind.reason])}"


def _client_rows() -> Iterator[str]:
    known = {kind.reason for kind in _server_kinds()}
    for reason, kind in ERRORS_BY_REASON.items():
        if reason not in known:
            yield f"| `{reason}` | {_meaning(kind)} | {_end_of_row(kind)}"


def _meaning(kind: type[Exception]) -> str:
    described, _, _ = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:")
    text = " ".join(described.split()).removeprefix("Raised when ")
    return text[:1].upper() + text[1:]


def _end_of_row(kind: type[MillraceError]) -> str:
    effect = "none" if issubclass(kind, RefusedError) else "unknown"
    remedy = ADVICE.get(kind.default_reason) or _REMEDIES[kind.default_reason]
    return f"{effect} | {kind.default_advice.value} | {remedy.format(channel='CHANNEL')} |\n"


if __name__ == "__main__":
    write_or_check("errors.md", page(), __doc__)
