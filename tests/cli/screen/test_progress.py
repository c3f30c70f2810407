"""Work under way: drawn on a terminal, silent elsewhere."""

from __future__ import annotations

import pytest

from defserve.cli.screen import progress
from defserve.cli.screen.progress import Working
from tests.cli.goldens import Terminal
from tests.waiting import wait_until


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]):
    with Working("Calling add") as work:
        work.progress(1, 2, "half")
        work.log({"level": "info", "data": "hello"})
        work.step("more")
        with work.paused():
            pass
    assert capsys.readouterr() == ("", "")


def test_what_is_done_soon_is_not_drawn(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    with Working("Calling add"):
        pass
    assert terminal.getvalue() == ""


def test_what_takes_longer_has_a_spinner(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    with Working("Calling add"):
        wait_until(lambda: "Calling add" in terminal.getvalue())


def test_progress_is_a_bar_with_its_message(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    with Working("Calling crawl") as work:
        work.progress(3, 4, "page \x1b[2J3")
        wait_until(lambda: "75%" in terminal.getvalue())
        work.step("Reading")
        wait_until(lambda: "Reading" in terminal.getvalue())
    assert "page \\x1b[2J3" in terminal.getvalue() and "\x1b[2J" not in terminal.getvalue()


def test_logs_stand_above_with_their_level_and_fields(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    monkeypatch.setenv("NO_COLOR", "1")
    with Working("x") as work:
        work.log({"level": "warning", "data": {"message": "slow", "seconds": 3}})
        work.log({"level": "odd", "data": "plain\x1b[2J"})
    assert terminal.getvalue() == "warning slow seconds=3\nodd     plain\\x1b[2J\n"


def test_nothing_is_drawn_while_somebody_is_asked(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    with Working("x") as work:
        work.progress(1, 2)
        with work.paused():
            before = terminal.getvalue()
            work.progress(2, 2)
            assert terminal.getvalue() == before
        wait_until(lambda: len(terminal.getvalue()) > len(before))
