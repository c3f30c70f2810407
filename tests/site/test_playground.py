"""The playground has the page of the inspector as it is, and a recording that leaks nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from . import playground
from .playground import CALLS, PAGE, SESSION, key_of


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, object]]:
    return json.loads(SESSION.read_text("utf-8"))


def test_a_question_is_found_whatever_the_order_of_its_arguments():
    assert key_of("a.b", {"y": [1, {"d": "ü", "c": None}], "x": ""}) == 'a.b {"x":"","y":[1,{"c":null,"d":"ü"}]}'


def test_what_the_panels_open_with_was_recorded(answers: dict[str, dict[str, object]]):
    verbs = {key.partition(" ")[0] for key in answers}
    opened = {"hello", "tools.list", "resources.list", "prompts.list", "wire.follow", "wire.rows", "state.follow"}
    assert opened | {"security.overview", "live.overview", "latency.follow", "wire.message", "state.diff"} <= verbs
    for tool, arguments in CALLS:
        called = answers[key_of("tools.call", {"era": "stateless", "tool": tool, "arguments": arguments})]
        assert "ok" in called, (tool, arguments)


def test_the_recording_has_no_path_and_no_token_of_the_machine_it_was_made_on():
    text = SESSION.read_text("utf-8")
    assert not re.search(r"/(home|root|work|tmp|Users)/|[?&]token=|token\.", text)
    assert len(text) < 1_000_000


def test_the_site_gets_the_page_of_the_inspector_and_asks_for_nothing_at_its_top(tmp_path: Path):
    playground.write(tmp_path)
    folder = tmp_path / "playground"
    page = (folder / "index.html").read_text("utf-8")
    assert not re.search(r'(href|src)="/', page) and "script-src 'self'" in page
    assert page.index("recorded.js") < page.index("app.js")
    same = [path for path in PAGE.rglob("*.js") if path.name != "layouts.js"]
    assert all((folder / path.relative_to(PAGE)).read_bytes() == path.read_bytes() for path in same)
    assert not [path for path in folder.rglob("*.js") if re.search(r'Worker\("/', path.read_text("utf-8"))]
