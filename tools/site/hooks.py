"""Hooks of mkdocs: pages from the code and from files outside `docs`, and links to such files."""

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

OUTSIDE_PAGES = {
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

OUTSIDE_FOLDERS = ("deploy", "examples", "protos", "third_party")
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
    for place, path in OUTSIDE_PAGES.items():
        generated[place] = (ROOT / path).read_text(encoding="utf-8")
    for place, content in generated.items():
        files.append(File.generated(config, place, content=content))
    shim = ROOT / "tools" / "site" / "vendor" / "iframe-worker.js"
    files.append(File.generated(config, _VENDORED_SHIM, abs_src_path=str(shim)))
    for name in _outside_files():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def _outside_files() -> list[str]:
    """Returns the files of these folders that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z", *OUTSIDE_FOLDERS], cwd=ROOT, capture_output=True, check=True)
    # Markdown would become pages, which have no place in the navigation.
    return [name for name in listed.stdout.decode().split("\0") if name and not name.endswith(".md")]


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - mkdocs names them
    """Replaces the URL of a script, which the search needs if pages are opened as files, by the site's own copy."""
    here = os.path.relpath(_VENDORED_SHIM, PurePosixPath(page.url).parent)
    return _SHIM.sub(here, output)


def on_page_markdown(
    markdown: str,
    page: Page,
    config: MkDocsConfig,  # noqa: ARG001 - mkdocs names them
    files: Files,
) -> str:
    """Rewrites links between files of the repository to pages of the site; links to other files become their names."""
    place = PurePosixPath(page.file.src_uri)
    origin = PurePosixPath(OUTSIDE_PAGES.get(str(place), f"docs/{place}"))

    def follow(match: re.Match[str]) -> str:
        found = _site_target(match["target"], origin, place, files)
        if found is not None:
            return match[0].replace(match["target"], found)
        return match[0] if "text" not in match.groupdict() else f"{match['text'][1:-1]} (`{match['target']}`)"

    # A file that is no page is named where the link was.
    return _PICTURE.sub(_by_scheme, _ATTRIBUTE.sub(follow, _LINK.sub(follow, markdown)))


def _by_scheme(picture: re.Match[str]) -> str:
    """Both pictures, of which the theme shows one, since the scheme of a page may differ from that of the system."""
    dark = re.sub(r'src="[^"]+"', f'src="{picture["dark"]}#only-dark"', picture["image"])
    light = re.sub(r'src="([^"]+)"', r'src="\1#only-light"', picture["image"])
    return light + dark


def _site_target(target: str, origin: PurePosixPath, place: PurePosixPath, files: Files) -> str | None:
    """Returns a link's target as seen from a page of the site; None for a file that the site does not have."""
    address, hash_, anchor = target.partition("#")
    if not address or re.match(r"[a-z]+:|<", address):
        return target
    wanted = PurePosixPath(os.path.normpath(origin.parent / address))
    uri = next((page for page, path in (OUTSIDE_PAGES | DESCRIBED).items() if path == str(wanted)), None)
    if uri is None and wanted.parts[0] in {"docs", *OUTSIDE_FOLDERS}:
        uri = str(wanted).removeprefix("docs/")
    if uri is None or files.get_file_from_path(uri) is None:
        # A link to a file that does not exist is kept, so that mkdocs reports it.
        return None if (ROOT / wanted).exists() else target
    return os.path.relpath(uri, place.parent) + hash_ + anchor
