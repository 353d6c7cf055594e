"""What a model declares at a place of the configuration."""

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def unwrapped(declared: object) -> tuple[Any, list[Any]]:
    """The type that is declared, without None, which TOML does not have, and what else is said of it."""
    metadata: list[Any] = []
    if isinstance(declared, FieldInfo):
        # Pydantic takes what an alias says of a union over into the field.
        metadata += [*declared.metadata, *([declared] if declared.discriminator else [])]
        declared = declared.annotation
    if get_origin(declared) in (Union, UnionType):
        kinds = [kind for kind in get_args(declared) if kind is not NoneType]
        declared = kinds[0] if len(kinds) == 1 else declared
    if get_origin(declared) is Annotated:
        declared, *said = get_args(declared)
        metadata += said
    return declared, metadata


def choices_of(declared: object) -> tuple[str, dict[str, type[BaseModel]]]:
    """The models of a union by the value of the field that tells them apart, which comes first."""
    annotation, metadata = unwrapped(declared)
    fields = [str(said.discriminator) for said in metadata if isinstance(said, FieldInfo) and said.discriminator]
    if not fields:
        return "", {}
    [field] = fields
    return field, {tag: model for model in get_args(annotation) for tag in get_args(fields_of(model)[field].annotation)}


def fields_of(declared: object) -> dict[str, FieldInfo]:
    """The fields of the model that is declared."""
    model, _ = unwrapped(declared)
    fields: dict[str, FieldInfo] = model.model_fields
    return fields
