"""An issuer of JSON Web Tokens, and the HTTP server where it publishes its keys."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://id.example"
AUDIENCE = "millrace"


@cache
def rsa_key(bits: int = 2_048) -> rsa.RSAPrivateKey:
    """The same key for all tests: making one takes long."""
    return rsa.generate_private_key(65_537, bits)


class Issuer:
    """Signs tokens with a key, and knows the JSON Web Key that checks them."""

    def __init__(self, algorithm: str = "ES256", kid: str | None = "one") -> None:
        self.algorithm, self.kid = algorithm, kid
        self.key: Any
        match algorithm:
            case "RS256":
                self.key, written = rsa_key(), RSAAlgorithm.to_jwk(rsa_key().public_key(), as_dict=True)
            case "ES256":
                self.key = ec.generate_private_key(ec.SECP256R1())
                written = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
            case _:
                self.key = ed25519.Ed25519PrivateKey.generate()
                written = OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        self.jwk = written | {"use": "sig"} | ({} if kid is None else {"kid": kid})

    def token(self, sub: Any = "boss", lifetime: float = 600, headers: Any = None, **claims: Any) -> str:
        """Returns a token, which differs from a good one by the claims and headers that are given; None removes one."""
        now = time.time()
        payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": sub, "iat": now, "exp": now + lifetime} | claims
        header = {"kid": self.kid, "alg": self.algorithm} | (headers or {})
        parts = [without_none(header), without_none(payload)]
        signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{encoded(self._signature(signed.encode()))}"

    def _signature(self, signed: bytes) -> bytes:
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        return algorithm.sign(signed, self.key)


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def encoded(content: bytes) -> str:
    """Returns content in the Base64 of tokens."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def jwks(*issuers: Issuer) -> bytes:
    """Returns what an issuer with several keys publishes."""
    return json.dumps({"keys": [issuer.jwk for issuer in issuers]}).encode()


class KeyServer:
    """Responds to each request with `status` and `content`; None for no response."""

    def __init__(self, port: int = 0, tls: tuple[Path, Path] | None = None) -> None:
        self.content, self.status = b"", 200
        self.authorizations: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.authorizations.append(self.headers["Authorization"])
                self.send_response(server.status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", str(len(server.content)))
                self.end_headers()
                self.wfile.write(server.content)

            def log_message(self, *_: Any) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            # The handshakes are those of the threads that respond.
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.http.server_port}/keys"


@contextmanager
def key_server(*issuers: Issuer, port: int = 0, tls: tuple[Path, Path] | None = None) -> Iterator[KeyServer]:
    """Serves keys while the block runs, over TLS with a certificate and its key."""
    server = KeyServer(port, tls)
    server.content = jwks(*issuers)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
