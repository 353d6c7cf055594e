"""The reference of the wire contract, from the comments in its protos."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ("channel_service", "admin_service", "event")

_INTRODUCTION = """\
# gRPC

The package `millrace.v1`, from the comments of its protos in `protos/millrace/v1`. Health, reflection and channelz are
served beside it.

"""
# Numbers of the fields in descriptor.proto, of which the paths of comments consist.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_NESTED, _NESTED_ENUMS, _FIELDS, _METHODS, _VALUES = 3, 4, 2, 2, 2

Comments = dict[tuple[int, ...], str]


def page() -> str:
    """All services, messages and enumerations, as Markdown."""
    return _INTRODUCTION + "\n".join(line for file in _files() for line in _describe(file))


def _files() -> list[FileDescriptorProto]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        names = [f"millrace/v1/{name}.proto" for name in PROTOS]
        paths = [f"--proto_path={ROOT / 'protos'}", f"--proto_path={ROOT / 'third_party' / 'googleapis'}"]
        paths.append(f"--proto_path={Path(protoc.__file__).parent / '_proto'}")
        options = ["--include_source_info", f"--descriptor_set_out={target}"]
        if protoc.main(["protoc", *paths, *options, *names]) != 0:
            raise RuntimeError("the protos cannot be compiled")
        return list(FileDescriptorSet.FromString(target.read_bytes()).file)


def _describe(file: FileDescriptorProto) -> Iterator[str]:
    places = file.source_code_info.location
    comments = {tuple(place.path): _prose(place.leading_comments or place.trailing_comments) for place in places}
    for index, service in enumerate(file.service):
        yield from (f"## {service.name}", "", comments.get((_SERVICES, index), ""), "")
        for number, method in enumerate(service.method):
            kinds = [_stream(method.client_streaming), _stream(method.server_streaming)]
            yield f"### {method.name} {{ #{service.name}.{method.name} }}"
            yield f"\n`{kinds[0]}{_short(method.input_type)}` → `{kinds[1]}{_short(method.output_type)}`\n"
            yield comments.get((_SERVICES, index, _METHODS, number), "") + "\n"
    if file.message_type and not file.service:
        yield "## Events\n"
    elif file.message_type:
        yield f"## Messages of {file.service[0].name}\n"
    for index, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGES, index), comments, message.name)
    for index, enum in enumerate(file.enum_type):
        path = (_ENUMS, index)
        values = ((value.name, value.number, "", (*path, _VALUES, n)) for n, value in enumerate(enum.value))
        yield from _table(enum.name, ("value", "number"), list(values), comments, path)


def _message(message: DescriptorProto, path: tuple[int, ...], comments: Comments, name: str) -> Iterator[str]:
    fields = ((one.name, one.number, _type(one, message), (*path, _FIELDS, n)) for n, one in enumerate(message.field))
    yield from _table(name, ("field", "number", "type"), list(fields), comments, path)
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, (*path, _NESTED, index), comments, f"{name}.{nested.name}")


def _table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, int, str, tuple[int, ...]]],
    comments: Comments,
    path: tuple[int, ...],
) -> Iterator[str]:
    yield f"### {name}\n"
    yield comments.get(path, "") + "\n"
    if not rows:
        return
    yield f"| {' | '.join(columns)} | meaning |"
    yield "| --- " * (len(columns) + 1) + "|"
    for label, number, kind, place in rows:
        cells = [f"`{label}`", str(number), *([kind] if len(columns) > len(("value", "number")) else [])]
        yield f"| {' | '.join(cells)} | {comments.get(place, '').replace('|', chr(92) + '|')} |"
    yield ""


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entry = next((one for one in message.nested_type if one.name == _short(field.type_name)), None)
    if entry is not None and entry.options.map_entry:
        return f"map of {_type(entry.field[0], entry)} to {_type(entry.field[1], entry)}"
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    named = f"`{_short(field.type_name)}`" if field.type_name else f"`{kind}`"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {named}"
    return f"optional {named}" if field.proto3_optional else named


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _stream(is_stream: bool) -> str:  # noqa: FBT001 - as protobuf has it
    return "stream " if is_stream else ""


def _prose(comment: str) -> str:
    return " ".join(comment.split())
