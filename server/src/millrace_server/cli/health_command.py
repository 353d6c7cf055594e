"""The command `millraced health`."""

from typing import Annotated

import typer

from millrace_server.cli.reporting import EXIT_CANNOT_START, failure

_TIMEOUT_SECONDS = 3.0


def health(
    url: Annotated[
        str, typer.Argument(metavar="URL", envvar="MILLRACE_HEALTH_URL", help="The address of /healthz.")
    ] = "http://127.0.0.1:7071/healthz",
) -> None:
    """Ask a server on this machine whether it is serving; for the health checks of containers.

    The certificate is not verified, since it need not be valid for the address at which the server is asked. Exits
    with 1 if the server does not respond, or is stopping.
    """
    import ssl
    from http.client import HTTPException, InvalidURL
    from urllib.error import HTTPError
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener

    if not url.startswith(("http://", "https://")):
        raise _wrong(url)
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    # Without the proxies of the environment, which cannot reach this machine by its own addresses.
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=unverified))
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as response:
            text = response.read(1_000).decode(errors="replace")
    except (ValueError, InvalidURL):
        raise _wrong(url) from None
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise failure(f"{url}: {_reason(error)}", EXIT_CANNOT_START) from None
    typer.echo(text)


def _wrong(url: str) -> typer.BadParameter:
    from millrace.setting_problems import shown_value

    return typer.BadParameter(f"is {shown_value(url)}; it must be an address such as http://127.0.0.1:7071/healthz")


def _reason(error: Exception) -> str:
    from http.client import HTTPException, RemoteDisconnected
    from urllib.error import URLError

    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, RemoteDisconnected):
        return "closed the connection; with server.tls, the address begins with https"
    if isinstance(cause, HTTPException):
        return "does not respond in HTTP; server.http_listen is the port to ask"
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)
