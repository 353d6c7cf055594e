"""Hooks of mkdocs: pages that the code or other files of the repository have, and links that lead out of `docs`."""

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# mkdocs loads this file by its path.
sys.path.insert(0, str(ROOT))

from tools.site import cli_pages, flume_pages, proto_pages  # noqa: E402 - found by the line above

BROUGHT = {
    "index.md": "README.md",
    "spark.md": "spark_connector/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "reporting.md": "SECURITY.md",
    "reference/changelog.md": "CHANGELOG.md",
    "reference/format.md": "server/src/millrace_server/wal/FORMAT.md",
}
"""Pages of the site that are files elsewhere in the repository."""

DESCRIBED = {"reference/grpc.md": "protos/millrace/v1"}
"""Pages of the site that describe folders of the repository."""

BROUGHT_FOLDERS = ("deploy", "examples", "protos", "third_party")
"""Folders of the repository whose files the site has under the same names, for readers without a checkout."""

_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)")
_ATTRIBUTE = re.compile(r'(?P<name>src|srcset|href)="(?P<target>[^"]+)"')


_PICTURE = re.compile(r'<picture>\s*<source[^>]*srcset="(?P<dark>[^"]+)">\s*(?P<image><img[^>]*>)\s*</picture>')


_SHIM = re.compile(r'https://[^"]+/iframe-worker/shim')
_VENDORED_SHIM = "assets/javascripts/iframe-worker.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in `docs`."""
    generated = {
        "reference/cli.md": cli_pages.page(),
        "reference/flume_properties.md": flume_pages.page(),
        "reference/grpc.md": proto_pages.page(),
    }
    for place, path in BROUGHT.items():
        generated[place] = (ROOT / path).read_text(encoding="utf-8")
    for place, content in generated.items():
        files.append(File.generated(config, place, content=content))
    shim = ROOT / "tools" / "site" / "vendor" / "iframe-worker.js"
    files.append(File.generated(config, _VENDORED_SHIM, abs_src_path=str(shim)))
    for name in _brought_files():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def _brought_files() -> list[str]:
    """Returns the files of the folders that the site has, without those that only a checkout makes."""
    listed = subprocess.run(["git", "ls-files", "-z", *BROUGHT_FOLDERS], cwd=ROOT, capture_output=True, check=True)
    # Markdown would become pages, which have no place in the navigation.
    return [name for name in listed.stdout.decode().split("\0") if name and not name.endswith(".md")]


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - mkdocs names them
    """Takes what the search of pages opened as files needs from the site, not from elsewhere."""
    here = os.path.relpath(_VENDORED_SHIM, PurePosixPath(page.url).parent)
    return _SHIM.sub(here, output)


def on_page_markdown(
    markdown: str,
    page: Page,
    config: MkDocsConfig,  # noqa: ARG001 - mkdocs names them
    files: Files,
) -> str:
    """Lets links between files of the repository lead to pages of the site, and names the files that are none."""
    place = PurePosixPath(page.file.src_uri)
    origin = PurePosixPath(BROUGHT.get(str(place), f"docs/{place}"))

    def follow(match: re.Match[str]) -> str:
        found = _site_target(match["target"], origin, place, files)
        if found is not None:
            return match[0].replace(match["target"], found)
        return match[0] if "text" not in match.groupdict() else f"{match['text'][1:-1]} (`{match['target']}`)"

    # A file that is no page is named where the link was.
    return _PICTURE.sub(_by_scheme, _ATTRIBUTE.sub(follow, _LINK.sub(follow, markdown)))


def _by_scheme(picture: re.Match[str]) -> str:
    """Both pictures, of which the theme shows one: the scheme of a page is not always that of the system."""
    dark = re.sub(r'src="[^"]+"', f'src="{picture["dark"]}#only-dark"', picture["image"])
    light = re.sub(r'src="([^"]+)"', r'src="\1#only-light"', picture["image"])
    return light + dark


def _site_target(target: str, origin: PurePosixPath, place: PurePosixPath, files: Files) -> str | None:
    """Returns a link's target as seen from a page of the site; None for a file that the site does not have."""
    address, hash_, anchor = target.partition("#")
    if not address or re.match(r"[a-z]+:|<", address):
        return target
    wanted = PurePosixPath(os.path.normpath(origin.parent / address))
    uri = next((page for page, path in (BROUGHT | DESCRIBED).items() if path == str(wanted)), None)
    if uri is None and wanted.parts[0] in {"docs", *BROUGHT_FOLDERS}:
        uri = str(wanted).removeprefix("docs/")
    if uri is None or files.get_file_from_path(uri) is None:
        # What does not exist at all stays as it is, so that mkdocs reports it.
        return None if (ROOT / wanted).exists() else target
    return os.path.relpath(uri, place.parent) + hash_ + anchor
