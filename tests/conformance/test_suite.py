"""The judgement over the official suite's results goes wrong in neither direction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import client, suite
from tests.conformance.suite_results import Scenario, described, expected_failures, scenarios, spelled
from tests.rows import for_each_row


def check(status: str, id: str = "a-check", **fields: Any) -> dict[str, Any]:
    return {"id": id, "status": status, "description": "Does it", **fields}


def scenario(*statuses: str, name: str = "ping") -> Scenario:
    return Scenario(name, [check(status) for status in statuses])


@for_each_row(
    ("found", "listed", "verdict"),
    [
        (scenario("SUCCESS", "SKIPPED", "INFO"), [], "passed"),
        (scenario("SUCCESS", "FAILURE"), [], "failed"),
        (scenario("SUCCESS", "WARNING"), [], "failed"),
        (scenario("SKIPPED", "INFO"), [], "failed"),
        (scenario(), [], "failed"),
        (scenario("SUCCESS", "FAILURE"), ["ping"], "expected"),
        (scenario("SKIPPED"), ["ping"], "expected"),
        (scenario("SUCCESS"), ["ping"], "stale"),
        (scenario("SUCCESS"), ["pong"], "passed"),
    ],
)
def test_a_scenario_passes_unless_it_is_listed_and_never_both(found: Scenario, listed: list[str], verdict: str) -> None:
    assert found.verdict(listed) == verdict


def test_valid_messages_alone_prove_nothing() -> None:
    assert not Scenario("skills", [check("SUCCESS", "wire-schema-valid"), check("SKIPPED")]).proven


def test_scenarios_are_read_with_their_checks_and_one_that_broke_off_without(tmp_path: Path) -> None:
    for name in ("tools-call-image-2026-11-15T03-13-26-234Z", "broken-2026-11-15T03-13-27-234Z"):
        (tmp_path / f"server-{name}").mkdir()
    checks = tmp_path / "server-tools-call-image-2026-11-15T03-13-26-234Z" / "checks.json"
    checks.write_text(json.dumps([check("SUCCESS")]), encoding="utf-8")
    (tmp_path / "run.log").touch()
    assert {found.name: len(found.checks) for found in scenarios(tmp_path)} == {"tools-call-image": 1, "broken": 0}


def test_a_failing_check_is_shown_with_its_message_and_details() -> None:
    failing = Scenario("ping", [check("FAILURE", errorMessage="no pong", details={"code": -1}), check("SUCCESS")])
    assert list(described(failing)) == ["✗ a-check (failed): Does it", "  no pong", '  {"code": -1}']


def test_counts_always_say_how_many_passed_and_failed() -> None:
    assert spelled(scenario("SUCCESS", "SUCCESS", "INFO").counts) == "2 passed, 0 failed"
    assert spelled(scenario("FAILURE", "WARNING", "SKIPPED").counts) == "0 passed, 1 failed, 1 warned, 1 skipped"


def test_the_expected_failures_are_read_without_their_reasons() -> None:
    listed = expected_failures(suite.EXPECTED)
    assert "tasks-status-notifications" in listed
    assert all(name.startswith(("tasks-", "sep-2640-")) for name in listed)


@pytest.fixture
def fake_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of one scenario, `ping`, which ends as the file says that is given back."""
    outcome = tmp_path / "outcome"
    program = tmp_path / "suite.py"
    program.write_text(
        "import sys, json, pathlib\n"
        "folder = pathlib.Path(sys.argv[-1], 'server-ping-2026-11-15T03-13-26-234Z')\n"
        f"status = pathlib.Path({str(outcome)!r}).read_text()\n"
        "if not status: sys.exit('broken')\n"
        "folder.mkdir()\n"
        "check = {'id': 'pong', 'status': status, 'description': 'Answers'}\n"
        "(folder / 'checks.json').write_text(json.dumps([check]))\n"
    )
    monkeypatch.setattr(suite, "FOLDER", tmp_path)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "EXPECTED", tmp_path / "expected.yml")
    monkeypatch.setattr(suite, "RUNS", {"one": [()]})
    monkeypatch.setattr(suite.suite_install, "suite", lambda: [suite.sys.executable, str(program)])
    return outcome


@pytest.mark.parametrize(
    ("status", "listed", "code", "said"),
    [
        ("SUCCESS", "server:\n", 0, "all as expected"),
        ("FAILURE", "server:\n", 1, "one under given: ping failed"),
        ("FAILURE", "server:\n  - ping\n", 0, "all as expected"),
        ("SUCCESS", "server:\n  - ping\n", 1, "ping passes; take it out"),
        ("", "server:\n", 1, "only 0 scenarios ran\n   | broken"),
        ("SUCCESS", "server:\n  - pong\n", 1, "pong is listed in expected.yml, but no run has it"),
    ],
)
def test_a_run_ends_well_only_if_all_is_as_expected(
    fake_suite: Path, capsys: pytest.CaptureFixture[str], status: str, listed: str, code: int, said: str
) -> None:
    fake_suite.write_text(status)
    suite.EXPECTED.write_text(listed)
    assert suite.main(["--url", "http://localhost:1/mcp"]) == code
    assert said in capsys.readouterr().out


@pytest.fixture
def fake_client_suite(tmp_path: Path, fake_suite: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite with one client scenario, `ping`, and with those that are listed in the file that is given back."""
    listed = tmp_path / "listed"
    program = tmp_path / "suite.py"
    program.write_text(
        "import sys, json, pathlib\n"
        f"if 'list' in sys.argv: sys.exit(print(pathlib.Path({str(listed)!r}).read_text()))\n"
        "folder = pathlib.Path(sys.argv[-1], 'ping-2026-11-15T03-13-26-234Z')\n"
        "folder.mkdir()\n"
        "check = {'id': 'pong', 'status': 'SUCCESS', 'description': 'Answers'}\n"
        "(folder / 'checks.json').write_text(json.dumps([check]))\n"
        f"sys.exit(pathlib.Path({str(fake_suite)!r}).read_text() or 0)\n"
    )
    monkeypatch.setattr(suite, "CLIENT_RUNS", {"one": [("--scenario", "ping")]})
    suite.EXPECTED.write_text("server:\n")
    return listed


@pytest.mark.parametrize(
    ("listed", "ended", "code", "said"),
    [
        ("  - ping [2025-11-25]", "", 0, "all as expected"),
        ("  - ping [x]\n  - auth/x [x]", "", 1, "auth/x is in the suite, and no run has it"),
        ("  - ping [x]\n  - pong [x]", "", 1, "pong is in the suite, and no run has it"),
        ("  - ping [x]", "the client ended with 1", 1, "the suite ended with 1"),
    ],
)
def test_a_client_run_ends_well_only_if_the_client_does_and_nothing_is_left_out(
    fake_suite: Path,
    fake_client_suite: Path,
    capsys: pytest.CaptureFixture[str],
    listed: str,
    ended: str,
    code: int,
    said: str,
) -> None:
    fake_client_suite.write_text(listed)
    fake_suite.write_text(ended)
    assert suite.main(["--side", "client"]) == code
    assert said in capsys.readouterr().out


def test_the_client_plays_every_scenario_that_is_run() -> None:
    run = {options[1] for wanted in suite.CLIENT_RUNS.values() for options in wanted}
    # In those of signing in it always does the same; what differs is how it signs in.
    assert {name for name in run if not name.startswith("auth/")} == set(client.SCENARIOS)
