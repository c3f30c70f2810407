"""Work under way: drawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import pytest

from defserve.cli import screen as progress
from defserve.cli.screen import ProgressDisplay
from tests.cli.goldens import Terminal
from tests.waiting import wait_until


def test_a_pipe_gets_logs_and_progress_as_plain_lines_on_stderr(capsys: pytest.CaptureFixture[str]):
    with ProgressDisplay("Calling add") as work:
        work.show_progress(1, 2, "half \x1b[2J")
        work.show_log({"level": "info", "data": {"message": "hello", "at": 3}})
        work.show_step("more")
    assert capsys.readouterr() == ("", "half \\x1b[2J: 1 of 2\ninfo    hello at=3\n")


def test_a_pipe_is_not_flooded_with_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with ProgressDisplay("Calling add") as work:
        for step in range(30):
            now[0] += 0.125
            work.show_progress(step)
        assert capsys.readouterr().err == "Calling add: 0\nCalling add: 8\nCalling add: 16\nCalling add: 24\n"
        with work.pause_drawing():
            now[0] += 5
            work.show_progress(99)
            assert "99" not in capsys.readouterr().err
    assert capsys.readouterr().err == "Calling add: 99\n"


def test_a_pipe_gets_the_last_step_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with ProgressDisplay("Calling add") as work:
        for step in range(1, 4):
            work.show_progress(step, 3, f"step {step}")
    assert capsys.readouterr().err == "step 1: 1 of 3\nstep 3: 3 of 3\n"
    with ProgressDisplay("Calling add") as work:
        work.show_progress(1)
    assert capsys.readouterr().err == "Calling add: 1\n"


def test_what_is_done_soon_is_not_drawn(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    with ProgressDisplay("Calling add"):
        pass
    assert terminal.getvalue() == ""


def test_what_takes_longer_has_a_spinner(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    with ProgressDisplay("Calling add"):
        wait_until(lambda: "Calling add" in terminal.getvalue())


def test_progress_is_a_bar_with_its_message(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    with ProgressDisplay("Calling crawl") as work:
        work.show_progress(3, 4, "page \x1b[2J3")
        wait_until(lambda: "75%" in terminal.getvalue())
        work.show_step("Reading")
        wait_until(lambda: "Reading" in terminal.getvalue())
    assert "page \\x1b[2J3" in terminal.getvalue() and "\x1b[2J" not in terminal.getvalue()


def test_logs_stand_above_with_their_level_and_fields(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    monkeypatch.setenv("NO_COLOR", "1")
    with ProgressDisplay("x") as work:
        work.show_log({"level": "warning", "data": {"message": "slow", "seconds": 3}})
        work.show_log({"level": "odd", "data": "plain\x1b[2J"})
    assert terminal.getvalue() == "warning slow seconds=3\nodd     plain\\x1b[2J\n"


def test_nothing_is_drawn_while_somebody_is_asked(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1e6)
    with ProgressDisplay("x") as work:
        work.show_progress(1, 2)
        with work.pause_drawing():
            before = terminal.getvalue()
            work.show_progress(2, 2)
            assert terminal.getvalue() == before
        wait_until(lambda: len(terminal.getvalue()) > len(before))
