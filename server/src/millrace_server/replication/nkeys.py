"""NKEYs of NATS: Ed25519 keys whose seeds are text. Only those of users are needed, to sign what the engine asks."""

import base64
import binascii
import json
from pathlib import Path
from typing import Self

_SEED = 18 << 3
_USER = 20 << 3
_SEED_BYTES = 32
_PREFIX_BYTES = 2
_CHECKSUM_BYTES = 2


class Nkey:
    """A user's key. It shows nothing of itself."""

    def __init__(self, seed: bytes) -> None:
        # Heavy, and not needed without such a key.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    @classmethod
    def parse(cls, text: str, path: Path) -> Self:
        """Decodes a user's seed; raises ValueError, with the file that it is from, if it is none.

        It is in base32, behind it a CRC-16, before it what it is: two times 5 bits, for a seed and for a user.
        """
        wrong = ValueError(f"is {json.dumps(str(path))}, which does not hold the NKEY seed of a user, such as SU...")
        try:
            raw = base64.b32decode(text + "=" * (-len(text) % 8))
        except (ValueError, binascii.Error):
            raise wrong from None
        body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
        if len(body) != _PREFIX_BYTES + _SEED_BYTES or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum:
            raise wrong
        if body[0] & 0xF8 != _SEED or (body[0] & 7) << 5 | body[1] >> 3 != _USER:
            raise wrong
        return cls(body[_PREFIX_BYTES:])

    @property
    def public(self) -> str:
        """The public key as the engine's configuration has it."""
        body = bytes([_USER]) + self._key.public_key().public_bytes_raw()
        return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, nonce: str) -> str:
        """Returns the signature of what the engine has sent, in URL-safe base64."""
        return base64.urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")
