"""Sealing: payloads are compressed and encrypted before they go to the disk, and opened when they come back.

COMPRESSED is one zstd frame that says how long its content is. ENCRYPTED, which comes after it, is

     0   1  length of the key's id
     1      the key's id, ASCII
        12  nonce, random
            AES-256-GCM's ciphertext and its tag of 16 bytes

with the place, the kind, the flags and the key's id as associated data. So a payload opens only where it was sealed,
and as what it was.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace_server.wal.disk import Piece
from millrace_server.wal.format import PAYLOAD_BYTES_MAX, Flags
from millrace_server.wal.segments import LogCorruptError

if TYPE_CHECKING:
    # They take long to import, and most channels need neither.
    import zstandard
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
"""AES-256."""
KEY_ID_BYTES_MAX = 255

_COMPRESSION_LEVEL = 1
_COMPRESSED_BYTES_MIN = 64
"""What is shorter does not get smaller."""
_NONCE_BYTES = 12
_PLAIN = Flags(0)
_SEALED_FLAGS = {
    (False, False): _PLAIN,
    (True, False): Flags.COMPRESSED,
    (False, True): Flags.ENCRYPTED,
    (True, True): Flags.COMPRESSED | Flags.ENCRYPTED,
}

Payload = bytes | memoryview


class KeyMissingError(Exception):
    """Returned when a payload needs a key that was not given. Nothing was changed.

    Attributes:
        key_id: Which one.
    """

    def __init__(self, key_id: str) -> None:
        super().__init__(f"the encryption key {key_id!r} is needed, and was not given")
        self.key_id = key_id


class _Local(threading.local):
    """What a thread compresses with: these objects must not be used by two threads at once."""

    compressor: "zstandard.ZstdCompressor | None" = None
    decompressor: "zstandard.ZstdDecompressor | None" = None


_LOCAL = _Local()


@dataclass(frozen=True, slots=True)
class PayloadCodec:
    """How a channel's payloads are sealed. Opens all that were ever sealed otherwise, if it has their keys."""

    compresses: bool = False
    """Whether payloads are compressed where that makes them smaller."""
    active_key_id: str = ""
    """Which key encrypts; with none, nothing is encrypted."""
    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Keys of 32 bytes by their ids, which are ASCII: the active one, and those of older payloads."""
    _ciphers: "dict[str, AESGCM]" = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert not self.active_key_id or self.active_key_id in self.keys, "the active key is among the keys"
        if self.compresses:
            # Should it be missing, that shows now, and not when the first commit waits.
            _compressor()
        for key_id, key in self.keys.items():
            assert key_id.isascii(), "a key's id is ASCII"
            assert 0 < len(key_id) <= KEY_ID_BYTES_MAX, "a key's id has 1 to 255 characters"
            assert len(key) == KEY_BYTES, "a key has 32 bytes"
            self._ciphers[key_id] = _cipher(key)

    @property
    def seals(self) -> bool:
        """Whether it does anything to a payload."""
        return self.compresses or bool(self.active_key_id)

    def seal(self, kind: int, pieces: Sequence[Piece], context: bytes) -> tuple[Flags, Sequence[Piece]]:
        """Seals a payload.

        Args:
            kind: What it is; it opens as the same only.
            pieces: The payload. An empty one stays as it is.
            context: Where it will lie; it opens there only.

        Returns:
            How it was sealed, and the sealed payload in pieces, at most 284 bytes longer.
        """
        if not self.seals or not any(pieces):
            return _PLAIN, pieces
        whole = b"".join(pieces)
        is_compressed = False
        if self.compresses and len(whole) >= _COMPRESSED_BYTES_MIN:
            compressed = _compressor().compress(whole)
            is_compressed = len(compressed) < len(whole)
            whole = compressed if is_compressed else whole
        flags = _SEALED_FLAGS[is_compressed, bool(self.active_key_id)]
        if not self.active_key_id:
            return flags, [whole]
        key_id = self.active_key_id.encode("ascii")
        nonce = os.urandom(_NONCE_BYTES)
        associated = _associated(context, kind, flags, key_id)
        ciphertext = self._ciphers[self.active_key_id].encrypt(nonce, whole, associated)
        return flags, [bytes([len(key_id)]) + key_id + nonce, ciphertext]

    def open(self, kind: int, flags: Flags, payload: Payload, context: bytes) -> Payload:
        """Gives back what was sealed.

        Raises:
            KeyMissingError: It needs a key that was not given.
            LogCorruptError: It is not what was sealed, or not there, or not with this key.
        """
        if Flags.ENCRYPTED in flags:
            payload = self._decrypt(kind, flags, payload, context)
        if Flags.COMPRESSED in flags:
            payload = _decompress(payload)
        return payload

    def check_key(self, flags: Flags, payload: Payload) -> None:
        """Makes sure that the key is there which a payload needs, without opening it.

        Raises:
            KeyMissingError: It is not.
        """
        if Flags.ENCRYPTED in flags:
            key_id = _key_id(payload)
            if key_id not in self._ciphers:
                raise KeyMissingError(key_id)

    def _decrypt(self, kind: int, flags: Flags, payload: Payload, context: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        self.check_key(flags, payload)
        key_id = _key_id(payload)
        start = 1 + len(key_id)
        nonce, ciphertext = payload[start : start + _NONCE_BYTES], payload[start + _NONCE_BYTES :]
        try:
            associated = _associated(context, kind, flags, key_id.encode("ascii"))
            return self._ciphers[key_id].decrypt(nonce, ciphertext, associated)
        except (InvalidTag, ValueError):
            raise LogCorruptError(f"it does not open with the key {key_id!r}: it was changed, or the key was") from None


def _key_id(payload: Payload) -> str:
    key_id = bytes(payload[1 : 1 + payload[0]]) if payload else b""
    if not key_id or not key_id.isascii():
        raise LogCorruptError("it does not say which key opens it")
    return key_id.decode("ascii")


def _associated(context: bytes, kind: int, flags: Flags, key_id: bytes) -> bytes:
    # Contexts of one kind have one length, so no two sets of parts give the same bytes.
    return context + bytes([kind, flags]) + key_id


def _cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _compressor() -> "zstandard.ZstdCompressor":
    if _LOCAL.compressor is None:
        import zstandard

        _LOCAL.compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
    return _LOCAL.compressor


def _decompress(payload: Payload) -> bytes:
    import zstandard

    if _LOCAL.decompressor is None:
        _LOCAL.decompressor = zstandard.ZstdDecompressor()
    try:
        length = zstandard.frame_content_size(payload)
        # It is what decompressing will set aside; -1 where the frame does not say.
        if not 0 <= length <= PAYLOAD_BYTES_MAX:
            raise LogCorruptError(f"it cannot be decompressed: it claims to have {length} bytes")
        return _LOCAL.decompressor.decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise LogCorruptError(f"it cannot be decompressed: {error}") from None
