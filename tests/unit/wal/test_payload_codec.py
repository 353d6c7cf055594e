import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.wal import payload_codec
from millrace_server.wal.format import Flags, Kind
from millrace_server.wal.payload_codec import KeyMismatchError, KeyMissingError, PayloadCodec
from millrace_server.wal.segments import LogCorruptError
from tests.log_histories import CODECS, KEYS, PLAIN

CONTEXT = b"a place of a log"
ENCRYPTING = CODECS[2]
_SEALED_BYTES_MORE = 284


def _encoded(
    codec: PayloadCodec, payload: bytes, kind: int = Kind.PUT, context: bytes = CONTEXT
) -> tuple[Flags, bytes]:
    flags, pieces = codec.encode(kind, [payload[:2], payload[2:]], context)
    return flags, b"".join(pieces)


@given(st.sampled_from(CODECS), st.lists(st.binary() | st.integers(0, 5000).map(bytes)), st.sampled_from(Kind))
def test_decode_of_what_was_encoded_gives_it_back(codec: PayloadCodec, pieces: list[bytes], kind: Kind) -> None:
    """With any codec and any pieces, the payload is restored with its keys, and grows little at most."""
    flags, encoded = codec.encode(kind, pieces, CONTEXT)
    whole = b"".join(encoded)
    assert PLAIN.decode(kind, flags, memoryview(whole), CONTEXT) == b"".join(pieces)
    assert len(whole) <= len(b"".join(pieces)) + _SEALED_BYTES_MORE


@pytest.mark.parametrize("codec", CODECS)
def test_encode_of_an_empty_payload_leaves_it(codec: PayloadCodec) -> None:
    """An empty payload is neither compressed nor encrypted."""
    assert codec.encode(Kind.SYNC_POINT, [], CONTEXT) == (Flags(0), [])
    assert codec.encode(Kind.PUT, [b"", b""], CONTEXT) == (Flags(0), [b"", b""])


@pytest.mark.parametrize(
    ("payload", "is_compressed"),
    [
        (b"x" * 63, False),
        (b"x" * 64, True),
        (random.Random(1).randbytes(1000), False),
        (b"x" * 900 + random.Random(1).randbytes(100), True),
    ],
)
def test_encode_of_what_does_not_get_smaller_leaves_it_uncompressed(payload: bytes, *, is_compressed: bool) -> None:
    """Compression is used only if it helps."""
    flags, encoded = _encoded(PayloadCodec(compresses=True), payload)
    assert (flags is Flags.COMPRESSED, len(encoded) < len(payload)) == (is_compressed, is_compressed)
    assert is_compressed or encoded == payload
    encrypted_flags, _encoded_payload = _encoded(CODECS[3], payload)
    assert encrypted_flags == flags | Flags.ENCRYPTED


def test_encode_with_a_key_hides_the_payload_differently_each_time() -> None:
    """Equal payloads have different ciphertexts, in the documented layout."""
    payload = b"secret" * 10
    encoded = {_encoded(ENCRYPTING, payload)[1] for _ in range(100)}
    assert len({one[4:16] for one in encoded}) == 100
    assert all(one[:4] == b"\3old" for one in encoded)
    assert all(len(one) == 4 + 12 + len(payload) + 16 for one in encoded)
    assert not any(b"secret" in one for one in encoded)


@pytest.mark.parametrize("codec", CODECS[2:])
def test_decode_elsewhere_or_as_something_else_is_refused(codec: PayloadCodec) -> None:
    """A payload can be decrypted only for its channel, its position and its kind."""
    flags, encoded = _encoded(codec, b"payload" * 100)
    assert PLAIN.decode(Kind.PUT, flags, encoded, CONTEXT) == b"payload" * 100
    with pytest.raises(LogCorruptError, match="cannot be decrypted with the key"):
        PLAIN.decode(Kind.TAKE, flags, encoded, CONTEXT)
    with pytest.raises(LogCorruptError, match="cannot be decrypted with the key"):
        PLAIN.decode(Kind.PUT, flags, encoded, b"another place!!!")
    with pytest.raises(LogCorruptError, match="cannot be decrypted with the key"):
        PLAIN.decode(Kind.PUT, flags ^ Flags.COMPRESSED, encoded, CONTEXT)


@pytest.mark.parametrize("codec", CODECS[2:])
def test_decode_with_any_bit_flipped_is_refused(codec: PayloadCodec) -> None:
    """Every change of an encrypted payload is detected; one in the key's id names another key."""
    flags, encoded = _encoded(codec, b"payload" * 20)
    changed = bytearray(encoded)
    for bit in range(8 * len(encoded)):
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(KeyMissingError if 0 < bit // 8 < 4 and bit % 8 < 7 else (LogCorruptError, KeyMissingError)):
            PLAIN.decode(Kind.PUT, flags, bytes(changed), CONTEXT)
        changed[bit // 8] ^= 1 << bit % 8
    assert PLAIN.decode(Kind.PUT, flags, bytes(changed), CONTEXT) == b"payload" * 20


def test_decode_cut_anywhere_is_refused() -> None:
    """An encrypted payload that is cut anywhere raises an error."""
    for codec in CODECS[1:]:
        flags, encoded = _encoded(codec, b"payload" * 20)
        for length in range(len(encoded)):
            with pytest.raises((LogCorruptError, KeyMissingError)):
                PLAIN.decode(Kind.PUT, flags, encoded[:length], CONTEXT)


@pytest.mark.parametrize("encoded", [b"", b"\0", b"\0" * 100, b"\2\xff\xff" + bytes(100)])
def test_decode_of_what_names_no_key_is_refused(encoded: bytes) -> None:
    """An impossible key id is damage, not a missing key."""
    with pytest.raises(LogCorruptError, match="it does not name the key that encrypted it"):
        PLAIN.decode(Kind.PUT, Flags.ENCRYPTED, encoded, CONTEXT)


def test_decode_without_the_key_says_which_is_needed() -> None:
    """A missing key is not damage."""
    flags, encoded = _encoded(ENCRYPTING, b"payload")
    keyless = PayloadCodec(active_key_id="new", keys={"new": KEYS["new"]})
    with pytest.raises(KeyMissingError, match="the encryption key 'old' is needed, and was not given") as raised:
        keyless.decode(Kind.PUT, flags, encoded, CONTEXT)
    assert raised.value.key_id == "old"
    with pytest.raises(KeyMissingError):
        keyless.check_key(flags, encoded)
    keyless.check_key(Flags.COMPRESSED, b"")
    PLAIN.check_key(flags, encoded)


def test_decode_with_another_key_of_that_name_is_refused() -> None:
    """If the key has decrypted nothing yet, the error names the key and is not damage."""
    flags, encoded = _encoded(ENCRYPTING, b"payload")
    with pytest.raises(KeyMismatchError, match="'old' is needed, and the one given is most likely another") as raised:
        PayloadCodec(keys={"old": b"?" * 32}).decode(Kind.PUT, flags, encoded, CONTEXT)
    assert raised.value.key_id == "old"


def test_decode_of_a_changed_payload_with_a_key_that_decrypts_others_is_damage() -> None:
    """A key that has decrypted a payload is the right one, so a failure means that the payload was changed."""
    flags, encoded = _encoded(ENCRYPTING, b"payload")
    codec = PayloadCodec(keys=KEYS)
    changed = encoded[:-1] + bytes([encoded[-1] ^ 1])
    with pytest.raises(KeyMismatchError):
        codec.decode(Kind.PUT, flags, changed, CONTEXT)
    assert codec.decode(Kind.PUT, flags, encoded, CONTEXT) == b"payload"
    with pytest.raises(LogCorruptError, match="with the key 'old': the payload has changed"):
        codec.decode(Kind.PUT, flags, changed, CONTEXT)


def test_decode_of_a_frame_that_claims_too_much_sets_nothing_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes that claim to expand to very many are refused before decompression."""
    monkeypatch.setattr(payload_codec, "PAYLOAD_BYTES_MAX", 1000)
    flags, encoded = _encoded(PayloadCodec(compresses=True), bytes(1000))
    assert PLAIN.decode(Kind.PUT, flags, encoded, CONTEXT) == bytes(1000)
    bomb = zstandard.ZstdCompressor().compress(bytes(1001))
    with pytest.raises(LogCorruptError, match="cannot be decompressed: it claims to have 1001 bytes"):
        PLAIN.decode(Kind.PUT, Flags.COMPRESSED, bomb, CONTEXT)


def test_decode_of_a_frame_that_does_not_tell_its_length_is_refused() -> None:
    """Millrace writes no such frame, and decompressing it would need an unknown amount of memory."""
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(LogCorruptError, match="it claims to have -1 bytes"):
        PLAIN.decode(Kind.PUT, Flags.COMPRESSED, endless, CONTEXT)


@pytest.mark.parametrize("change", [lambda frame: frame + b"more", lambda frame: frame * 2, lambda _frame: b"no frame"])
def test_decode_of_what_is_not_one_frame_is_refused(change: Callable[[bytes], bytes]) -> None:
    """The payload must be exactly one frame."""
    flags, encoded = _encoded(PayloadCodec(compresses=True), bytes(1000))
    with pytest.raises(LogCorruptError, match="it cannot be decompressed"):
        PLAIN.decode(Kind.PUT, flags, change(encoded), CONTEXT)


def test_encode_and_decode_on_many_threads_at_once_mix_nothing() -> None:
    """One codec is shared by all threads."""

    def there_and_back(number: int) -> bool:
        payload = b"%d " % number * 5000
        flags, encoded = _encoded(CODECS[3], payload)
        return PLAIN.decode(Kind.PUT, flags, encoded, CONTEXT) == payload

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, range(400)))


@pytest.mark.parametrize(
    ("active_key_id", "keys", "message"),
    [
        ("missing", KEYS, "the active key is among the keys"),
        ("", {"": bytes(32)}, "1 to 255 characters"),
        ("", {"k" * 256: bytes(32)}, "1 to 255 characters"),
        ("", {"schlüssel": bytes(32)}, "is ASCII"),
        ("", {"short": bytes(16)}, "a key has 32 bytes"),
    ],
)
def test_codec_with_invalid_keys_is_refused(active_key_id: str, keys: dict[str, bytes], message: str) -> None:
    """The caller has validated the user's keys before."""
    with pytest.raises(AssertionError, match=message):
        PayloadCodec(active_key_id=active_key_id, keys=keys)


def test_codec_shows_no_keys() -> None:
    """Keys must not appear in logs."""
    assert repr(CODECS[3]) == "PayloadCodec(compresses=True, active_key_id='new')"


def test_import_of_the_log_does_not_import_zstd_or_cryptography() -> None:
    """Their imports are slow, and few channels need them."""
    code = (
        "import sys, millrace_server.wal.log, millrace_server.wal.checkpoints; "
        "print(*{'zstandard', 'cryptography'} & set(sys.modules))"
    )
    imported = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert imported == "\n"
