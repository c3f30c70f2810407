"""The verbs of the Wire panel: rows, messages, both eras, sending again, saving."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve import Context, Server, ToolError, dangerous, safe
from defserve.errors import DefserveError
from defserve.inspector.inspection import Inspection
from defserve.inspector.recording.recorder import Direction, RecordedExchange, Recorder
from tests.inspector.conftest import Inspect, Run
from tests.waiting import until

pytestmark = pytest.mark.anyio

ERAS = ("handshake", "stateless")
eras = pytest.mark.parametrize("era", ERAS)


def garden() -> tuple[Server, list[str]]:
    """A server, and what was watered."""
    server, watered = Server("garden", "1"), list[str]()

    @server.tool
    @safe
    async def look(ctx: Context, bed: str, password: str = "") -> str:
        ctx.progress(1, total=2, message="half")
        if bed == "none":
            raise ToolError("there is no such bed")
        return bed

    @server.tool
    @dangerous
    def water(bed: str) -> str:
        watered.append(bed)
        return bed

    @server.tool
    def unmarked() -> str:
        return "done"

    return server, watered


async def look(inspection: Inspection, era: str, bed: str = "fern", **more: Any) -> int:
    """Call the tool; the number of the request."""
    client = await inspection.client(era)
    await client.call_raw("look", {"bed": bed, **more})
    return newest(inspection, era, "tools/call")


def newest(inspection: Inspection, era: str, method: str) -> int:
    recorder = inspection.recorder
    fits = [
        entry.seq
        for entry in recorder.get_messages(0, recorder.count)
        if entry.kind == "request" and entry.era == era and entry.method == method
    ]
    return fits[-1]


@eras
async def test_a_call_is_one_row_with_its_outcome_and_its_answer(inspect: Inspect, do: Run, era: str):
    async with inspect(garden()[0], era) as inspection:
        seq = await look(inspection, era)
        failed = await look(inspection, era, "none")
        told = (await do(inspection, "wire.rows", filter="tool:look"))["rows"]
        assert [row["seq"] for row in told] == [seq, failed]
        assert (told[0]["era"], told[0]["about"], told[0].get("error")) == (era, "look", None)
        assert told[1]["error"] is True
        assert told[0]["ms"] >= 0 and told[0]["answer"] > 20 and told[0]["size"] > 20
        # The first messages of a conversation belong to its era, though it was agreed on by them.
        every = (await do(inspection, "wire.rows"))["rows"]
        assert {row["era"] for row in every} == {era}
        assert (await do(inspection, "wire.rows", filter="tool:look", start=1, stop=2))["rows"] == told[1:]
        assert (await do(inspection, "wire.rows", start=10_000, stop=20_000))["rows"] == []


@eras
async def test_notices_belong_to_their_call(inspect: Inspect, do: Run, era: str):
    async with inspect(garden()[0], era) as inspection:
        await do(inspection, "tools.call", era=era, tool="look", arguments={"bed": "fern"})
        seq = newest(inspection, era, "tools/call")
        row = (await do(inspection, "wire.rows", filter="tool:look"))["rows"][0]
        assert row["parts"] and row["parts"][0] <= row["ms"]
        told = await do(inspection, "wire.message", seq=seq)
        kinds = [each["kind"] for each in told["others"]]
        assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("request", "answer", {"notice"})
        assert "1 of 2, half" in [each.get("about") for each in told["others"]]
        assert told["other"]["kind"] == "answer" and told["body"]["params"]["name"] == "look"
        notice = await do(inspection, "wire.message", seq=told["others"][1]["seq"])
        assert notice["other"]["seq"] == seq and notice["others"] == told["others"]
        # All messages of a request are found by its id.
        rows = (await do(inspection, "wire.rows", filter=f"id:{row['id']}", answers=True))["rows"]
        assert [each["seq"] for each in rows] == [each["seq"] for each in told["others"]]


async def test_a_filter_is_read_for_the_page(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        assert await do(inspection, "wire.filter", filter="a not:is:error") == {"terms": [[0, 0, 1], [2, 9, 14]]}
        problem = (await do(inspection, "wire.filter", filter="a era:x"))["problem"]
        assert (problem["start"], problem["stop"]) == (6, 7) and "handshake" in problem["fix"]
        for arguments in ({"filter": "is:"}, {"kind": "some"}):
            with pytest.raises(DefserveError):
                await do(inspection, "wire.rows", **arguments)


async def test_following_tells_how_many_rows_there_are_until_it_is_cancelled(inspect: Inspect, do: Run):
    parts = list[Any]()
    async with inspect(garden()[0]) as inspection:
        await inspection.client()
        following = asyncio.create_task(do(inspection, "wire.follow", parts, filter="tool:look"))
        await until(lambda: bool(parts))
        assert parts[-1]["rows"] == 0
        await look(inspection, "stateless")
        await until(lambda: parts[-1]["rows"] == 1)
        assert parts[-1]["messages"] > 2 and sum(bar[0] for bar in parts[-1]["overview"]["bars"]) > 2
        await look(inspection, "stateless", "none")
        await until(lambda: parts[-1]["rows"] == 2 and parts[-1]["errors"] == 1)
        await do(inspection, "wire.clear")
        await until(lambda: parts[-1]["rows"] == 0 and parts[-1]["messages"] == 0)
        assert parts[-1]["dropped"] == 2
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert not inspection.timeline._told  # pyright: ignore[reportPrivateUsage]


async def test_a_span_of_time_and_the_place_of_a_message(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        seqs = [await look(inspection, "stateless") for _ in range(4)]
        times = [inspection.recorder.get_messages(seq, seq + 1)[0].time for seq in seqs]
        span = {"from": times[1], "to": times[3]}
        rows = (await do(inspection, "wire.rows", filter="tool:look", **span))["rows"]
        assert seqs[1] in [row["seq"] for row in rows] and len(rows) <= 3
        assert await do(inspection, "wire.find", filter="tool:look", seq=seqs[2]) == {"place": 2}
        answer = inspection.recorder.get_messages(seqs[2], seqs[2] + 1)[0].of
        assert await do(inspection, "wire.find", filter="tool:look", seq=answer) == {"place": 2}
        assert await do(inspection, "wire.find", filter="tool:other", seq=seqs[2]) == {"place": None}
        with pytest.raises(DefserveError, match="no longer kept"):
            await do(inspection, "wire.message", seq=10_000)


def marked(told: dict[str, Any], part: str = "lines") -> list[tuple[str | None, str | None]]:
    return [(row[0], row[1]) for row in told[part] if not isinstance(row, int) and row[2]]


@eras
async def test_the_same_message_in_the_other_era(inspect: Inspect, do: Run, era: str):
    async with inspect(garden()[0]) as inspection:
        other = ERAS[era == "handshake"]
        seq = await look(inspection, era)
        alone = await do(inspection, "wire.eras", seq=seq)
        assert alone[era]["seq"] == seq and other not in alone and alone["differences"] is None
        await look(inspection, other, "another")
        assert other not in await do(inspection, "wire.eras", seq=seq)
        same = await look(inspection, other)
        told = await do(inspection, "wire.eras", seq=seq)
        assert (told[era]["seq"], told[other]["seq"]) == (seq, same) and told["again"] is None
        found = marked(told)
        assert any(right and "io.modelcontextprotocol/protocolVersion" in right for _, right in found)
        # What names one message differs by chance, and is not marked. Each side reads as its own JSON.
        assert not any(line and ('"id"' in line or "trace_id" in line) for row in found for line in row)
        for side, which in enumerate(ERAS):
            text = "".join(row[side] or "" for row in told["lines"])
            assert json.loads(text) == told_body(inspection, told[which]["seq"])
        assert any(right and "resultType" in right for _, right in marked(told, "answers"))
        assert told["differences"] >= 2


def told_body(inspection: Inspection, seq: int) -> Any:
    return (inspection.recorder.describe_message(seq) or {})["body"]


async def test_the_first_messages_of_both_eras_are_the_same_thing(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        for era in ERAS:
            await inspection.client(era)
        told = await do(inspection, "wire.eras", seq=newest(inspection, "handshake", "initialize"))
        assert told["stateless"]["seq"] == newest(inspection, "stateless", "server/discover")
        assert "once" in told["again"]
        with pytest.raises(DefserveError, match="cannot be sent again"):
            await do(inspection, "wire.again", seq=told["handshake"]["seq"])


async def test_a_safe_call_is_sent_again_in_both_eras_with_its_secrets(inspect: Inspect, do: Run):
    server, _ = garden()
    async with inspect(server, "handshake") as inspection:
        seq = await look(inspection, "handshake", password="hunter2")
        told = await do(inspection, "wire.again", seq=inspection.recorder.get_messages(seq, seq + 1)[0].of)
        assert told["errors"] == {} and set(told["sent"]) == set(ERAS) and min(told["sent"].values()) > seq
        for era, sent in told["sent"].items():
            body = inspection.recorder.get_body(sent) or b""
            assert b"hunter2" in body and (b"io.modelcontextprotocol" in body) is (era == "stateless")
        compared = await do(inspection, "wire.eras", seq=told["sent"]["handshake"])
        assert compared["stateless"]["seq"] == told["sent"]["stateless"]
        assert "hunter2" not in json.dumps(compared)


async def test_a_refusal_is_an_answer_like_any_other(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        client = await inspection.client("stateless")
        with pytest.raises(DefserveError):
            await client.request("resources/read", {"uri": "file:///none"})
        told = await do(inspection, "wire.again", seq=newest(inspection, "stateless", "resources/read"))
        assert told["errors"] == {} and set(told["sent"]) == set(ERAS)


@pytest.mark.parametrize(("tool", "mark"), [("water", "dangerous"), ("unmarked", None)])
async def test_what_is_not_safe_is_sent_again_only_when_it_is_confirmed(
    inspect: Inspect, do: Run, tool: str, mark: str | None
):
    server, watered = garden()
    async with inspect(server) as inspection:
        inspection.granted["shell.execute"] = True
        arguments = {"bed": "fern"} if tool == "water" else {}
        calling = asyncio.create_task(do(inspection, "tools.call", era="stateless", tool=tool, arguments=arguments))
        await _allow(inspection, calling)
        seq, before = newest(inspection, "stateless", "tools/call"), len(watered)
        told = await do(inspection, "wire.again", seq=seq)
        assert told == {"confirm": {"method": "tools/call", "tool": tool, "mark": mark}} and len(watered) == before
        sending = asyncio.create_task(do(inspection, "wire.again", seq=seq, confirmed=True))
        await _allow(inspection, sending)
        assert set(sending.result()["sent"]) == set(ERAS)
        assert len(watered) == before * 3


async def _allow(inspection: Inspection, task: asyncio.Task[Any]) -> None:
    """Say yes to whatever the inspector asks while a task runs."""
    while not task.done():
        for question in inspection.questions.waiting:
            inspection.questions.answer_question(question["id"], {"yes": True, "decision": "approved"})
        await asyncio.wait((task,), timeout=0.02)


async def test_requests_that_may_change_something_need_a_yes_too(inspect: Inspect, do: Run):
    async with inspect(garden()[0], "handshake") as inspection:
        client = await inspection.client("handshake")
        await client.request("logging/setLevel", {"level": "info"})
        told = await do(inspection, "wire.again", seq=newest(inspection, "handshake", "logging/setLevel"))
        assert told["confirm"]["method"] == "logging/setLevel"


async def test_what_the_server_asks_cannot_be_sent_again(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        await inspection.client()
        entry = inspection.recorder.append("stateless", "received", b'{"id": 9, "method": "ping"}')
        with pytest.raises(DefserveError, match="Only requests of the inspector"):
            await do(inspection, "wire.again", seq=entry.seq)


async def test_messages_are_saved_in_pieces_without_their_secrets(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        for _ in range(3):
            await look(inspection, "stateless", password="hunter2")
        text, start = "", 0
        while start is not None:
            piece = await do(inspection, "wire.save", filter="tool:look", start=start)
            text, start = text + piece["text"], piece["next"]
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["kind"] for line in lines] == ["request", "answer"] * 3
        assert lines[0]["body"]["params"]["arguments"]["bed"] == "fern" and "hunter2" not in text
        assert "hunter2" not in json.dumps(await do(inspection, "wire.message", seq=lines[0]["seq"]))


async def test_a_very_long_message_is_compared_without_its_equal_lines(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        await inspection.client()
        seqs = list[int]()
        for era in ERAS:
            params = {"name": "x", "list": list(range(2_000)), "long": "y" * 9_000}
            body = json.dumps({"id": 1, "method": "x/y", "params": params, "only": era}).encode()
            seqs.append(inspection.recorder.append(era, "sent", body).seq)
        told = await do(inspection, "wire.eras", seq=seqs[0])
        assert any(isinstance(row, int) for row in told["lines"]) and len(told["lines"]) < 50
        assert told["differences"] == 1 and told["stateless"]["seq"] == seqs[1]
        assert len(json.dumps(told)) < 10_000


@pytest.mark.slow
async def test_an_enormous_message_is_not_compared(inspect: Inspect, do: Run):
    async with inspect(garden()[0]) as inspection:
        await inspection.client()
        body = json.dumps({"id": 1, "method": "x/y", "params": {"long": ["y"] * 200_000}}).encode()
        seqs = [inspection.recorder.append(era, "sent", body).seq for era in ERAS]
        told = await do(inspection, "wire.eras", seq=seqs[0])
        assert "stateless" not in told and "too long to compare" in told["lines"][0][0]
        assert len((await do(inspection, "wire.message", seq=seqs[0]))["body"]["params"]["long"]) == 200_000


def test_headers_are_compared_by_name(anyio_backend: str):
    from defserve.inspector.panels.wire import both_eras
    from defserve.inspector.recording.recorder import Recorder

    recorder = Recorder()
    common = {"accept": "x", "Content-Type": "application/json"}
    for era, own in (("handshake", {"mcp-session-id": "s" * 30}), ("stateless", {"Mcp-Method": "ping"})):
        seq = recorder.append(era, "sent", b'{"id": 1, "method": "ping"}').seq
        recorder.attach(seq, RecordedExchange("POST", "http://x/mcp", {**common, **own}, 200, {}))
    first = recorder.get_message(0)
    assert first is not None
    told = both_eras(recorder, first)
    assert told["lines"][0][:2] == ("POST http://x/mcp", "POST http://x/mcp")
    assert told["lines"][1] == ("content-type: application/json", "content-type: application/json", False)
    assert ("mcp-session-id: …ss", None, True) in told["lines"]
    assert (None, "mcp-method: ping", True) in told["lines"]
    assert told["differences"] == 1


@pytest.mark.parametrize("verb", ["wire.rows", "wire.follow", "wire.save", "wire.find"])
async def test_a_time_that_no_page_can_have_is_refused_with_a_reason(inspect: Inspect, do: Run, verb: str):
    async with inspect() as inspection:
        await inspection.client()
        for span in ({"from": 10**400, "to": 1}, {"from": 0, "to": 10**400}, {"from": "a", "to": 1}):
            with pytest.raises(DefserveError, match="is not a number up to"):
                await do(inspection, verb, seq=0, **span)


@eras
async def test_what_the_inspector_sends_for_itself_can_be_hidden(inspect: Inspect, do: Run, era: str):
    async with inspect(garden()[0], era) as inspection:
        await do(inspection, "tools.list")
        seq = await look(inspection, era)
        shown = (await do(inspection, "wire.rows", hides_own=True))["rows"]
        assert {row["method"] for row in shown if row["kind"] == "request"} == {"tools/call"}
        assert seq in [row["seq"] for row in shown]
        every = {row["method"] for row in (await do(inspection, "wire.rows"))["rows"]}
        assert {"tools/list", "initialize" if era == "handshake" else "server/discover"} <= every
        # Nor do their answers have rows of their own.
        answers = (await do(inspection, "wire.rows", hides_own=True, answers=True))["rows"]
        assert {row["method"] for row in answers if row["kind"] == "answer"} == {"tools/call"}


async def test_what_a_server_asks_is_never_hidden():
    recorder = Recorder()
    messages: list[tuple[Direction, str]] = [("received", "ping"), ("sent", "ping"), ("received", "roots/list")]
    for direction, method in messages:
        recorder.append("handshake", direction, json.dumps({"id": 1, "method": method}).encode())
    assert [each.is_own for each in recorder.get_messages(0, 3)] == [False, True, False]
    recorder.close()
