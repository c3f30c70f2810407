"""How long calls took, by tool."""

from __future__ import annotations

from typing import Any

from defserve.inspector.recording.recorder import RecordedMessage
from defserve.inspector.recording.timeline import EDGES, MAX_CALLS, MAX_TOOLS, SECONDS, Latencies


def answer(ms: float, tool: str = "water", time: float = 1_000.0, seq: int = 0, **more: Any) -> RecordedMessage:
    made: dict[str, Any] = {"era": "stateless", "direction": "received", "kind": "answer", "method": "tools/call"}
    return RecordedMessage(seq=seq, time=time, id=1, size=9, about=tool, ms=ms, **{**made, **more})


def test_each_tool_has_a_histogram_its_errors_and_its_slowest_calls():
    latencies = Latencies(lambda: 1_000.0)
    for seq, ms in enumerate((0.05, 3.0, 4.0, 150.0, 99_999.0)):
        latencies.add(answer(ms, seq=seq, error=True if ms == 150.0 else None))
    latencies.add(answer(7.0, "read"))
    read, water = latencies.describe_era("stateless")["tools"]
    assert (read["tool"], read["calls"], read["median"]) == ("read", 1, 7.0)
    assert (water["calls"], water["errors"], water["median"], water["p95"]) == (5, 1, 4.0, 99_999.0)
    assert [call["seq"] for call in water["slowest"]] == [4, 3, 2, 1, 0]
    # A bar for what is under the first edge, one for what is over the last.
    assert len(water["bars"]) == len(EDGES) + 1
    assert (water["bars"][0], water["bars"][-1], sum(water["bars"])) == (1, 1, 5)
    between = EDGES.index(2.0) + 1
    assert (EDGES[between - 1], EDGES[between], water["bars"][between]) == (2.0, 5.0, 2)
    assert (sum(water["failed"]), water["failed"][EDGES.index(100.0) + 1]) == (1, 1)


def test_only_answers_to_our_calls_count_each_in_its_era():
    latencies = Latencies()
    others: list[dict[str, Any]] = [{"method": "tools/list"}, {"kind": "request"}, {"direction": "sent"}]
    for strange in others:
        latencies.add(answer(1.0, **strange))
    latencies.add(RecordedMessage(0, 1.0, "stateless", "received", "answer", "tools/call", 1, 9))
    assert latencies.describe_era("stateless")["tools"] == []
    latencies.add(answer(1.0, era="handshake"))
    assert latencies.describe_era("stateless")["tools"] == []
    assert len(latencies.describe_era("handshake")["tools"]) == 1


def test_the_last_minute_second_by_second():
    latencies = Latencies(lambda: 1_059.9)
    for time, failed in ((900.0, False), (1_000.2, True), (1_059.1, False), (1_059.2, False)):
        latencies.add(answer(1.0, time=time, error=True if failed else None))
    latencies.add(answer(1.0, time=1_059.3, era="handshake"))
    seconds = latencies.describe_era("stateless")["seconds"]
    assert len(seconds) == SECONDS
    assert (seconds[0], seconds[-1], sum(calls for calls, _ in seconds)) == ((1, 1), (2, 0), 3)


def test_calls_and_tools_are_bounded():
    latencies = Latencies()
    for number in range(MAX_CALLS + 5):
        latencies.add(answer(float(number)))
    assert latencies.describe_era("stateless")["tools"][0]["calls"] == MAX_CALLS
    for number in range(MAX_TOOLS):
        latencies.add(answer(1.0, f"tool {number}"))
    names = [each["tool"] for each in latencies.describe_era("stateless")["tools"]]
    assert len(names) == MAX_TOOLS
    assert "water" not in names
