from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import __main__ as pages
from tests.reliability import campaigns
from tests.reliability.campaigns import CAMPAIGNS, Campaign, count_passes, find_figures
from tests.reliability.pages import CampaignRow, reliability


def row(name: str = "a", verdict: str = "passed", tree: str = "t1", figures: str = "") -> CampaignRow:
    return CampaignRow(name, "true", "c1", tree, "Linux", 1, figures, verdict)


def test_a_failure_breaks_the_row_of_runs_that_passed():
    passes = Campaign("a", "true", "", runs=3)
    assert count_passes(passes, [row(), row(verdict="failed"), row(), row()], "t1") == 2
    assert count_passes(passes, [row(), row(verdict="failed")], "t1") == 0
    assert count_passes(passes, [row(tree="t2"), row(name="b"), row()], "t1") == 1


@pytest.mark.parametrize(
    ("name", "text", "figures"),
    [
        ("test", "....\n12324 passed, 19 skipped in 256.08s (0:04:16)\n", "12324 passed, 19 skipped"),
        ("attack", "2 rows, --seed 1\n\n2 rows, 9 tries, in 7 s; all held\n", "2 rows, 9 tries, in 7 s; all held"),
        ("soak", "\n1,234 calls in 600 s; all flat\n", "1,234 calls in 600 s; all flat"),
        ("fresh-clone", "=== make test passed in 3 s\n=== all passed in 805 s\n", "805 s"),
        ("every-python", "== tests (Python 3.12.1)\n5 passed in 1.0s\n", "Python 3.12.1; 5 passed"),
    ],
)  # fmt: skip
def test_figures_are_what_the_command_printed(name: str, text: str, figures: str):
    campaign = next(campaign for campaign in CAMPAIGNS if campaign.name == name)
    assert find_figures(campaign, text) == figures


def test_a_run_is_recorded_and_what_has_passed_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    counted = tmp_path / "count"
    monkeypatch.setenv("ARGS", "good")
    good = Campaign("good", f"echo x >> {counted}; echo 7 of 7 held$ARGS", r"^(\d of \d) held$", runs=2)
    unsteady = Campaign("unsteady", "echo one test failed at first", "", unwanted="failed at first")
    saved: list[list[CampaignRow]] = []
    monkeypatch.setattr(campaigns, "CAMPAIGNS", (good, unsteady))
    monkeypatch.setattr(campaigns, "MEASURED", (":!*",))
    monkeypatch.setattr(campaigns, "LOGS", tmp_path)
    monkeypatch.setattr(campaigns, "save_rows", saved.append)
    monkeypatch.setattr(pages, "load_campaigns", lambda: saved[-1] if saved else [])
    assert campaigns.main([]) == 1
    assert counted.read_text().count("x") == 2
    assert [(row.name, row.figures, row.verdict) for row in saved[-1]] == [
        ("good", "7 of 7", "passed"),
        ("good", "7 of 7", "passed"),
        ("unsteady", "", "failed"),
    ]
    assert campaigns.main(["--except", "unsteady"]) == 0 and counted.read_text().count("x") == 2
    assert capsys.readouterr().out.endswith("failed: unsteady\nall passed\n")


def test_every_command_of_a_campaign_is_a_target_of_the_makefile():
    makefile = (pages.ROOT / "Makefile").read_text()
    for campaign in CAMPAIGNS:
        if campaign.command.startswith("make "):
            assert f"\n{campaign.command.removeprefix('make ')}: " in makefile.replace(":  ##", ": "), campaign.name


def test_a_row_names_the_commit_so_changes_must_be_committed_first(monkeypatch: pytest.MonkeyPatch):
    def answer(*words: str) -> str:
        return " M framework/x.py" if words[0] == "status" else "t1"

    monkeypatch.setattr(campaigns, "_git", answer)
    assert campaigns.main(["test"]) == 2


def test_the_page_shows_every_row():
    page = reliability(None, None, None, [row(name="attack", figures="all held", verdict="failed")])
    assert "| attack | `true` | c1 | t1 | Linux | 1 s | all held | failed |" in page


def test_results_of_an_earlier_run_do_not_count_for_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []
    monkeypatch.setattr(campaigns, "LOGS", tmp_path)

    def take(kind: str, found: object) -> None:
        taken.append(kind)

    monkeypatch.setattr(pages, "take", take)
    (tmp_path / "chaos.json").write_text("{}")
    assert campaigns.run_campaign(Campaign("chaos", "false", "", results="chaos"), "t1").verdict == "failed"
    assert taken == []
