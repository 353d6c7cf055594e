"""The command `millraced health`."""

from typing import Annotated

import typer

from millrace_server.cli.reporting import EXIT_CANNOT_START, complain

_TIMEOUT_SECONDS = 3.0


def health(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", envvar="MILLRACE_HEALTH_URL", help="The address of /healthz.")
    ] = "http://127.0.0.1:7071/healthz",
) -> None:
    """Ask a server on this machine whether it serves; for the health checks of containers.

    The certificate is not verified, since a server is reached by an address that its certificate need not have. Exits
    with 1 if the server does not answer, or is stopping.
    """
    import ssl
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import urlopen

    if not _is_url(url):
        raise typer.BadParameter(f"is {url!a}; it must be an address such as http://127.0.0.1:7071/healthz")
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        with urlopen(url, timeout=_TIMEOUT_SECONDS, context=unverified) as answer:  # noqa: S310 - checked above
            typer.echo(answer.read(1_000).decode(errors="replace"))
    except HTTPException:
        complain(f"{url}: what answers there does not speak HTTP/1.1; is it the HTTP port?")
        raise typer.Exit(EXIT_CANNOT_START) from None
    except OSError as error:
        complain(f"{url}: {error.reason if isinstance(error, URLError) else error}")
        raise typer.Exit(EXIT_CANNOT_START) from None


def _is_url(text: str) -> bool:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
