"""Packed bodies: gzip and zstd, unpacked up to a limit."""

import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import zstandard

from millrace_server.agent.sources.http_refusals import HttpRefusalError, bad_request, too_large

_MEMBERS_MAX = 1_000
_GZIP_WINDOW_BITS = 31
# What RFC 8878 asks of every receiver.
_ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024


class _Member(Protocol):
    """What unpacks one member of gzip, or one frame of zstd."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Packing(NamedTuple):
    """One way of packing."""

    name: str
    portion_bytes: int
    """So much is unpacked at once: small enough that it never becomes more than some MiB."""
    start_member: Callable[[], _Member]

    def unpack(self, packed: bytes, bytes_max: int) -> bytes:
        """What was packed.

        Raises:
            HttpRefusalError: It is larger than `bytes_max`, found out little later than there is so much of it; or it
                was not packed so, or not as a whole.
        """
        unpacked = bytearray()
        position = member_count = 0
        while position < len(packed):
            member_count += 1
            if member_count > _MEMBERS_MAX:
                raise bad_request(f"the body has more than {_MEMBERS_MAX} parts of {self.name}; pack it as one")
            member = self.start_member()
            while not member.eof:
                portion = packed[position : position + self.portion_bytes]
                if not portion:
                    raise bad_request(f"the body is {self.name} that ends in the middle")
                position += len(portion)
                unpacked += self._unpack_portion(member, portion)
                if len(unpacked) > bytes_max:
                    raise too_large(
                        f"the body has more than {bytes_max} bytes when it is unpacked; send it in several requests"
                    )
            position -= len(member.unused_data)
        return bytes(unpacked)

    def _unpack_portion(self, member: _Member, portion: bytes) -> bytes:
        try:
            return member.decompress(portion)
        except (zlib.error, zstandard.ZstdError) as error:
            raise bad_request(f"the body is not {self.name}, although Content-Encoding says so: {error}") from None


def _start_zstd() -> _Member:
    return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()


# A byte of gzip becomes 1,032 at most; four of zstd become 128 KiB.
_GZIP = Packing("gzip", 4 * 1024, lambda: zlib.decompressobj(_GZIP_WINDOW_BITS))
_ZSTD = Packing("zstd", 256, _start_zstd)


def find_packing(content_encoding: str) -> Packing | None:
    """How a body is packed; None where it is not.

    Raises:
        HttpRefusalError: It is not known here.
    """
    match content_encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return _GZIP
        case "zstd":
            return _ZSTD
        case _:
            sentence = f"Content-Encoding is {content_encoding!r}; it must be gzip, zstd or identity"
            raise HttpRefusalError(415, "BAD_ENCODING", sentence, is_unread=True)
