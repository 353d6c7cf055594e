"""What the command line says instead of a configuration file."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace_spark.landing.config import SparkConfig
from millrace_spark.landing.config_file import ConfigError, parse_override


@dataclass(frozen=True, kw_only=True)
class LandOptions:
    """Options of the command line; None, or False, where one was not given."""

    endpoints: list[str] | None = None
    channels: list[str] | None = None
    path: str | None = None
    parse_type: str | None = None
    columns: str | None = None
    pattern: str | None = None
    partition_by: list[str] | None = None
    bad_channel: str | None = None
    follow: bool = False
    master: str | None = None
    conf: list[str] | None = None
    settings: list[str] | None = None

    def overrides(self) -> Iterator[tuple[str, object]]:
        """The settings that were given, by their path.

        Raises:
            ConfigError: One of `--set` or `--conf` has no `=`.
        """
        for setting, value in (
            ("source.endpoints", self.endpoints),
            ("source.channels", self.channels),
            ("target.path", self.path),
            ("parse.type", self.parse_type),
            ("parse.columns", self.columns),
            ("parse.pattern", self.pattern),
            ("partitions.by", self.partition_by),
            ("bad_lines.channel", self.bad_channel),
            ("run.follow", self.follow or None),
            ("spark.master", self.master),
        ):
            if value:
                yield setting, value
        for name, value in self._conf():
            yield f"spark.conf.{name}", value
        yield from map(parse_override, self.settings or ())

    def spark_config(self) -> SparkConfig:
        """The Spark that they ask for.

        Raises:
            ConfigError: A `--conf` has no `=`.
        """
        conf = dict(self._conf())
        return SparkConfig(master=self.master, conf=conf) if self.master else SparkConfig(conf=conf)

    def _conf(self) -> Iterator[tuple[str, str]]:
        for text in self.conf or ():
            name, sign, value = text.partition("=")
            if not sign or not name:
                raise ConfigError("command line", [f"--conf: is {text!r}; it must be NAME=VALUE"])
            yield name, value
