from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from defserve import Server
from defserve.cli.commands.run import warn_of_strangers
from defserve.server.command_line import add_serving_options
from tests.cli.running import Run
from tests.rows import for_each_row
from tests.testing import toy


def test_a_server_runs_on_stdio_unless_told_otherwise(defserve: Run):
    assert defserve("run", "tests.testing.toy") == (0, "serving on stdio:\n", "")
    assert defserve("run", "tests.testing.toy:server", "--on", "unix:/x").out == "serving on unix:/x\n"
    assert defserve("run", "-m", "tests.testing.toy").out == "serving on stdio:\n"


def test_workers_of_the_examples_start_without_a_store_for_sessions(defserve: Run):
    examples = [line for line in defserve("run", "--help").out.splitlines() if line.startswith("  defserve run")]
    assert [line for line in examples if "--workers" in line and "--stateless" not in line] == []
    assert any("--workers" in line for line in examples)


def test_workers_need_an_address_that_they_can_share(defserve: Run):
    refused = defserve("run", "tests.testing.toy", "--workers", "2")
    assert refused.code == 1 and "'stdio:' has one client, so it has one process" in refused.err
    refused = defserve("run", "tests.testing.toy", "--workers", "many", "--on", "unix:/x")
    assert refused.code == 1 and "there cannot be 'many' workers" in refused.err


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["--port", "9000"], "http://127.0.0.1:9000/mcp"),
        (["--port=9000", "--host", "0.0.0.0"], "http://0.0.0.0:9000/mcp"),
        (["--host", "::1"], "http://[::1]:8000/mcp"),
        (["--port", "many"], "http://127.0.0.1:8000/mcp"),
        (["--transport", "sse", "--port", "9000"], "http://127.0.0.1:9000/mcp --legacy-sse"),
        (["http://127.0.0.1:9000/mcp"], "http://127.0.0.1:9000/mcp"),
    ],
)
def test_whoever_gives_parts_of_an_address_is_told_the_whole(defserve: Run, words: list[str], address: str):
    refused = defserve("run", "tests.testing.toy", *words)
    assert refused.code == 1 and refused.err.endswith(f"fix: write --on {address}\n")


def test_a_mistake_that_names_no_place_is_told_with_the_author_s_line(defserve: Run, folder: Path):
    (folder / "notes.py").write_text("from defserve import Server\n\nserver = Server('notes', store='notes.db')\n")
    for command in ("run", "list", "check"):
        assert defserve(command, "notes.py").err.startswith("error: notes.py:3: 'notes.db' is not the address of a")
    assert defserve("run").err.startswith("error: run needs one server")


def test_how_to_log_is_passed_on(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    chosen: list[dict[str, object]] = []
    monkeypatch.setattr(toy.server, "run", lambda **options: chosen.append(options))  # type: ignore[method-assign]
    assert defserve("run", "tests.testing.toy", "--log-level", "debug", "--log-json").code == 0
    assert chosen == [{"on": "stdio:", "log_level": "debug", "log_json": True}]


def test_the_servers_own_exit_code_is_ours(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(on: str) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(toy.server, "run", interrupted)
    assert defserve("run", "tests.testing.toy").code == 130


STATEFUL = """
from pydantic import BaseModel
from defserve import Server, State
from defserve.auth import Principal, StaticTokens

class Counter(BaseModel):
    value: int = 0

server = Server("counter", "1"{options})
counting = server.feature_set("counter.count", "Count")
counters = counting.state(Counter{per})
server.run = lambda **options: print("serving", options["on"])
"""


@for_each_row(
    ("options", "per", "words", "is_warned"),
    [
        ("", "", ["--on", "http://127.0.0.1:0/mcp"], True),
        ("", ', per="session"', ["--on", "ws://127.0.0.1:0/mcp"], True),
        ("", "", [], False),
        ("", "", ["--on", "http://127.0.0.1:0/mcp", "--local-token"], False),
        ("", ', per="server"', ["--on", "http://127.0.0.1:0/mcp"], False),
        (', auth=StaticTokens({"t0ken": Principal("ada")})', "", ["--on", "http://127.0.0.1:0/mcp"], False),
    ],
)
def test_a_server_that_keeps_state_for_callers_it_cannot_tell_apart_is_warned_of(
    capsys: pytest.CaptureFixture[str], options: str, per: str, words: list[str], is_warned: bool
):
    source = STATEFUL.replace("{options}", options).replace("{per}", per)
    warn_of_strangers(loaded(source), parsed(words))
    err = capsys.readouterr().err
    assert len(err.splitlines()) == is_warned
    assert is_warned == err.startswith("warning: counter keeps state for each caller, and cannot tell callers apart")


def test_mounted_servers_are_looked_at_too_and_others_are_left_alone(capsys: pytest.CaptureFixture[str]):
    outer = Server("outer", "1")
    outer.mount(loaded(STATEFUL.replace("{options}", "").replace("{per}", "")))
    on = parsed(["--on", "http://127.0.0.1:0/mcp"])
    warn_of_strangers(outer, on)
    assert capsys.readouterr().err.startswith("warning: outer keeps state")
    warn_of_strangers(Server("plain", "1"), on)
    warn_of_strangers(object(), on)
    assert capsys.readouterr().err == ""


def test_run_warns_before_it_serves(defserve: Run, folder: Path):
    Path("counts.py").write_text(STATEFUL.replace("{options}", "").replace("{per}", ""))
    code, out, err = defserve("run", "counts.py", "--on", "http://127.0.0.1:0/mcp")
    assert (code, out) == (0, "serving http://127.0.0.1:0/mcp\n")
    assert err.startswith("warning: counter keeps state")


@pytest.mark.parametrize("number", [1, 2])
def test_of_several_workers_only_the_first_warns(
    defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    Path("counts.py").write_text(STATEFUL.replace("{options}", "").replace("{per}", ""))
    place = SimpleNamespace(number=number)
    monkeypatch.setattr("defserve.server.workers.worker.read_worker_membership", lambda: place)
    monkeypatch.setattr("defserve.server.workers.running.read_worker_membership", lambda: place)
    err = defserve("run", "counts.py", "--on", "http://127.0.0.1:0/mcp", "--workers", "2").err
    assert err.startswith("warning: counter keeps state") == (number == 1)


def loaded(source: str) -> Server:
    names: dict[str, Any] = {}
    exec(source, names)
    return names["server"]


def parsed(words: list[str]) -> Namespace:
    parser = ArgumentParser()
    add_serving_options(parser)
    return parser.parse_args(words)
