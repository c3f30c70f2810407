"""The judge's corpora, run: what may pass the judge is contained, and without any judge nothing reaches the host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from defserve.guard.code import judge
from defserve.guard.code.allowed_names import CodeLevel
from defserve.sandbox import SandboxLimits, probe, run
from tests.effort import thinned

pytestmark = pytest.mark.skipif(bool(probe().missing), reason=f"this kernel lacks {', '.join(probe().missing)}")

SECRET = "canary-77c1d0"
CORPORA = Path(__file__).parents[1] / "guard" / "corpora"
LEVELS: tuple[CodeLevel, ...] = ("standard", "strict", "readonly")


def read(corpus: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPORA / corpus).read_text(encoding="utf-8").splitlines() if line]


ROWS = read("code.jsonl")


def source(row: dict[str, Any]) -> str:
    return row["code"] if "code" in row else "".join(piece * count for piece, count in row["repeat"])


def rows(expected: str, category: str) -> list[Any]:
    return [
        pytest.param(row, level, id=f"{row['id']}-{level}")
        for row in ROWS
        for level in LEVELS
        if row["category"] == category and row["expected"].get(level) == expected
    ]


@pytest.mark.parametrize(("row", "level"), thinned(rows("S", "dos"), 5))
def test_what_only_the_sandbox_can_stop_is_stopped(row: dict[str, Any], level: Any) -> None:
    outcome = run(source(row), level=level, limits=SandboxLimits(seconds=0.3, memory_bytes=128 * 2**20))
    assert outcome.duration_ms < 10_000


@pytest.mark.parametrize(("row", "level"), thinned(rows("A", "benign"), 5))
def test_honest_programs_run(row: dict[str, Any], level: Any) -> None:
    outcome = run(source(row), level=level)
    assert outcome.status == "ok", outcome.error


def let_through() -> list[Any]:
    """What the judge allows of everything that is neither honest nor meant to exhaust: it runs for real.

    Of the larger corpus every eighth, or all of it with DEFSERVE_WHOLE_CORPUS set.
    """
    more = read("code_more.jsonl")
    chosen = ROWS + (more if os.environ.get("DEFSERVE_WHOLE_CORPUS") else more[::8])
    return [
        pytest.param(row, level, id=f"{row['id']}-{level}")
        for row in chosen
        for level in LEVELS
        if row["category"] not in ("dos", "benign") and judge(source(row), level=level)
    ]


@pytest.mark.parametrize(("row", "level"), thinned(let_through(), 5))
def test_what_the_judge_lets_through_leaves_the_host_as_it_was(
    row: dict[str, Any], level: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFSERVE_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").write_text(SECRET)
    told = source(row) + "\nresult = str(PWN)[:10000]" if "PWN" in source(row) else source(row)
    outcome = run(told, level=level, limits=SandboxLimits(seconds=2, memory_bytes=128 * 2**20))
    check_untouched(f"{outcome.value}{outcome.stdout}{outcome.error}")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("kept", SECRET)]


def check_untouched(everything: str) -> None:
    for found in (SECRET, "root:x:", "uid="):
        assert found not in everything


@pytest.mark.parametrize(
    "row", thinned([pytest.param(row, id=row["id"]) for row in ROWS if row["category"] != "dos"], 5)
)
def test_unjudged_attacks_find_nothing_of_the_host(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFSERVE_SECRET", SECRET)
    told = source(row) + "\nresult = repr(globals().get('PWN'))[:10_000]"
    outcome = run(told, level="unrestricted", limits=SandboxLimits(seconds=3))
    check_untouched(f"{outcome.value}{outcome.stdout}{outcome.error}")
