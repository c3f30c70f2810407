"""The Evals panel of the inspector in a real browser."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from defserve.tooling.evals.cases import parse_suite
from defserve.tooling.evals.endpoint import ModelName
from defserve.tooling.evals.judging import ToolFacts
from defserve.tooling.evals.reports import make_report
from defserve.tooling.evals.running import Definitions, RunOutcome, group_outcomes
from tests.inspector.beds import greenhouse

from .inspecting import inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

CHOOSE = """(() => {
  const input = document.querySelector('.p-evals input[type=file]'), files = new DataTransfer();
  files.items.add(new File([%s], 'report.json', { type: 'application/json' }));
  input.files = files.files;
  input.dispatchEvent(new Event('change', { bubbles: true }));
  return true;
})()"""


def report() -> str:
    suite = parse_suite("cases: [{name: <b>give back</b>, prompt: x, expect: back}]", Path("shelf.eval.yaml"))
    runs = [RunOutcome("<b>give back</b>", run, "failed", "back", "lend", "called lend") for run in range(1, 6)]
    tools = {name: {"name": name, "description": "A book of a person."} for name in ("back", "lend")}
    outcomes = group_outcomes(suite.cases, runs)
    return json.dumps(make_report(suite, ModelName("ollama", "qwen3"), Definitions("", (), ToolFacts(tools)), outcomes))


def test_a_report_is_shown_with_its_matrix(browser: Browser):
    choose = CHOOSE % json.dumps(report())
    with inspector_in(browser, target_of(greenhouse())) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#evals")
        assert browser.page("document.querySelector('.p-evals .empty')?.textContent.includes('No report yet')")
        assert browser.page(choose)
        assert browser.page("document.querySelector('.p-evals .evals')?.innerText.includes('<b>give back</b>')")
        assert browser.page("document.querySelector('.p-evals .lost').innerText.includes('5 times; both say')")
        assert browser.page("document.querySelectorAll('.p-evals .evals').length === 2")
        for look in looks(browser, inspector.url + "#evals", "document.querySelector('.p-evals .empty') !== null"):
            assert browser.page(choose)
            assert browser.page("document.querySelector('.p-evals .lost') !== null")
            look.is_fine()
        for wrong in ("Dear all", "[]", '{"format": 1, "suite": "a", "model": "b", "cases": [1]}'):
            assert browser.page(CHOOSE % json.dumps(wrong))
            assert browser.page("document.querySelector('.p-evals [role=alert]') !== null")


def test_a_word_of_the_line_to_copy_is_one_word_of_a_shell(browser: Browser):
    words = ("it's; id.py", "$(id)")
    with inspector_in(browser, replace(target_of(greenhouse()), words=words)) as inspector:
        for panel, begin, end in (
            ("evals", [], ["suite.eval.yaml", "--json", ">", "report.json"]),
            ("compare", ["old.json"], []),
        ):
            browser.open("about:blank")
            browser.open(f"{inspector.url}#{panel}")
            assert browser.page(f"!!document.querySelector('.p-{panel} .cmd code')")
            line = browser.page(f"document.querySelector('.p-{panel} .cmd code').textContent")
            assert shlex.split(line)[2:] == [*begin, *words, *end]
