"""Certificate authorities, certificates, and the files of a server and its clients, for tests of TLS."""

import shutil
from pathlib import Path

from millrace_client import Tls
from millrace_server.access.tokens import make_token
from millrace_server.files import write_atomically
from millrace_server.network.dev_certificates import Authority

__all__ = ["Authority", "RotatingSite", "Site"]

CHANNEL = '[channels.orders]\ntype = "file"\n'


class Site:
    """The files of a server and of a client, which trust the authorities in `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = Authority("Authority 0")
        self.ca = folder / "ca.pem"
        self.trust(self.authority)
        self.issue()
        self.client = Tls(ca=self.ca, certificate=folder / "client.pem", private_key=folder / "client.key")

    def toml(self, *, requires_certificates: bool = True) -> str:
        tls = f'server.tls = {{ certificate = "{self.folder}/server.pem", private_key = "{self.folder}/server.key"'
        required = f', client_ca = "{self.ca}", client_certificate = "required"' if requires_certificates else ""
        return f"{tls}{required} }}\n{CHANNEL}"

    def trust(self, *authorities: Authority) -> None:
        """Replaces `ca.pem`."""
        write_atomically(self.ca, b"".join(one.certificate for one in authorities))

    def issue(self) -> None:
        """Replaces the certificates and keys of the server and of the client."""
        for name in ("server", "client"):
            # The key comes first: a certificate whose key is not there yet is not in force.
            self.authority.issue(self.folder, name)


class RotatingSite(Site):
    """A site whose clients have a token, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tokens_file, self.token_file = folder / "tokens", folder / "token"
        self.token_file.write_text(make_token(self.tokens_file, "caller"))
        self.first = Path(shutil.copytree(folder, folder.with_name("first")))

    def toml(self, *, requires_certificates: bool = True) -> str:
        tables = super().toml(requires_certificates=requires_certificates)
        auth = f'[auth]\ntokens_file = "{self.tokens_file}"\n[roles.caller]\nallow = ["*:orders"]\n'
        return f'{tables}{auth}[identities.caller]\nroles = ["caller"]\n'
