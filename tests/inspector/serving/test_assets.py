from __future__ import annotations

import posixpath
import re

from defserve.inspector.page_server import assets
from tests.rows import for_each_row

SCRIPTS = [path for path in assets() if path.endswith(".js") and not path.startswith("/vendor/")]


def imported(path: str) -> list[str]:
    """The files that a script imports at once. What it imports later, when it is needed, is not among them."""
    folder = path.rpartition("/")[0]
    found = re.findall(r'^(?:import|export)\b[^;]*?from "([^"]+)"', assets()[path].content.decode(), re.MULTILINE)
    return [posixpath.normpath(f"{folder}/{target}") for target in found]


def opened() -> set[str]:
    """What a browser loads to show the page: the page, its styles, its scripts and all that they import at once."""
    page = assets()["/"].content.decode()
    found, waiting = {"/"}, re.findall(r'(?:href|src)="(/[^"]+)"', page)
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            waiting += imported(path) if path.endswith(".js") else []
    return found


def test_the_page_is_under_105_kb_compressed():
    assert sum(len(assets()[path].packed) for path in opened()) < 105_000


def test_no_panel_adds_more_than_30_kb():
    first = opened()
    for script in re.findall(r'import\("\./([^"]+)"\)', assets()["/panels/index.js"].content.decode()):
        found, waiting = set[str](), [f"/panels/{script}"]
        while waiting:
            if (path := waiting.pop()) not in found | first:
                found.add(path)
                waiting += imported(path)
        assert found, script
        assert sum(len(assets()[path].packed) for path in found) < 30_000, script


def test_nothing_is_loaded_from_elsewhere():
    found = [
        (path, url)
        for path, asset in assets().items()
        for url in re.findall(
            rb"""(?:src|href|from|import|url)\s*[=(]?\s*["'(](?:https?:)?//[^"')\s]+""", asset.content
        )
    ]
    assert found == []


@for_each_row("path", SCRIPTS)
def test_what_a_server_says_never_becomes_markup(path: str):
    text = assets()[path].content.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function", text
    )
    assert 'style="' not in text, "a strict policy refuses style attributes in markup"


@for_each_row("path", SCRIPTS)
def test_every_import_is_there(path: str):
    later = re.findall(r'import\("([^"]+)"\)', assets()[path].content.decode())
    folder = path.rpartition("/")[0]
    for target in [*imported(path), *(posixpath.normpath(f"{folder}/{each}") for each in later)]:
        assert target in assets(), target


def test_the_page_loads_every_style_and_has_no_inline_script():
    page = assets()["/"].content.decode()
    styles = {path for path in assets() if path.endswith(".css")}
    assert set(re.findall(r'href="(/styles/[^"]+)"', page)) == styles
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=", page)
