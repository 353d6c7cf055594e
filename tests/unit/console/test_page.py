"""The files of the console's page."""

import gzip
import json
import re
from pathlib import Path

import pytest

import millrace_server.console
from tools.vendor_scripts import VENDOR, Library, libraries, sha256_of

PAGE = Path(millrace_server.console.__file__).parent / "page"
SERVED_SUFFIXES = {".css", ".html", ".js", ".svg"}
COMPRESSED_BYTES_MAX = 150_000
LINES_MAX = 300
LOADED_LATE = {"vendor/uplot.js"}


def _served() -> dict[str, Path]:
    return {str(path.relative_to(PAGE)): path for path in PAGE.rglob("*") if path.suffix in SERVED_SUFFIXES}


def _own() -> dict[str, str]:
    return {name: path.read_text() for name, path in _served().items() if not name.startswith("vendor/")}


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library["package"])
def test_files_of_a_library_are_those_of_its_package(library: Library) -> None:
    """Each file, the licence too, has the hash that the manifest took from the package of that version."""
    assert set(library["sha256"]) == {*library["files"].values(), f"{library['package']}.LICENSE"}
    assert {name: sha256_of(VENDOR / name) for name in library["sha256"]} == library["sha256"]


def test_files_beside_the_manifest_all_stand_in_it() -> None:
    """Nothing is vendored without a package, a version, a licence and a hash."""
    known = {name for library in libraries() for name in library["sha256"]}
    assert {path.name for path in VENDOR.iterdir()} == known | {"manifest.json"}
    assert all(library["version"] and library["licence"] in {"MIT", "Apache-2.0"} for library in libraries())


def test_all_files_compressed_are_small() -> None:
    """The whole page takes at most 150 KB over the wire."""
    assert sum(len(gzip.compress(path.read_bytes())) for path in _served().values()) <= COMPRESSED_BYTES_MAX


def test_modules_of_the_page_are_preloaded() -> None:
    """The browser asks for all modules at once, rather than for one after the other has come, which takes long."""
    preloaded = re.findall(r'<link rel="modulepreload" href="/console/([^"]+)">', (PAGE / "index.html").read_text())
    modules = {name for name in _served() if name.endswith(".js")}
    assert sorted(preloaded) == sorted(modules - LOADED_LATE - {"app.js"})


def test_own_files_searched_for_addresses_name_no_other_server() -> None:
    """The page works without the Internet; what has a scheme is the namespace of SVG."""
    found = {address for text in _own().values() for address in re.findall(r"\b(?:https?|wss?):[^\s\"'`<>]+", text)}
    assert found == {"http://www.w3.org/2000/svg"}


def test_own_files_searched_for_inline_code_have_none() -> None:
    """The Content-Security-Policy forbids inline scripts, styles and handlers, and nothing parses text as HTML."""
    pattern = re.compile(
        r"""innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|eval\(|\bstyle="|\bon[a-z]+="|<style"""
    )
    assert {name: found for name, text in _own().items() if (found := pattern.findall(text))} == {}


def test_own_files_are_short() -> None:
    """A module has one subject."""
    assert {name for name, text in _own().items() if text.count("\n") > LINES_MAX} == set()


def test_manifest_as_written_is_sorted_as_the_tool_writes_it() -> None:
    """`make lock` changes only what is new."""
    assert (VENDOR / "manifest.json").read_text() == json.dumps(libraries(), indent=2) + "\n"
