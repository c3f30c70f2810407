"""What `defserve eval` promises, against an endpoint that answers by a script."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tooling.evals.conftest import Shelf
from tests.tooling.evals.scripted_endpoint import PATHS, Asked, Reply, ScriptedEndpoint, scripted_endpoint

DIALECTS = tuple(PATHS.values())
GOLDEN = Path(__file__).with_name("golden")

CONVERSATION = """
runs: 2
now: "2026-11-18"
cases:
  - {name: one turn, prompt: "Which books by Lem do we have?", expect: {find_books: {text: {contains: lem}}}}
  - name: parallel
    prompt: Lend me Solaris and Fiasco.
    expect: {all: [{lend: {title: Solaris}}, {lend: {title: Fiasco}}]}
  - name: three turns
    messages: [{user: "Hello"}, {assistant: "Hi!"}, {user: "Is Solaris there?"}]
    turns:
      - {expect: find_books, result: [{title: Solaris, lent_to: null}]}
      - {say: Then lend it to me., expect: {lend: {title: {like: solaris}}}, result: lent}
      - {say: Thanks., expect: none}
  - {name: lost, prompt: I am done with Solaris., expect: give_back}
  - {name: invented, prompt: Sell Solaris., expect: none}
  - {name: cut, prompt: Recite Solaris., expect: none}
"""


def converse(asked: Asked) -> Reply:
    """The one script: the same for all dialects."""
    replies = {
        "Which books by Lem do we have?": Reply(calls=[("find_books", {"text": "Lem"})]),
        "Lend me Solaris and Fiasco.": Reply(calls=[("lend", {"title": "Fiasco"}), ("lend", {"title": "Solaris"})]),
        "Is Solaris there?": Reply("I'll look.", [("find_books", {"text": "Solaris"})]),
        "Then lend it to me.": Reply(calls=[("lend", {"title": "SOLARIS"})]),
        "Thanks.": Reply("You're welcome."),
        "I am done with Solaris.": Reply(calls=[("lend", {"title": "Solaris"})]),
        "Sell Solaris.": Reply(calls=[("sell", {"title": "Solaris"})]),
        "Recite Solaris.": Reply("At nineteen hundred", stop="length"),
    }
    return replies[asked.prompt]


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with scripted_endpoint(converse) as made:
        yield made


# -- 1. One script: the same verdicts and matrix in all dialects. Requests equal golden files.


def test_one_script_gives_the_same_verdicts_and_matrix_in_all_dialects(
    shelf: Shelf, endpoint: ScriptedEndpoint
) -> None:
    shelf.write_suite(CONVERSATION)
    reports: list[Any] = []
    for dialect in DIALECTS:
        ran = shelf.evaluate("shelf.eval.yaml", "--model", f"{dialect}:m-{dialect}", "--url", endpoint.url, "--json")
        report = json.loads(ran.out)
        assert ran.code == 1
        reports.append(
            {"cases": [(c["name"], c["verdict"], c["instead"]) for c in report["cases"]], **report["matrix"]}
        )
    assert all(report == reports[0] for report in reports)
    verdicts = {name: verdict for name, verdict, _ in reports[0]["cases"]}
    assert verdicts == {
        "one turn": "pass",
        "parallel": "pass",
        "three turns": "pass",
        "lost": "fail",
        "invented": "fail",
        "cut": "fail",
    }
    assert reports[0]["give_back"] == {"lend": 2}
    assert reports[0]["none"] == {"length": 2, "none": 2, "unknown": 2}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_requests_equal_golden_files(shelf: Shelf, endpoint: ScriptedEndpoint, dialect: str) -> None:
    shelf.write_suite(CONVERSATION.replace("runs: 2", "runs: 1"))
    shelf.evaluate("shelf.eval.yaml", "--model", f"{dialect}:m", "--url", endpoint.url, "--case", "three turns")
    sent = [asked.body for asked in endpoint.asked]
    assert len(sent) == 3
    path = GOLDEN / f"{dialect}.json"
    if os.environ.get("WRITE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(sent, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert sent == json.loads(path.read_text(encoding="utf-8"))


# -- 4. A replay opens no socket, and names what is stale.


def test_a_replay_opens_no_socket_and_500_runs_take_three_seconds(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        f"  - {{name: case {n}, prompt: Which book has {n}, expect: {{find_books: {{text: '{n}'}}}}}}"
        for n in range(50)
    ]
    shelf.write_suite("\n".join(["runs: 10", "cases:", *cases]))
    with scripted_endpoint(lambda a: Reply(calls=[("find_books", {"text": a.prompt.split()[-1]})])) as endpoint:
        words = ("shelf.eval.yaml", "--model", "chat:m")
        assert shelf.evaluate(*words, "--url", endpoint.url, "--max-tokens-total", 10**7).code == 0
        assert len(endpoint.asked) == 500

    def refuse(*_: Any) -> None:
        raise AssertionError("a replay opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    began = time.process_time()
    ran = shelf.evaluate(*words, "--replay")
    assert ran.code == 0, ran.err
    assert time.process_time() - began < 3


def test_one_letter_changed_in_a_description_is_stale_and_names_the_tool(
    shelf: Shelf, endpoint: ScriptedEndpoint
) -> None:
    shelf.write_suite(CONVERSATION)
    words = ("shelf.eval.yaml", "--model", "ollama:qwen3", "--case", "one turn")
    assert shelf.evaluate(*words, "--url", endpoint.url).code == 0
    shelf.edit_server("Find books by title", "Find bookz by title")
    ran = shelf.evaluate(*words, "--replay")
    assert ran.code == 3
    assert "1 case was recorded with another find_books (description)" in ran.err
    assert "--record (2 requests)" in ran.err


def test_the_command_that_records_again_does_not_send_prompts_to_a_vendor_who_never_saw_them(
    shelf: Shelf, endpoint: ScriptedEndpoint
) -> None:
    shelf.write_suite(CONVERSATION)
    words = ("shelf.eval.yaml", "--model", "chat:local", "--case", "one turn")
    shelf.evaluate(*words, "--url", endpoint.url)
    shelf.edit_server("Find books by title", "Find bookz by title")
    assert "--model chat:local --url URL --record" in shelf.evaluate(*words, "--replay").err
    assert f"--url {endpoint.url} --record" in shelf.evaluate(*words, "--replay", "--url", endpoint.url).err


def test_what_suggestions_may_cost_is_said_before_and_what_they_did_cost_after(
    shelf: Shelf, endpoint: ScriptedEndpoint
) -> None:
    shelf.write_suite(CONVERSATION)
    words = (
        "shelf.eval.yaml",
        "--model",
        "chat:local",
        "--url",
        endpoint.url,
        "--suggest",
        "--max-tokens-total",
        "90000",
    )
    said = shelf.evaluate(*words).err
    assert "--suggest asks again, up to 90,000 tokens in all" in said and "tokens were spent" in said


def test_ci_implies_replay(shelf: Shelf, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    words = ("shelf.eval.yaml", "--model", "ollama:qwen3", "--url", endpoint.url)
    shelf.write_suite(CONVERSATION)
    assert shelf.evaluate(*words).code == 3
    assert endpoint.asked == []
    assert shelf.evaluate(*words, "--record", "--case", "one turn").code == 0
    assert len(endpoint.asked) == 2


def test_another_expectation_needs_no_new_recording(shelf: Shelf, endpoint: ScriptedEndpoint) -> None:
    shelf.write_suite(CONVERSATION)
    words = ("shelf.eval.yaml", "--model", "ollama:qwen3", "--case", "lost")
    assert shelf.evaluate(*words, "--url", endpoint.url).code == 1
    shelf.write_suite(CONVERSATION.replace("expect: give_back", "expect: lend"))
    assert shelf.evaluate(*words, "--replay").code == 0


# -- 5. A key is in no file, log or screen.


def test_a_key_echoed_by_the_endpoint_is_in_no_file_log_or_screen(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = "plain-words-that-look-like-nothing"
    monkeypatch.setenv("MY_KEY", key)
    caplog.set_level(logging.DEBUG)

    def echo(asked: Asked) -> Reply:
        assert key in str(dict(asked.headers))
        if "morning" in asked.prompt:
            return Reply(f"You sent {key}.")
        if "read Solaris" in asked.prompt:
            return Reply(calls=[("give_back", {"title": "Solaris", key: [key]})])
        return Reply(calls=[("find_books", {"text": f"lem {key}"}), (key, {})])

    with scripted_endpoint(echo) as endpoint:
        for dialect in DIALECTS:
            words = (
                "shelf.eval.yaml",
                "--model",
                f"{dialect}:m{dialect}",
                "--url",
                endpoint.url,
                "--key-env",
                "MY_KEY",
            )
            ran = shelf.evaluate(*words, "--json", "--junit", "j.xml", "--html", "p.html")
            assert ran.code == 1
            assert key not in ran.out + ran.err
    with scripted_endpoint(lambda asked: Reply(f"bad key {key}", status=401)) as endpoint:
        ran = shelf.evaluate("shelf.eval.yaml", "--model", "chat:n", "--url", endpoint.url, "--key-env", "MY_KEY")
        assert ran.code == 4
        assert "401" in ran.out and key not in ran.out + ran.err
    assert key not in caplog.text
    for path in shelf.folder.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


# -- 6. A dangerous tool never runs.


def test_a_dangerous_tool_that_every_answer_calls_runs_zero_times(shelf: Shelf) -> None:
    shelf.edit_server('RAN.append("forget")', '__import__("pathlib").Path("ran").touch()')
    shelf.edit_server('RAN.append("find_books")', '__import__("pathlib").Path("found").touch()')

    def always(asked: Asked) -> Reply:
        return Reply(calls=[("forget", {"title": "Solaris"}), ("find_books", {"text": "lem"})])

    with scripted_endpoint(always) as endpoint:
        words = ("shelf.eval.yaml", "--model", "chat:m", "--url", endpoint.url, "--tools", "real")
        ran = shelf.evaluate(*words)
        assert ran.code == 1
        assert shelf.evaluate(*words, "--allow", "for*", "--recording", "other.jsonl").code == 1
    assert not (shelf.folder / "ran").exists()
    assert (shelf.folder / "found").exists()


# -- 7. What was asked before a kill is not asked again.


def test_killed_at_run_37_of_100_the_next_call_makes_63_requests(shelf: Shelf) -> None:
    shelf.write_suite("runs: 100\ncases:\n  - {name: a, prompt: Which books by Lem, expect: find_books}\n")
    release: list[int] = []

    def answer(asked: Asked) -> Reply:
        if not release and len(endpoint.asked) > 37:
            child.wait(60)
        return Reply(calls=[("find_books", {"text": "lem"})])

    with scripted_endpoint(answer) as endpoint:
        words = ("shelf.eval.yaml", "--model", "chat:m", "--url", endpoint.url)
        child = subprocess.Popen(
            [sys.executable, "-m", "defserve", "eval", "shelf_server.py", *words],
            cwd=shelf.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        recording = shelf.folder / "shelf.m.jsonl"
        while not recording.exists() or len(recording.read_bytes().splitlines()) < 38:
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        release.append(1)
        # As if it had been killed in the middle of a line.
        with recording.open("ab") as file:
            file.write(b'{"key": "torn')
        before = len(endpoint.asked)
        ran = shelf.evaluate(*words)
        assert ran.code == 0
        assert len(endpoint.asked) - before == 63
        assert "63 requests" in ran.err


# -- Nothing of it is imported by a server that runs.


def test_a_server_that_runs_imports_nothing_of_it(shelf: Shelf) -> None:
    program = (
        "import asyncio, sys, shelf_server\n"
        "async def use():\n"
        "    async with shelf_server.server.connect() as client:\n"
        "        await client.call('find_books', text='lem')\n"
        "asyncio.run(use())\n"
        "assert not [name for name in sys.modules if name.startswith('defserve.tooling.evals')]\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=shelf.folder, check=True)
