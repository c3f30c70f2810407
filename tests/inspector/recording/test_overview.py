from __future__ import annotations

import time

import pytest

from defserve.inspector.recording.recorder import Recorder
from defserve.inspector.recording.timeline import BARS, MAX_BUCKETS, NARROWEST, Overview


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "time", lambda: self.now)


def message(recorder: Recorder, id: int, wrong: bool = False) -> None:
    body = b'{"id": %d, "error": {"code": 1}}' if wrong else b'{"id": %d, "method": "ping"}'
    recorder.append("stateless", "received" if wrong else "sent", body % id)


def test_messages_and_errors_are_counted_by_their_time(monkeypatch: pytest.MonkeyPatch):
    clock, recorder = Clock(monkeypatch), Recorder()
    overview = Overview(recorder)
    assert overview.count_bars()["bars"] == []
    message(recorder, 1)
    clock.now += 1.0
    message(recorder, 1, wrong=True)
    message(recorder, 2)
    shown = overview.count_bars()
    assert (shown["start"], shown["width"], len(shown["bars"])) == (1_000.0, NARROWEST, BARS)
    assert shown["bars"][0] == [1, 0] and shown["bars"][4] == [2, 1]
    assert sum(bar[0] for bar in shown["bars"]) == 3


@pytest.mark.slow
def test_a_long_time_has_as_many_bars_and_little_memory(monkeypatch: pytest.MonkeyPatch):
    clock, recorder = Clock(monkeypatch), Recorder()
    overview = Overview(recorder)
    for id in range(MAX_BUCKETS + 500):
        clock.now += 0.5
        message(recorder, id)
        if id % 1_000 == 0:
            overview.count_bars()
    shown = overview.count_bars()
    assert len(shown["bars"]) == BARS and sum(bar[0] for bar in shown["bars"]) == MAX_BUCKETS + 500
    assert shown["start"] <= 1_001 and shown["start"] + shown["width"] * BARS >= clock.now
    assert len(overview._buckets) <= MAX_BUCKETS  # pyright: ignore[reportPrivateUsage]


def test_what_is_forgotten_has_no_bar(monkeypatch: pytest.MonkeyPatch):
    clock, recorder = Clock(monkeypatch), Recorder(most=10)
    overview = Overview(recorder)
    for id in range(25):
        clock.now += 1
        message(recorder, id)
        overview.count_bars()
    kept = recorder.get_messages(0, 25)
    assert overview.count_bars()["start"] <= kept[0].time < overview.count_bars()["start"] + 1
    assert sum(bar[0] for bar in overview.count_bars()["bars"]) == len(kept)
    recorder.clear()
    assert overview.count_bars()["bars"] == []
