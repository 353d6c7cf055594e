"""Compression and encryption of payloads on their way to the disk and back.

COMPRESSED is one zstd frame that states its content size. ENCRYPTED is applied after it:

     0   1  length of the key's id
     1      the key's id, ASCII
        12  nonce, random
            AES-256-GCM's ciphertext and its tag of 16 bytes

The context (where the payload lies), the kind, the flags and the key's id are the associated data. A payload therefore
authenticates only in its own position, and only as what it was.
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
    # Both take long to import, and most channels need neither.
    import zstandard
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
"""AES-256."""
KEY_ID_BYTES_MAX = 255

# Level 1: the writer's thread compresses, and a higher level would cost more time than the disk saves.
_COMPRESSION_LEVEL = 1
# Shorter payloads do not get smaller.
_COMPRESSED_BYTES_MIN = 64
# The length that GCM is specified for; random, since a counter would have to survive crashes.
_NONCE_BYTES = 12
_PLAIN = Flags(0)
# Looked up, since combining members of an IntFlag with `|` is slow.
_FLAGS_BY_STEPS = {
    (False, False): _PLAIN,
    (True, False): Flags.COMPRESSED,
    (False, True): Flags.ENCRYPTED,
    (True, True): Flags.COMPRESSED | Flags.ENCRYPTED,
}

Payload = bytes | memoryview


class KeyMissingError(Exception):
    """Raised when a payload needs an encryption key that was not given. Nothing was changed.

    Attributes:
        key_id: The key's id.
    """

    _what = "was not given"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"the encryption key {key_id!r} is needed, and {self._what}")
        self.key_id = key_id


class KeyMismatchError(KeyMissingError):
    """Raised when an intact payload cannot be decrypted, nor was any other with this key: it is most likely another."""

    _what = "the one given is most likely another: it does not decrypt a record whose checksum matches"


class _ThreadState(threading.local):
    """One thread's zstd objects, which are not thread-safe."""

    compressor: "zstandard.ZstdCompressor | None" = None
    decompressor: "zstandard.ZstdDecompressor | None" = None


# Its objects are freed with their thread.
_THREAD_STATE = _ThreadState()


@dataclass(frozen=True, slots=True)
class PayloadCodec:
    """Encodes a channel's payloads as configured, and decodes all that any configuration encoded, given the keys."""

    compresses: bool = False
    """Whether payloads are compressed when that makes them smaller."""
    active_key_id: str = ""
    """The key that encrypts; empty: payloads are not encrypted."""
    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Keys of 32 bytes by their ASCII ids: the active one and those of older payloads."""
    is_active: bool = field(init=False, repr=False, compare=False)
    """Whether encoding changes payloads at all."""
    # Keys that have decrypted something, and so are the right ones.
    _proven: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    # Of all keys, since records that older keys encrypted stay in the log.
    _ciphers: "dict[str, AESGCM]" = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert not self.active_key_id or self.active_key_id in self.keys, "the active key is among the keys"
        object.__setattr__(self, "is_active", self.compresses or bool(self.active_key_id))
        if self.compresses:
            # A missing library must show now, not when the first commit waits.
            _compressor()
        for key_id, key in self.keys.items():
            assert key_id.isascii(), "a key's id is ASCII"
            assert 0 < len(key_id) <= KEY_ID_BYTES_MAX, "a key's id has 1 to 255 characters"
            assert len(key) == KEY_BYTES, "a key has 32 bytes"
            # Once, and not for each payload: expanding a key takes longer than encrypting a small payload.
            self._ciphers[key_id] = _cipher(key)

    def encode(self, kind: int, pieces: Sequence[Piece], context: bytes) -> tuple[Flags, Sequence[Piece]]:
        """Encodes a payload.

        Args:
            kind: The record's kind; the payload decodes only as the same kind.
            pieces: The payload. An empty one stays as it is.
            context: The position that the payload is written to; it decodes only there.

        Returns:
            How it was encoded, and the encoded payload in pieces, at most 284 bytes longer.
        """
        if not self.is_active or not any(pieces):
            return _PLAIN, pieces
        # Neither zstd nor AES-GCM takes pieces here, so this is the one copy that encoding costs.
        whole = b"".join(pieces)
        is_compressed = False
        if self.compresses and len(whole) >= _COMPRESSED_BYTES_MIN:
            compressed = _compressor().compress(whole)
            # Incompressible payloads stay as they are, so that no reader has to decompress them for nothing.
            is_compressed = len(compressed) < len(whole)
            whole = compressed if is_compressed else whole
        flags = _FLAGS_BY_STEPS[is_compressed, bool(self.active_key_id)]
        if not self.active_key_id:
            return flags, [whole]
        key_id = self.active_key_id.encode("ascii")
        nonce = os.urandom(_NONCE_BYTES)
        # Compression comes first: ciphertext does not compress.
        associated = _associated_data(context, kind, flags, key_id)
        ciphertext = self._ciphers[self.active_key_id].encrypt(nonce, whole, associated)
        # The key's id is in front, in the clear: without it a reader would have to try all keys.
        return flags, [bytes([len(key_id)]) + key_id + nonce, ciphertext]

    def decode(self, kind: int, flags: Flags, payload: Payload, context: bytes) -> Payload:
        """Decodes what `encode` returned.

        Raises:
            KeyMissingError: It needs a key that was not given, or another one was given under the key's id.
            LogCorruptError: It is not what was encoded, or not there.
        """
        # The reverse order of `encode`.
        if Flags.ENCRYPTED in flags:
            payload = self._decrypt(kind, flags, payload, context)
        if Flags.COMPRESSED in flags:
            payload = _decompress(payload)
        return payload

    def check_key(self, flags: Flags, payload: Payload) -> None:
        """Checks, without decoding it, that the key of a payload was given.

        Raises:
            KeyMissingError: It was not.
        """
        if Flags.ENCRYPTED in flags:
            key_id = _key_id(payload)
            if key_id not in self._ciphers:
                raise KeyMissingError(key_id)

    def _decrypt(self, kind: int, flags: Flags, payload: Payload, context: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        # First, so that a missing key is reported as such and not as damage.
        self.check_key(flags, payload)
        key_id = _key_id(payload)
        start = 1 + len(key_id)
        nonce, ciphertext = payload[start : start + _NONCE_BYTES], payload[start + _NONCE_BYTES :]
        try:
            associated = _associated_data(context, kind, flags, key_id.encode("ascii"))
            decrypted = self._ciphers[key_id].decrypt(nonce, ciphertext, associated)
        except (InvalidTag, ValueError) as error:
            # ValueError: the payload is too short to hold a nonce and a tag.
            if isinstance(error, InvalidTag) and key_id not in self._proven:
                raise KeyMismatchError(key_id) from None
            raise LogCorruptError(f"it cannot be decrypted with the key {key_id!r}: the payload has changed") from None
        self._proven.add(key_id)
        return decrypted


def _key_id(payload: Payload) -> str:
    key_id = bytes(payload[1 : 1 + payload[0]]) if payload else b""
    if not key_id or not key_id.isascii():
        raise LogCorruptError("it does not name the key that encrypted it")
    return key_id.decode("ascii")


def _associated_data(context: bytes, kind: int, flags: Flags, key_id: bytes) -> bytes:
    # Unambiguous without separators: the contexts of a kind all have the same length, and the key's id comes last.
    return context + bytes([kind, flags]) + key_id


def _cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _compressor() -> "zstandard.ZstdCompressor":
    if _THREAD_STATE.compressor is None:
        import zstandard

        _THREAD_STATE.compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
    return _THREAD_STATE.compressor


def _decompress(payload: Payload) -> bytes:
    import zstandard

    if _THREAD_STATE.decompressor is None:
        _THREAD_STATE.decompressor = zstandard.ZstdDecompressor()
    try:
        length = zstandard.frame_content_size(payload)
        # Decompression allocates this much, so a damaged or hostile frame must not choose it; -1 where it states none.
        if not 0 <= length <= PAYLOAD_BYTES_MAX:
            raise LogCorruptError(f"it cannot be decompressed: it claims to have {length} bytes")
        # The frame is the whole payload, so anything after it is damage.
        return _THREAD_STATE.decompressor.decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise LogCorruptError(f"it cannot be decompressed: {error}") from None
