"""The configuration in force, with defaults and without secrets."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from millrace.setting_problems import without_passwords
from millrace_server.configuration.settings import Settings

_REDACTED = "***"


def sections_of(settings: Settings) -> list[dict[str, Any]]:
    """Returns each table of the configuration, with all its settings."""
    return [{"name": name, "settings": settings_of(table)} for name, table in _tables(settings)]


def _tables(settings: Settings) -> Iterator[tuple[str, BaseModel]]:
    for field in Settings.model_fields:
        value = getattr(settings, field)
        if isinstance(value, BaseModel):
            yield field, value
        elif isinstance(value, Mapping):
            yield from ((f"{field}.{name}", table) for name, table in value.items())


def settings_of(table: BaseModel) -> list[dict[str, Any]]:
    """Returns the settings of a table with their values and defaults; a default of None may depend on the others."""
    values = _redacted(table.model_dump(mode="json"))
    settings = []
    for name, field in type(table).model_fields.items():
        default = _default_of(field)
        shown_default = _redacted(json.loads(json.dumps(default, default=str)))
        is_default = name not in table.model_fields_set or getattr(table, name) == default
        settings.append({"name": name, "value": values[name], "default": shown_default, "is_default": is_default})
    return settings


def _default_of(field: FieldInfo) -> Any:
    if field.default_factory is not None and field.default_factory_takes_validated_data:
        return None
    default = field.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def _redacted(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _redacted_entry(key, value) for key, value in values.items()}
    if isinstance(values, list):
        return [_redacted(value) for value in values]
    return without_passwords(values) if isinstance(values, str) else values


def _redacted_entry(key: str, value: Any) -> Any:
    if key == "command" and isinstance(value, list):
        # The arguments of a command may hold secrets.
        return [*value[:1], *[_REDACTED] * (len(value) > 1)]
    return _redacted(value)
