"""What a refused caller reads: a sentence, then the nearest things that would work, and nothing for the author."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pytest

from defserve import Server, ToolError
from defserve.errors import MAX_NAMES_IN_REFUSAL, MAX_REFUSAL_LENGTH, BadArguments, Problem, Rejected
from defserve.guard import code, network, paths
from defserve.guard.shell import judgement as shell
from defserve.guard.verdict import Verdict, log_author_note, make_rejection
from defserve.testing import SyncClient
from tests.rows import for_each_row

CORPORA = (Path(__file__).parent / "corpora", Path(__file__).parents[1] / "attack" / "corpora")
LISTED = {"git": ["status", "log", "diff", "show", "blame", "branch"], "ls": None, "python3 --version": None}
HOSTS = [f"{name}.example.com" for name in ("api", "www", "files", "mail", "news", "status", "docs")]

Judge = Callable[[str], Verdict]
# Corpus and its member → why a text is refused, and who judges it.
JUDGES: dict[str, tuple[str, str, Judge]] = {
    "shell, sandbox": ("shell", "Command refused", shell.judge),
    "shell, readonly": ("shell", "Command refused", lambda text: shell.judge(text, mode="readonly")),
    "shell, listed": ("shell", "Command refused", lambda text: shell.judge(text, allowed=LISTED)),
    "code, standard": ("code", "Code validation failed", code.judge),
    "code, strict": ("code", "Code validation failed", lambda text: code.judge(text, level="strict")),
    "code, readonly": ("code", "Code validation failed", lambda text: code.judge(text, level="readonly")),
    "code, listed": ("code", "Code validation failed", lambda text: code.judge(text, allow=["json", "math", "re"])),
    "url": ("url", "URL refused", network.judge),
    "url, listed": ("url", "URL refused", lambda text: network.judge(text, hosts=HOSTS, ports=range(8000, 8100))),
    "path": ("url", "Path refused", lambda text: paths.judge(text, "/srv/data")),
}
MEMBERS = {"shell": "command", "code": "code", "url": "url"}
FILES = {"shell": ["shell*.jsonl"], "code": ["code*.jsonl", "programs.jsonl"], "url": ["url*.jsonl"]}


def corpus(kind: str) -> Iterator[str]:
    for file in (file for folder in CORPORA for name in FILES[kind] for file in sorted(folder.glob(name))):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield row.get(MEMBERS[kind]) or "".join(piece * count for piece, count in row.get("repeat", ()))


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("row", JUDGES)
def test_no_refusal_is_long_or_lists_many_names(row: str, every: int):
    kind, reason, judge = JUDGES[row]
    refusals = 0
    for text in islice(corpus(kind), 0, None, every):
        if verdict := judge(text):
            continue
        refusal = make_rejection(verdict, reason, "guard")
        refusals += 1
        assert refusal.message.startswith(f"{reason}: "), text
        assert len(refusal.message) <= MAX_REFUSAL_LENGTH, refusal.message
        assert len(verdict.hints.get("nearest", ())) <= MAX_NAMES_IN_REFUSAL
        if refusal.advice.startswith("Try "):
            assert refusal.advice.count(", ") + refusal.advice.count(" or ") < MAX_NAMES_IN_REFUSAL, refusal.message
        assert "allowed=" not in refusal.message and "Shell(" not in json.dumps(refusal.data)
    assert refusals


SENTENCES: dict[str, Verdict] = {
    "Refused: Blocked program: 'grpe'. Try grep, zgrep, pgrep, fgrep or egrep.": shell.judge("grpe x"),
    "Refused: Blocked program: '/usr/bin/git' is named by a path. Try git.": shell.judge("/usr/bin/git log"),
    "Refused: Blocked program: 'curl'": shell.judge("curl x.example"),
    "Refused: Blocked command: 'git psuh'; did you mean 'push'?": shell.judge("git psuh"),
    "Refused: Blocked command: 'git push' is not on the list. Try git status, git log or ls.": shell.judge(
        "git push", allowed={"git": ["status", "log"], "ls": None}
    ),
    "Refused: Blocked import: 'os' (line 1, import). Try json or math.": code.judge(
        "import os", allow=["json", "math"]
    ),
    "Refused: Blocked scheme: 'ftp'. Try http or https.": network.judge("ftp://example.com"),
    "Refused: Blocked port: 8444. Try port 8443, port 8080, port 443 or port 80.": network.judge("http://a.com:8444"),
    "Refused: Blocked host: 'ap.example.com' is not on the list. Try api.example.com.": network.judge(
        "http://ap.example.com", hosts=["api.example.com"]
    ),
    "Refused: Blocked absolute path. Try a/b.txt.": paths.judge("/srv/data/a/b.txt", "/srv/data"),
    "Refused: Blocked '..' in a path. Write a path relative to the root, with '/' between names, without '..', '~', "
    "drives or links that lead out.": paths.judge("../x", "/srv/data"),
}


@for_each_row("sentence", SENTENCES)
def test_a_refusal_is_a_sentence_and_what_to_write_instead(sentence: str):
    assert make_rejection(SENTENCES[sentence], "Refused", "guard").message == sentence


def test_names_that_do_not_fit_are_left_out_and_so_are_hints_of_another_kind():
    long = Rejected("Refused", ["x" * 250], {"nearest": ["y" * 200, "z" * 200]}, guard="g")
    assert long.advice == f"Try {'y' * 200}." and len(long.message) <= MAX_REFUSAL_LENGTH
    for hints in ({"nearest": "ls"}, {"nearest": 1, "form": ["a"]}, {"form": "f" * 600}):
        assert Rejected("Refused", ["no"], hints, guard="g").message == "Refused: no"


def test_many_violations_are_counted_and_all_of_them_are_in_the_data():
    refusal = Rejected("Refused", [f"v{n}" for n in range(8)], guard="g")
    assert refusal.message == "Refused: v0; v1; v2; v3; v4; and 3 more"
    assert len(refusal.data["violations"]) == 8


def test_many_wrong_arguments_are_cut_in_the_text_alone():
    error = BadArguments(tuple(Problem(f"field{n}", "x" * 200) for n in range(20)))
    assert len(error.message) <= MAX_REFUSAL_LENGTH and error.message.endswith("and more problems")
    assert len(error.problems) == 20


def test_of_many_choices_the_nearest_are_named():
    server = Server("paint", "1")

    @server.tool
    def paint(colour: Literal["red", "green", "blue", "black", "white", "pink", "orange"]) -> None: ...

    with SyncClient(server) as client, pytest.raises(ToolError) as refused:
        client.call("paint", colour="blck")
    assert refused.value.message.startswith('colour: expected "black", ')
    assert refused.value.message.endswith(' or 2 more, got "blck"')


def test_what_only_the_author_can_change_is_logged_once_and_not_sent(caplog: pytest.LogCaptureFixture):
    log_author_note.cache_clear()
    caplog.set_level(logging.INFO, "defserve")
    sent: list[Any] = [make_rejection(shell.judge(f"frobnicate {n}"), "Refused", "sandbox").data for n in range(3)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Shell(allowed=" in caplog.text and "Shell(" not in json.dumps(sent)
