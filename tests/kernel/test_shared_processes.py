"""One process with several clients, and the link over which other kernels reach it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve.client.replies import TruncatedMessage
from defserve.errors import PeerGone
from defserve.kernel import shared_processes
from defserve.kernel.shared_processes import ProcessSeat, ProcessSeatServer, RemoteProcessSeat, SharedProcess
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio
KEY = b"k" * 32


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Pipe:
    """The pipe to a process that says only what a test has it say."""

    pid = 4711

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_closed = False

    def write(self, message: bytes) -> None:
        self.sent.append(json.loads(message))

    def push(self, take: Callable[[bytes], None], gone: Callable[[PeerGone], None]) -> None:
        self.take, self.gone = take, gone

    def say(self, **message: Any) -> None:
        self.take(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def aclose(self) -> None:
        self.is_closed = True


def share(room: int = 64) -> tuple[Pipe, SharedProcess]:
    pipe: Any = Pipe()
    return pipe, SharedProcess(pipe, room, lambda: None)


async def say(seat: ProcessSeat | RemoteProcessSeat, **message: Any) -> None:
    await seat.send(json.dumps({"jsonrpc": "2.0", **message}).encode())


async def hear(seat: ProcessSeat | RemoteProcessSeat) -> dict[str, Any]:
    async with asyncio.timeout(10):
        return json.loads(await seat.receive())


async def test_two_clients_with_the_same_ids_get_their_own_answers_and_progress() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    for seat in (one, other):
        await say(seat, id=7, method="tools/call", params={"name": "add", "_meta": {"progressToken": 7}})
    first, second = pipe.sent
    assert first["id"] != second["id"] and first["params"]["_meta"]["progressToken"] == first["id"]
    pipe.say(method="notifications/progress", params={"progressToken": second["id"], "progress": 1})
    pipe.say(id=second["id"], result={"of": "other"})
    pipe.say(id=first["id"], result={"of": "one"})
    assert (await hear(other))["params"] == {"progressToken": 7, "progress": 1}
    assert await hear(other) == {"jsonrpc": "2.0", "id": 7, "result": {"of": "other"}}
    assert await hear(one) == {"jsonrpc": "2.0", "id": 7, "result": {"of": "one"}}


async def test_who_waits_for_an_answer_that_cannot_be_read_is_told_and_its_place_is_free() -> None:
    pipe, process = share(room=1)
    one, other = process.add_seat(), process.add_seat()
    for seat in (one, other):
        await say(seat, id="a", method="tools/call", params={"name": "add"})
    (first,) = pipe.sent
    cut = TruncatedMessage(b'{"jsonrpc":"2.0","id":%d,"result":{"content":"xxxx' % first["id"])
    pipe.take(cut)
    told = await hear(one)
    assert told["id"] == "a" and "cannot be read" in told["error"]["message"]
    _, second = pipe.sent
    pipe.say(id=second["id"], result={})
    assert (await hear(other))["result"] == {}


async def test_what_a_process_prints_beside_its_messages_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe, process = share()
    seat = process.add_seat()
    await say(seat, id=1, method="tools/call", params={"name": "add"})
    for number in range(1_000):
        pipe.take(b"loading %d" % number)
    pipe.say(id=pipe.sent[0]["id"], result={"of": "one"})
    assert (await hear(seat))["result"] == {"of": "one"}
    assert sum("not a message" in record.message for record in caplog.records) == 1


async def test_the_handshake_is_made_once() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    for id, seat in enumerate((one, other)):
        await say(seat, id=id, method="initialize", params={"protocolVersion": "2025-11-25"})
    assert len(pipe.sent) == 1
    pipe.say(id=pipe.sent[0]["id"], result={"serverInfo": {"name": "s"}})
    late = process.add_seat()
    await say(late, id="x", method="initialize", params={})
    assert [(await hear(seat))["id"] for seat in (one, other, late)] == [0, 1, "x"]
    for seat in (one, other, late):
        await say(seat, method="notifications/initialized")
    assert [each["method"] for each in pipe.sent] == ["initialize", "notifications/initialized"]


async def test_a_refused_handshake_may_be_tried_again() -> None:
    pipe, process = share()
    seat = process.add_seat()
    await say(seat, id=1, method="initialize", params={"protocolVersion": "1999"})
    pipe.say(id=pipe.sent[0]["id"], error={"code": -32602, "message": "no"})
    await say(seat, id=2, method="initialize", params={})
    assert len(pipe.sent) == 2 and "error" in await hear(seat)


async def test_a_client_cancels_and_answers_only_what_is_its_own() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    await say(one, id=1, method="tools/call", params={})
    await say(other, method="notifications/cancelled", params={"requestId": 1})
    assert len(pipe.sent) == 1
    pipe.say(id="q", method="elicitation/create", params={})
    assert (await hear(one))["id"] == "q"
    await say(other, id="q", result={"action": "accept"})
    assert len(pipe.sent) == 1
    await say(one, id="q", result={"action": "decline"})
    await say(one, method="notifications/cancelled", params={"requestId": 1})
    assert pipe.sent[1:] == [
        {"jsonrpc": "2.0", "id": "q", "result": {"action": "decline"}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": pipe.sent[0]["id"]}},
    ]


async def test_who_leaves_cancels_its_calls_and_is_asked_nothing_more() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    await say(one, id=1, method="tools/call", params={})
    pipe.say(id="q", method="sampling/createMessage", params={})
    await one.aclose()
    assert [each.get("method", "error") for each in pipe.sent[1:]] == ["notifications/cancelled", "error"]
    assert not pipe.is_closed
    with pytest.raises(PeerGone):
        await say(one, id=2, method="ping")
    await other.aclose()
    assert pipe.is_closed and process.is_retired
    with pytest.raises(PeerGone):
        process.add_seat()


async def test_news_reach_all_and_those_of_a_subscription_its_owner() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    await say(one, id=5, method="subscriptions/listen", params={})
    pipe.say(method="notifications/tools/list_changed", params={"_meta": {shared_processes.SUBSCRIPTION: 1}})
    pipe.say(method="notifications/resources/list_changed")
    assert (await hear(one))["params"]["_meta"] == {shared_processes.SUBSCRIPTION: 5}
    assert [(await hear(seat))["method"] for seat in (one, other)] == ["notifications/resources/list_changed"] * 2


@for_each_row(
    "note",
    [
        {"method": "notifications/progress", "params": {"progressToken": []}},
        {"method": "notifications/cancelled", "params": {"requestId": {}}},
        {"method": "notifications/x", "params": {"_meta": {shared_processes.SUBSCRIPTION: [1]}}},
    ],
)
async def test_a_notification_that_names_what_cannot_be_a_number_does_no_harm(note: dict[str, Any]) -> None:
    pipe, process = share()
    process.add_seat()
    pipe.say(**note)


async def test_a_resource_is_watched_until_nobody_wants_it() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    for seat in (one, other):
        await say(seat, id=1, method="resources/subscribe", params={"uri": "a:b"})
    await say(one, id=2, method="resources/unsubscribe", params={"uri": "a:b"})
    assert (await hear(one)) == {"jsonrpc": "2.0", "id": 2, "result": {}} and len(pipe.sent) == 2
    process.add_seat()
    await other.aclose()
    assert pipe.sent[-1]["method"] == "resources/unsubscribe"


async def test_only_the_last_client_can_have_the_process_end() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    await say(one, id=1, method="mgp/lifecycle/shutdown", params={"reason": "kernel_shutdown"})
    assert (await hear(one))["result"] == {"accepted": False} and pipe.sent == []
    await one.aclose()
    await say(other, id=1, method="mgp/lifecycle/shutdown", params={"reason": "kernel_shutdown"})
    assert pipe.sent[-1]["method"] == "mgp/lifecycle/shutdown"


async def test_calls_beyond_the_room_wait_in_line_whoever_makes_them() -> None:
    pipe, process = share(room=2)
    one, other = process.add_seat(), process.add_seat()
    for id in range(3):
        await say(one, id=id, method="tools/call", params={"n": id})
    await say(other, id=3, method="tools/call", params={"n": 3})
    await say(other, id=4, method="ping")
    assert [each.get("params", {}).get("n") for each in pipe.sent] == [0, 1, None]
    # One that has not been sent is taken out of the line.
    await say(one, method="notifications/cancelled", params={"requestId": 2})
    pipe.say(id=pipe.sent[0]["id"], result={})
    assert [each.get("params", {}).get("n") for each in pipe.sent] == [0, 1, None, 3]


async def test_who_leaves_has_no_call_begun_that_was_in_line() -> None:
    pipe, process = share(room=1)
    one, other = process.add_seat(), process.add_seat()
    for id in range(3):
        await say(one, id=id, method="tools/call", params={"n": id})
    await say(other, id=3, method="tools/call", params={"n": 3})
    await one.aclose()
    assert [each["params"]["n"] for each in pipe.sent if each["method"] == "tools/call"] == [0, 3]


async def test_nobody_gets_a_process_again_that_did_not_answer() -> None:
    pipe, process = share()
    one, other = process.add_seat(), process.add_seat()
    await say(one, id=1, method="ping")
    await say(one, method="notifications/cancelled", params={"requestId": 1})
    await one.aclose()
    assert process.is_retired and not pipe.is_closed
    await other.aclose()
    assert pipe.is_closed


async def test_an_answer_after_a_late_one_forgives_it() -> None:
    pipe, process = share()
    one, _ = process.add_seat(), process.add_seat()
    await say(one, id=1, method="ping")
    await say(one, method="notifications/cancelled", params={"requestId": 1})
    await say(one, id=2, method="ping")
    pipe.say(id=pipe.sent[-1]["id"], result={})
    await one.aclose()
    assert not process.is_retired


async def test_a_client_that_reads_nothing_loses_its_seat_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_processes, "MAX_UNREAD_BYTES", 1_000)
    pipe, process = share()
    lazy, other = process.add_seat(), process.add_seat()
    for _ in range(20):
        pipe.say(method="notifications/message", params={"data": "x" * 100})
        await hear(other)
    with pytest.raises(PeerGone, match="told more than it read"):
        while True:
            await hear(lazy)


# -- the link


@asynccontextmanager
async def listening(process: SharedProcess, key: bytes = KEY) -> AsyncGenerator[tuple[str, int]]:
    async def open_seat(request: dict[str, Any]) -> ProcessSeat:
        if request.get("key") != "main":
            raise PeerGone("there is no such process")
        return process.add_seat()

    async with ProcessSeatServer(key, open_seat).listen("127.0.0.1", 0) as port:
        yield "127.0.0.1", port


async def connect(at: tuple[str, int], key: bytes = KEY, process: str = "main") -> RemoteProcessSeat:
    return await RemoteProcessSeat.connect(at, key, {"key": process}, lambda: None)


async def test_a_kernel_uses_a_process_over_the_link() -> None:
    pipe, process = share()
    async with listening(process) as at:
        seat = await connect(at)
        await say(seat, id=1, method="tools/call", params={"text": "ä" * 100_000})
        await until(lambda: bool(pipe.sent))
        pipe.say(id=pipe.sent[0]["id"], result={"ok": True})
        assert await hear(seat) == {"jsonrpc": "2.0", "id": 1, "result": {"ok": True}}
        pipe.gone(PeerGone("server exited with code 3"))
        with pytest.raises(PeerGone, match="exited with code 3"):
            await hear(seat)
        await seat.aclose()


async def test_a_kernel_that_leaves_gives_its_seat_back() -> None:
    pipe, process = share()
    async with listening(process) as at:
        await (await connect(at)).aclose()
        await until(lambda: pipe.is_closed)


async def test_what_is_refused_is_said() -> None:
    _, process = share()
    async with listening(process) as at:
        with pytest.raises(PeerGone, match="there is no such process"):
            await connect(at, process="other")


async def test_who_does_not_know_the_key_gets_no_seat(caplog: pytest.LogCaptureFixture) -> None:
    _, process = share()
    async with listening(process) as at:
        with pytest.raises(PeerGone, match="not one of this group"):
            await connect(at, key=b"w" * 32)
        # One that believes whoever answers gets no further.
        reader, writer = await asyncio.open_connection(*at)
        writer.write(shared_processes.GREETING + b"n" * 32)
        await reader.readexactly(64)
        writer.write((5).to_bytes(4, "big") + b"c" * 16 + b'm{"k"')
        assert await reader.read() == b""
        writer.close()
    assert process.seats == [] and "no kernel of this group" in caplog.text


@pytest.mark.parametrize("change", ["altered", "repeated", "too long"])
async def test_a_frame_that_was_tampered_with_ends_the_link(change: str) -> None:
    """Somebody between the kernels passes everything on, and changes one frame."""
    pipe, process = share()
    async with listening(process) as at:

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            owner_reader, owner = await asyncio.open_connection(*at)
            owner.write(await reader.readexactly(len(shared_processes.GREETING) + 32))
            writer.write(await owner_reader.readexactly(64))
            frames = 0
            while length := await reader.read(4):
                frame = await reader.readexactly(16 + int.from_bytes(length, "big"))
                frames += 1
                if frames == 1:
                    owner.write(length + frame)
                    writer.write(await owner_reader.readexactly(4 + 16 + 1))
                elif change == "altered":
                    owner.write(length + frame[:-1] + b" ")
                elif change == "repeated":
                    owner.write((length + frame) * 2)
                else:
                    owner.write(b"\xff" * 4 + frame)
                if frames > 1:
                    writer.write(await owner_reader.read())
                    break
            for each in (owner, writer):
                each.close()

        between = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        async with between:
            seat = await connect(between.sockets[0].getsockname())
            assert len(process.seats) == 1
            await say(seat, id=1, method="tools/call", params={})
            await until(lambda: not process.seats)
            assert len([each for each in pipe.sent if each.get("method") == "tools/call"]) == (change == "repeated")
            await seat.aclose()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, b"", b"\0" * 200])
async def test_strangers_are_told_nothing(data: bytes) -> None:
    _, process = share()
    async with listening(process) as at:
        reader, writer = await asyncio.open_connection(*at)
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
