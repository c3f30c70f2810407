"""Evals in pytest: the fixture `model`, the mark `eval`, and suites that are collected."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tooling.evals.conftest import SERVER
from tests.tooling.evals.scripted_endpoint import Asked, Reply, ScriptedEndpoint, scripted_endpoint

TESTS = """
import pytest
from defserve.testing import Absent, Contains
from shelf_server import server

@pytest.mark.eval(runs=5)
def test_by_author(model):
    answer = model.ask("Which books by Lem do we have?")
    answer.called("find_books", text=Contains("lem"), limit=Absent)
    answer.not_called("forget")

@pytest.mark.eval(runs=5)
def test_is_lost(model):
    model.ask("Here is Solaris.").called("give_back")

@pytest.mark.eval(runs=5)
def test_is_unclear(model):
    model.ask("Perhaps?").called("lend")
"""
SUITE = """
server: shelf_server.py
model: ollama:scripted
cases:
  - {name: by author, prompt: Which books by Lem, expect: find_books}
  - {name: small talk, prompt: Good morning, expect: none}
"""


@pytest.fixture
def project(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    suite.makepyfile(shelf_server=SERVER, test_shelf=TESTS)
    suite.makeini("[pytest]\naddopts = -p defserve.testing.plugin --strict-markers\neval_model = ollama:scripted\n")
    return suite


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    count = [0]

    def answer(asked: Asked) -> Reply:
        if "Lem" in asked.prompt:
            return Reply(calls=[("find_books", {"text": "Lem"})])
        if "Perhaps" in asked.prompt:
            count[0] += 1
            return Reply(calls=[("lend", {"title": "x"})]) if count[0] <= 3 else Reply("No.")
        return Reply(calls=[("lend", {"title": "Solaris"})]) if "Solaris" in asked.prompt else Reply("Good morning!")

    with scripted_endpoint(answer) as made:
        yield made


def run(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", "-q", "-rs", *words)


def test_a_test_is_called_once_a_run_and_reported_once(project: pytest.Pytester, endpoint: ScriptedEndpoint) -> None:
    recorded = run(project, "--eval-record", "--eval-url", endpoint.url, "test_shelf.py")
    recorded.assert_outcomes(passed=1, failed=1, skipped=1)
    assert len(endpoint.asked) == 15
    replayed = run(project, "test_shelf.py")
    replayed.assert_outcomes(passed=1, failed=1, skipped=1)
    assert len(endpoint.asked) == 15
    replayed.stdout.fnmatch_lines(["*fail: 0 of 5 runs passed; give_back was not called, but lend*"])
    replayed.stdout.fnmatch_lines(["*unclear: 3 of 5 runs passed*"])


def test_without_a_recording_a_test_fails_and_asks_nobody(project: pytest.Pytester) -> None:
    result = run(project, "test_shelf.py")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*stale: 1 case was never recorded*", "*--eval-record*"])


def test_a_suite_is_collected_a_case_a_test(project: pytest.Pytester, endpoint: ScriptedEndpoint) -> None:
    Path(project.path, "shelf.eval.yaml").write_text(SUITE, encoding="utf-8")
    run(project, "shelf.eval.yaml").assert_outcomes(failed=2)
    run(project, "shelf.eval.yaml", "--eval-record", "--eval-url", endpoint.url).assert_outcomes(passed=2)
    run(project, "shelf.eval.yaml").assert_outcomes(passed=2)
    server = Path(project.path, "shelf_server.py")
    server.write_text(SERVER.replace("Lend a book", "Lend one book"), encoding="utf-8")
    stale = run(project, "shelf.eval.yaml")
    stale.assert_outcomes(failed=2)
    stale.stdout.fnmatch_lines(["*recorded with another lend (description)*"])


def test_a_suite_that_names_no_server_is_not_for_pytest(project: pytest.Pytester) -> None:
    Path(project.path, "other.eval.yaml").write_text("cases: []\n", encoding="utf-8")
    assert run(project, "--collect-only", "other.eval.yaml").ret != 0
    result = run(project, "--collect-only")
    assert "other.eval.yaml" not in result.stdout.str()


def test_a_broken_suite_is_named(project: pytest.Pytester) -> None:
    Path(project.path, "broken.eval.yaml").write_text("cases: [{name: a}]\n", encoding="utf-8")
    result = run(project, "broken.eval.yaml")
    result.stdout.fnmatch_lines(["*case 1 (a) expects nothing*"])
