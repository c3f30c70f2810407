"""The judge's corpora, run: what may pass the judge is contained, and without any judge nothing reaches the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve.sandbox import SandboxLimits, probe, run

pytestmark = pytest.mark.skipif(bool(probe().missing), reason=f"this kernel lacks {', '.join(probe().missing)}")

SECRET = "canary-77c1d0"
CORPORA = Path(__file__).parents[1] / "guard" / "corpora"
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (CORPORA / "code.jsonl").read_text(encoding="utf-8").splitlines() if line
]
LEVELS = ("standard", "strict", "readonly")


def source(row: dict[str, Any]) -> str:
    return row["code"] if "code" in row else "".join(piece * count for piece, count in row["repeat"])


def rows(expected: str, category: str) -> list[Any]:
    return [
        pytest.param(row, level, id=f"{row['id']}-{level}")
        for row in ROWS
        for level in LEVELS
        if row["category"] == category and row["expected"].get(level) == expected
    ]


@pytest.mark.parametrize(("row", "level"), rows("S", "dos"))
def test_what_only_the_sandbox_can_stop_is_stopped(row: dict[str, Any], level: Any) -> None:
    outcome = run(source(row), level=level, limits=SandboxLimits(seconds=0.6, memory_bytes=128 * 2**20))
    assert outcome.duration_ms < 1_500


@pytest.mark.parametrize(("row", "level"), rows("A", "benign"))
def test_honest_programs_run(row: dict[str, Any], level: Any) -> None:
    outcome = run(source(row), level=level)
    assert outcome.status == "ok", outcome.error


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in ROWS if row["category"] != "dos"])
def test_unjudged_attacks_find_nothing_of_the_host(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFSERVE_SECRET", SECRET)
    told = source(row) + "\nresult = repr(globals().get('PWN'))[:10_000]"
    outcome = run(told, level="unrestricted", limits=SandboxLimits(seconds=3))
    everything = f"{outcome.value}{outcome.stdout}{outcome.error}"
    for found in (SECRET, "root:x:", "uid="):
        assert found not in everything
