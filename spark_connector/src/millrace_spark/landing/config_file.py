"""Reads the configuration of a landing: a TOML file and the command line."""

import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millrace.setting_file import SettingsError, load_settings_file
from millrace.setting_problems import Problem, describe_problems
from millrace_spark.landing.config import LandingConfig


def load_config(path: Path | None, overrides: Iterable[tuple[str, object]] = ()) -> LandingConfig:
    """Reads and validates a configuration.

    Args:
        path: The TOML file; None if the overrides hold all settings.
        overrides: Settings that override the file, by their path such as `target.path`.

    Raises:
        SettingsError: The file cannot be read, is not TOML, or has invalid settings. Lists all errors.
    """
    given = list(overrides)
    if path is None:
        return _overridden({}, given, "command line")
    return load_settings_file(path, partial(_overridden, overrides=given, source=str(path)))


def _overridden(tables: dict[str, Any], overrides: Iterable[tuple[str, object]], source: str) -> LandingConfig:
    for setting, value in overrides:
        _put(tables, setting, value)
    return check_config(tables, source)


def check_config(tables: Mapping[str, Any], source: str) -> LandingConfig:
    """Validates a parsed configuration."""
    try:
        # Strict, since TOML has types: neither "100" nor true is a count.
        return LandingConfig.model_validate(dict(tables), strict=True)
    except ValidationError as error:
        raise SettingsError(source, describe_problems(error, LandingConfig)) from None


def parse_override(text: str) -> tuple[str, object]:
    """Parses `SETTING=VALUE`, with a value in TOML; any other value is text."""
    setting, sign, value = text.partition("=")
    if not sign or not setting.strip():
        raise SettingsError(
            "command line", [Problem((), f"--set: is {text!r}; it must be SETTING=VALUE, such as run.follow=true")]
        )
    try:
        return setting.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return setting.strip(), value


def _put(tables: dict[str, Any], setting: str, value: object) -> None:
    *folders, name = setting.split(".", 2 if setting.startswith("spark.conf.") else -1)
    table = tables
    for folder in folders:
        inner = table.setdefault(folder, {})
        if not isinstance(inner, dict):
            # The validation reports that this is not a table.
            return
        table = inner
    table[name] = value


def command_line_overrides(
    options: Mapping[str, object], conf: Iterable[str], settings: Iterable[str]
) -> list[tuple[str, object]]:
    """Returns the settings on the command line, by their path. Options without a value override nothing."""
    given = [(setting, value) for setting, value in options.items() if value]
    given += [(f"spark.conf.{name}", value) for name, value in parse_conf(conf).items()]
    return [*given, *map(parse_override, settings)]


def parse_conf(conf: Iterable[str]) -> dict[str, str]:
    """Parses `NAME=VALUE` settings of Spark."""
    for text in conf:
        if text.find("=") < 1:
            raise SettingsError("command line", [Problem((), f"--conf: is {text!r}; it must be NAME=VALUE")])
    return dict(text.split("=", 1) for text in conf)
