"""The ledger is whole: every requirement is claimed by a test or is a dated gap, never both."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from tests.conformance.claims import Claim, claims
from tests.conformance.recorded_run import RecordedRun, Sources
from tests.conformance.report import complaints, main, status
from tests.conformance.requirements import ALL, GAPS, REQUIREMENTS, SIDES
from tests.rows import for_each_row

COUNTS = {"MGP": 83, "MCPL": 67, "MCPX": 33, "MCP": 59, "GGEN": 24}


@pytest.fixture(scope="module")
def claimed() -> dict[str, str]:
    return {claim.id: claim.where for claim in claims()}


def test_the_ledger_holds_every_row_of_the_five_documents_once() -> None:
    assert len(REQUIREMENTS) == len(ALL)
    assert Counter(requirement.document for requirement in ALL) == COUNTS


def test_each_requirement_says_what_and_for_whom() -> None:
    assert [r.id for r in ALL if r.side not in SIDES or not r.text.strip()] == []


def test_each_gap_is_a_known_requirement_with_a_date_and_a_reason() -> None:
    assert [id for id in GAPS if id not in REQUIREMENTS] == []
    for gap in set(GAPS.values()):
        assert date.fromisoformat(gap.since) <= date.today()
        assert gap.reason.strip()


@pytest.mark.slow
def test_tests_claim_only_requirements_that_exist(claimed: dict[str, str]) -> None:
    assert {id: where for id, where in claimed.items() if id not in REQUIREMENTS} == {}


def test_each_requirement_is_claimed_or_a_gap(claimed: dict[str, str]) -> None:
    assert [id for id in REQUIREMENTS if id not in claimed and id not in GAPS] == []


def test_no_requirement_is_both_claimed_and_a_gap(claimed: dict[str, str]) -> None:
    assert {id: where for id, where in claimed.items() if id in GAPS} == {}


def test_claims_are_found_wherever_a_mark_may_stand(tmp_path: Path) -> None:
    source = (
        "pytestmark = pytest.mark.req('A')\n"
        "@mark.req('B', 'C')\n"
        "def test_one(): ...\n"
        "CASES = [pytest.param(1, marks=[pytest.mark.req('D')])]\n"
        "unrelated.req('E')\n"
    )
    (tmp_path / "test_it.py").write_text(source)
    assert [claim.id for claim in claims(tmp_path)] == ["A", "B", "C", "D"]


def test_a_claim_that_cannot_be_read_from_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("@pytest.mark.req(ID)\ndef test_one(): ...\n")
    with pytest.raises(ValueError, match=r"test_it\.py:1: req\(\) takes ids as plain strings"):
        list[Claim](claims(tmp_path))


@for_each_row(
    ("id", "tests", "expected"),
    [
        ("A", {"t": "passed"}, "proven"),
        ("A", {"t": "passed", "u": "failed"}, "failing"),
        ("A", {"t": "skipped"}, "failing"),
        ("A", {"t": "unfinished"}, "failing"),
        ("A", {}, "missing"),
        ("OPEN", {}, "gap"),
        ("OPEN", {"t": "passed"}, "stale gap"),
        ("OPEN", {"t": "failed"}, "failing"),
    ],
)
def test_the_report_judges_a_requirement_by_the_tests_that_claim_it(
    id: str, tests: dict[str, str], expected: str
) -> None:
    assert status(id, {id: tests} if tests else {}, gaps={"OPEN"}) == expected


def test_the_report_complains_of_everything_but_the_proven_and_the_gaps() -> None:
    told = complaints({"A": "proven", "B": "gap", "C": "failing", "D": "stale gap", "E": "missing"})
    assert [line[-1] for line in told] == ["C", "D", "E"]


def test_the_report_says_which_files_were_tested_and_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sources, "current", lambda: Sources("cafe", ""))
    record = tmp_path / "record.json"
    assert main(str(record)) == 1
    assert capsys.readouterr().err == "no full run of the tests is recorded; run: make test\n"
    passed = {id: {"test": "passed"} for id in REQUIREMENTS if id not in GAPS}
    RecordedRun("2026-01-02 03:04", Sources("cafe", ""), passed).save(record)
    assert main(str(record)) == 0
    assert capsys.readouterr().out.endswith("\nthe tests ran until 2026-01-02 03:04, on commit cafe\n")
    RecordedRun("2026-01-02 03:04", Sources("cafe", "1234"), passed).save(record)
    assert main(str(record)) == 0
    assert capsys.readouterr().out.endswith(
        "on commit cafe with changes\nstale: the files are now those of commit cafe; run: make test\n"
    )
