"""The texts of the page, run by Node where there is one: the same table as everywhere, and one way for every text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import inspector
from defserve.base.hidden_characters import replace_hidden_characters
from tests.hidden_characters import TABLE, table

NODE = shutil.which("node")
PAGE = Path(inspector.__file__).parent / "page"
needs_node = pytest.mark.skipif(NODE is None, reason="needs Node")


def run(tmp_path: Path, script: str, given: Any = None) -> Any:
    page = tmp_path / "page"
    for part in ("parts", "vendor"):
        shutil.copytree(PAGE / part, page / part, dirs_exist_ok=True)
    (page / "package.json").write_text('{"type": "module"}')
    command = [str(NODE), "--input-type=module", "-e", script, json.dumps(given)]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True, check=True, timeout=50)
    return json.loads(done.stdout)


def test_the_table_of_the_page_is_that_of_the_package() -> None:
    assert TABLE.read_text() == table(), "write it anew: python -m tests.hidden_characters"


@needs_node
def test_the_page_hides_no_code_point_that_the_terminal_shows(tmp_path: Path) -> None:
    script = """
import { showHidden } from "./parts/hidden.js";
const found = [];
for (let code = 0; code <= 0x10ffff; code++) {
  const text = String.fromCodePoint(code);
  if (showHidden(text) !== text) found.push(code);
}
console.log(JSON.stringify(found));
"""
    hidden = list[int]()
    letters = "x".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code) not in "\n\r\t")
    replace_hidden_characters(letters, lambda odd: hidden.append(ord(odd)) or "")
    assert run(tmp_path, script) == hidden


TEXTS = [
    "a\u202eb",
    "👩\u200d👩\u200d👧",
    "1\ufe0f\u20e3",
    "wipe\ufe0f",
    "🏴\U000e0061\U000e007f",
    "⚠️",
    "a\tb\n",
    "\u200d👩",
]


@needs_node
def test_the_page_and_the_package_agree_on_emoji(tmp_path: Path) -> None:
    script = """
import { showHidden } from "./parts/hidden.js";
console.log(JSON.stringify(JSON.parse(process.argv[1]).map(showHidden)));
"""
    assert run(tmp_path, script, TEXTS) == [
        replace_hidden_characters(text, lambda odd: odd if odd in "\n\r\t" else f"⟨U+{ord(odd):04X}⟩") for text in TEXTS
    ]


@needs_node
def test_whatever_is_drawn_passes_the_table_and_keeps_its_direction_to_itself(tmp_path: Path) -> None:
    """A document that only knows what preact needs."""
    script = """
import { html, render } from "./vendor/preact.js";
import { guardTexts } from "./parts/hidden.js";
const texts = [];
class Node {
  constructor(name) { this.name = name; this.childNodes = []; this.attributes = []; this.style = {}; this.words = {}; }
  set data(text) { texts.push(text); }
  setAttribute(name, value) { texts.push(value); this.words[name] = value; }
  removeAttribute() {}
  appendChild(child) { this.childNodes.push(child); child.parentNode = this; return child; }
  insertBefore(child) { return this.appendChild(child); }
  get firstChild() { return this.childNodes[0]; }
}
globalThis.document = {
  createElement: name => new Node(name),
  createTextNode: text => { texts.push(text); return new Node("#text"); },
};
guardTexts();
const odd = JSON.parse(process.argv[1]);
const Part = ({ children, name }) => html`<b aria-label=${name}>${children}</b>`;
render(html`<div title=${odd}>${odd}<p>Run ${odd}?</p><${Part} name=${odd}>${[odd, html`<i>${odd}</i>`]}<//></div>`,
  new Node("root"));
console.log(JSON.stringify(texts));
"""
    texts = run(tmp_path, script, "x\u202ey")
    assert len([text for text in texts if "x⟨U+202E⟩y" in text]) >= 6
    assert not [text for text in texts if "\u202e" in text]
    (turned,) = {text for text in run(tmp_path / "other", script, "שלום") if "שלום" in text}
    assert turned == "\u2068שלום\u2069"


def test_every_element_of_the_page_isolates_its_direction() -> None:
    assert "#app *{unicode-bidi:isolate}" in (PAGE / "styles" / "frame.css").read_text()


def test_texts_are_guarded_before_anything_is_drawn() -> None:
    script = (PAGE / "app.js").read_text()
    assert script.index("guardTexts();") < script.index("render(html")
    drawing = [
        path.name for path in PAGE.rglob("*.js") if "vendor" not in path.parts and "innerHTML" in path.read_text()
    ]
    assert drawing == []
