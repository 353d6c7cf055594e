"""Reads the configuration of a landing: a TOML file and the command line."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_spark.landing.config import LandingConfig

FILE_BYTES_MAX = 1024 * 1024
"""The largest configuration file."""


class ConfigError(Exception):
    """Raised for an invalid configuration; `problems` has one sentence for each error."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.problems = problems


def load_config(path: Path | None, overrides: Iterable[tuple[str, object]] = ()) -> LandingConfig:
    """Reads and validates a configuration.

    Args:
        path: The TOML file; None if the overrides hold all settings.
        overrides: Settings that override the file, by their path such as `target.path`.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has invalid settings. Lists all errors.
    """
    source = "command line" if path is None else str(path)
    tables = {} if path is None else _parse(source, _read(source, path))
    for setting, value in overrides:
        _put(tables, setting, value)
    return check_config(tables, source)


def check_config(tables: Mapping[str, Any], source: str) -> LandingConfig:
    """Validates a parsed configuration."""
    try:
        # Strict, since TOML has types: neither "100" nor true is a count.
        return LandingConfig.model_validate(dict(tables), strict=True)
    except ValidationError as error:
        raise ConfigError(source, describe_problems(error, LandingConfig)) from None


def parse_override(text: str) -> tuple[str, object]:
    """Parses `SETTING=VALUE`, with a value in TOML; any other value is text."""
    setting, sign, value = text.partition("=")
    if not sign or not setting.strip():
        raise ConfigError("command line", [f"--set: is {text!r}; it must be SETTING=VALUE, such as run.follow=true"])
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


def _read(source: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(source, [f"cannot be read: {error.strerror}"]) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(source, [f"is larger than {FILE_BYTES_MAX} bytes, the most that is allowed"])
    return content


def _parse(source: str, content: bytes) -> dict[str, Any]:
    try:
        # Editors on Windows write a byte order mark.
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(source, ["is not UTF-8, the encoding of TOML"]) from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(source, [f"is not TOML: {error}"]) from None


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
            raise ConfigError("command line", [f"--conf: is {text!r}; it must be NAME=VALUE"])
    return dict(text.split("=", 1) for text in conf)
