"""The campaign in small: it can measure. Its goals of time want a quiet machine, and are not judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.__main__ import main as run_command
from tests.load.__main__ import measure_half_heads, measure_idle_streams, measure_slow_readers

pytestmark = pytest.mark.slow


def test_an_idle_stream_of_a_session_takes_little_room():
    found = {goal.name: goal.value for goal in measure_idle_streams(600, 0)}
    assert 0 < found["idle stream, session, above it"] < 6


def test_a_healthy_caller_is_served_beside_slow_readers_and_half_heads():
    for measure in (measure_slow_readers, measure_half_heads):
        (goal,) = measure(100, 0.5)
        assert goal.value > 0


def test_the_figures_are_written_as_json(tmp_path: Path):
    file = tmp_path / "figures.json"
    run_command(["--only", "callers", "--scale", "0.01", "--seconds", "1", "--json", str(file)])
    rows = json.loads(file.read_text())
    assert len(rows) == 20 and {"name", "value", "limit", "unit", "held"} == set(rows[0])
