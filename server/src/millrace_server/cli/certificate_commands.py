"""The command `millraced dev-certificates`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace_server.cli.reporting import EXIT_CANNOT_START, EXIT_USAGE, failure

if TYPE_CHECKING:
    from millrace_server.network.dev_certificates import DevCertificates


def dev_certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the files.")],
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="Additional name or address of the server; can be repeated."),
    ] = None,
) -> None:
    """Create a certificate authority, a server certificate and a client certificate, to try out TLS.

    The server certificate is for this machine and the names given by --name. Prints settings for the server, under
    which the client may do everything, and a client command. The authority's key is not saved.
    """
    from millrace_server.network.dev_certificates import make_dev_certificates

    try:
        files = make_dev_certificates(folder.absolute(), names or ())
    except ValueError as error:
        raise failure(f"--name: {error}", EXIT_USAGE) from None
    except OSError as error:
        raise failure(
            f"{error.filename or folder}: cannot be written: {error.strerror}; nothing is overwritten",
            EXIT_CANNOT_START,
        ) from None
    typer.echo(_settings(files))
    client = shlex.join(
        [
            *("millrace", "channels", "--server", "localhost:7070", "--tls-ca", str(files.ca)),
            *("--tls-certificate", str(files.client_certificate), "--tls-key", str(files.client_key)),
        ]
    )
    typer.echo(f"Once a server runs with these settings, try:\n{client}", err=True)


def _settings(files: "DevCertificates") -> str:
    """Returns the tables of a configuration in which the client may do everything."""
    paths = {"certificate": files.certificate, "private_key": files.private_key, "client_ca": files.ca}
    lines = [f"{key} = {json.dumps(str(path), ensure_ascii=False)}" for key, path in paths.items()]
    return "\n".join(
        [
            "[server.tls]",
            *lines,
            'client_certificate = "required"',
            '\n[auth]\n\n[roles.everything]\nallow = ["*:*"]\n\n[identities.client]\nroles = ["everything"]',
        ]
    )
