"""What an upgrade to this version changes on the disk, found without changing anything."""

from dataclasses import dataclass

from millrace_server.log_tools.layout import ChannelLayout
from millrace_server.wal import checkpoints
from millrace_server.wal import format as segment_format
from millrace_server.wal.versions import FileVersions, read_versions


@dataclass(frozen=True, slots=True)
class ChannelUpgrade:
    """One channel's files, as this version finds them."""

    channel: str
    versions: FileVersions

    @property
    def sentence(self) -> str:
        """What will happen to the files."""
        if not self.versions.is_known:
            return f"{self._formats()}: a later version wrote it, and this one does not open it"
        if self.versions.is_earlier:
            return (
                f"{self._formats()}: will be converted to log format {segment_format.VERSION} and checkpoint format "
                f"{checkpoints.VERSION} as it is written; earlier versions cannot open it from then on"
            )
        return "nothing to convert"

    def document(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "channel": self.channel,
            "log_format": self.versions.segment,
            "checkpoint_format": self.versions.checkpoint,
            "is_readable": self.versions.is_known,
            "is_converted": self.versions.is_earlier,
        }

    def _formats(self) -> str:
        return f"log format {self.versions.segment or '-'}, checkpoint format {self.versions.checkpoint or '-'}"


def inspect_channel(layout: ChannelLayout) -> ChannelUpgrade:
    """Finds out what an upgrade does to one channel.

    Raises:
        OSError: Its files cannot be read.
    """
    return ChannelUpgrade(layout.name, read_versions(layout.directories, layout.checkpoint_dir))
