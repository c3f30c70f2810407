"""The calls that the host keeps, and what page and host say to each other about them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from defserve import Context, Server
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError
from defserve.inspector import kept_calls
from defserve.inspector.kept_calls import count_result_tokens, summarize_result
from defserve.inspector.page_server import serve_inspector
from defserve.inspector.protocol import BadMessage
from tests.inspector.conftest import Inspect, Run, opened, target_of
from tests.waiting import until

pytestmark = pytest.mark.anyio

GOLDEN: Final = Path(__file__).parent / "golden" / "messages.json"
CHANGING: Final = {
    "ms": 1.5,
    "first": 1.0,
    "start": 0.5,
    "between": 0.0,
    "began": 1_700_000_000.0,
    "now": 1_700_000_001.0,
    "request": "the-id",
    "trace_id": "a-trace",
}
UNSAID: Final = ("_meta", "_mgp")


def server() -> Server:
    made = Server("talkative", "1")

    @made.tool
    async def count(to: int, ctx: Context) -> list[dict[str, int]]:
        for number in range(to):
            ctx.log.info("step", i=number)
        ctx.progress(to, to, "counted")
        return [{"i": number} for number in range(to)]

    @made.tool
    async def rest() -> None:
        await asyncio.sleep(3600)

    assert count and rest
    return made


def steady(value: Any) -> Any:
    """What was said, without what differs each time."""
    if is_object(value):
        kept = {name: each for name, each in value.items() if name not in UNSAID}
        return {
            name: CHANGING[name] if name in CHANGING and each not in (None, "") else steady(each)
            for name, each in kept.items()
        }
    return [steady(each) for each in value] if is_array(value) else value


async def test_page_and_host_say_what_the_golden_file_has():
    """After a change: delete the file, run this again, and look at the difference."""
    async with serve_inspector(target_of(server(), "stateless")) as running, opened(running) as page:
        said: list[Any] = []
        for verb, arguments in (
            ("tools.call", {"tool": "count", "arguments": {"to": 2}}),
            ("tools.call", {"tool": "count", "arguments": {"to": "x"}}),
            ("tools.calls", {}),
            ("tools.follow", {"call": 1}),
            ("tools.cancel", {"call": 1}),
            ("tools.follow", {"call": 99}),
        ):
            id = await page.begin(verb, **arguments)
            answer = await page.answer(id)
            portions = page.parts.get(id, [])
            # How the lines are cut into portions depends on the machine.
            whole = {name: [each for part in portions for each in part.get(name, ())] for name in ("log", "content")}
            progress = [part["progress"] for part in portions if "progress" in part]
            begun = [part["call"] for part in portions if "call" in part]
            parts = {"call": begun[:1], **whole, "progress": progress[-1:]}
            told = {name: each for name, each in parts.items() if each}
            said.append(steady({"do": verb, "with": arguments, "parts": told, **answer, "id": id}))
    text = json.dumps(said, indent=1, ensure_ascii=False) + "\n"
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} is written anew: look at it")
    assert json.loads(text) == json.loads(GOLDEN.read_text())


async def test_the_oldest_calls_make_room(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_calls, "MAX_CALLS", 3)
    async with inspect(server()) as inspection:
        for _ in range(5):
            await do(inspection, "tools.call", tool="count", arguments={"to": 1})
        assert [call["number"] for call in inspection.calls.to_wire()] == [5, 4, 3]
        with pytest.raises(BadMessage, match="call 1 is no longer kept"):
            await do(inspection, "tools.follow", call=1)


async def test_what_is_kept_is_bounded_in_bytes(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    async with inspect(server()) as inspection:
        await do(inspection, "tools.call", tool="count", arguments={"to": 50})
        monkeypatch.setattr(kept_calls, "MAX_BYTES", int(inspection.calls[1].bytes * 1.5))
        for _ in range(2):  # lines of a call may come after its result, and count from the next end on
            await do(inspection, "tools.call", tool="count", arguments={"to": 50})
        assert 1 not in [call["number"] for call in inspection.calls.to_wire()]


async def test_of_too_many_lines_the_newest_are_kept_and_the_others_counted(
    inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_calls, "MAX_LINES", 10)
    async with inspect(server()) as inspection:
        await do(inspection, "tools.call", tool="count", arguments={"to": 25})
        parts = list[Any]()
        await do(inspection, "tools.follow", parts, call=1)
        assert [line["data"]["i"] for part in parts for line in part.get("log", ())] == list(range(15, 25))
        assert sum(part.get("dropped", 0) for part in parts) == 15


async def test_lines_come_in_portions(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_calls, "PORTION_LINES", 10)
    async with inspect(server()) as inspection:
        await do(inspection, "tools.call", tool="count", arguments={"to": 25})
        parts = list[Any]()
        await do(inspection, "tools.follow", parts, call=1)
        assert [len(part["log"]) for part in parts] == [10, 10, 5]


async def test_no_more_than_a_number_of_calls_run(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_calls, "MAX_RUNNING_CALLS", 1)
    async with inspect(server()) as inspection:
        inspection.calls.start(None, "rest", {})
        with pytest.raises(BadMessage, match="1 calls run already"):
            await do(inspection, "tools.call", tool="rest", arguments={})
        inspection.calls[1].cancel()
        await until(lambda: inspection.calls[1].state == "cancelled")
        await do(inspection, "tools.call", tool="count", arguments={"to": 1})


async def test_a_refused_call_is_kept_with_its_error(inspect: Inspect, do: Run):
    async with inspect(server()) as inspection:
        for verb, about in (
            ("tools.call", {"tool": "count", "arguments": {"to": "x"}}),
            ("tools.follow", {"call": 1}),
        ):
            with pytest.raises(DefserveError):
                await do(inspection, verb, **about)
        assert [call["state"] for call in inspection.calls.to_wire()] == ["failed"]


@pytest.mark.parametrize(
    ("result", "brief", "tokens"),
    [
        ({"content": [{"type": "text", "text": "42"}]}, "42", 1),
        ({"content": [{"type": "text", "text": "word " * 100}]}, "500 characters", 125),
        ({"content": [], "structuredContent": {"result": [{"a": 1}, {"a": 2}]}}, "2 rows", 0),
        ({"content": [], "structuredContent": [{"a": 1}]}, "1 row", 0),
        ({"content": [{"type": "image"}, {"type": "text", "text": "x"}]}, "image, text", 1),
        ({"content": []}, "nothing", 0),
        ({"content": "odd"}, "nothing", 0),
        (None, "nothing", 0),
    ],
)
def test_a_result_is_told_in_a_word_and_by_its_cost(result: Any, brief: str, tokens: int):
    assert (summarize_result(result), count_result_tokens(result)) == (brief, tokens)
