from __future__ import annotations

import re

import pytest

from defserve.inspector.serving.assets import assets

SCRIPTS = [path for path in assets() if path.endswith(".js") and not path.startswith("/vendor/")]


def test_the_page_is_under_100_kb_compressed():
    assert sum(len(asset.packed) for asset in assets().values()) < 100_000


def test_nothing_is_loaded_from_elsewhere():
    found = [
        (path, url)
        for path, asset in assets().items()
        for url in re.findall(
            rb"""(?:src|href|from|import|url)\s*[=(]?\s*["'(](?:https?:)?//[^"')\s]+""", asset.content
        )
    ]
    assert found == []


@pytest.mark.parametrize("path", SCRIPTS)
def test_what_a_server_says_never_becomes_markup(path: str):
    text = assets()[path].content.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function", text
    )
    assert 'style="' not in text, "a strict policy refuses style attributes in markup"


@pytest.mark.parametrize("path", SCRIPTS)
def test_every_import_is_there(path: str):
    folder = path.rpartition("/")[0]
    for target in re.findall(r'from "([^"]+)"', assets()[path].content.decode()):
        parts = folder.split("/")
        for step in target.split("/"):
            if step == "..":
                parts.pop()
            elif step != ".":
                parts.append(step)
        assert "/".join(parts) in assets(), target


def test_the_page_loads_every_style_and_has_no_inline_script():
    page = assets()["/"].content.decode()
    styles = {path for path in assets() if path.endswith(".css")}
    assert set(re.findall(r'href="(/styles/[^"]+)"', page)) == styles
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=", page)
