from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve import Context, Limits, Server, ToolError
from defserve.core.session import Session
from defserve.errors import LimitExceeded, PeerError, PeerGone, PeerTimeout
from tests.core.stepping import Gate, SteppedEngine, Talk

STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
}


class OutOfStock(ToolError):
    def __init__(self, sku: int) -> None:
        self.sku = sku


class World:
    """A server whose tool `wait` ends when its gate opens."""

    def __init__(self, **limits: Any) -> None:
        self.gates: list[Gate] = []
        self.unwound: list[str] = []
        self.server = Server("world", limits=Limits(**limits))
        world = self

        @self.server.tool
        async def wait(stubborn: bool = False) -> str:
            gate = Gate()
            world.gates.append(gate)
            try:
                return await gate
            except asyncio.CancelledError:
                world.unwound.append("wait")
                if not stubborn:
                    raise
                return await gate

        @self.server.tool
        async def ask_roots(ctx: Context) -> str:
            try:
                return f"{len(await ctx.roots())} roots"
            except (PeerTimeout, PeerGone) as error:
                world.unwound.append(type(error).__name__)
                raise

        @self.server.tool
        async def big(size: int) -> str:
            return "x" * size

        @self.server.tool
        async def unspeakable() -> str:
            raise ToolError("no", data={"object": object()})

        @self.server.tool
        async def relay_failure() -> str:
            raise ToolError(ValueError("no such city"))  # pyright: ignore[reportArgumentType]

        @self.server.resource("bad://class")
        async def bad_class() -> str:
            raise OutOfStock(3)

        @self.server.resource("bad://cause")
        async def bad_cause() -> str:
            raise ToolError(ValueError("no such city"))  # pyright: ignore[reportArgumentType]

        @self.server.resource("bad://data")
        async def bad() -> str:
            raise ToolError("no", data={"object": object()})

    def talk(self, **options: Any) -> Talk:
        return Talk(self.server.composition, **options)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def talk(world: World) -> Talk:
    return world.talk().open()


def code(replies: list[Any]) -> tuple[Any, int]:
    (reply,) = replies
    return reply.get("id"), reply["error"]["code"]


def words(replies: list[Any]) -> tuple[Any, str]:
    (reply,) = replies
    return reply["id"], reply["result"]["content"][0]["text"]


# -- ids ---------------------------------------------------------------------------------------------------


@pytest.mark.req("MCP-2.1")
def test_an_id_in_flight_is_refused_without_touching_the_first(world: World, talk: Talk):
    assert talk.call(1, "wait") == []
    assert code(talk.call(1, "wait")) == (1, -32600)
    assert code(talk.ask(1, "ping")) == (1, -32600)
    world.gates[0].set_result("first")
    assert words(talk.step()) == (1, "first")
    assert len(world.gates) == 1


@pytest.mark.req("MCP-2.1")
def test_a_number_and_a_string_are_different_ids_and_a_finished_id_is_free_again(world: World, talk: Talk):
    assert talk.call(1, "wait") == [] and talk.call("1", "wait") == []
    world.gates[1].set_result("text")
    assert words(talk.step()) == ("1", "text")
    world.gates[0].set_result("number")
    assert words(talk.step()) == (1, "number")
    assert talk.ask(1, "ping") == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


# -- cancelling --------------------------------------------------------------------------------------------


@pytest.mark.req("MCP-4.4x")
def test_a_cancelled_call_stops_and_is_not_answered(world: World, talk: Talk):
    talk.call(1, "wait")
    assert talk.cancel(1) == []
    assert world.unwound == ["wait"]
    assert talk.session.in_flight == {} and talk.session.composition.running == 0


@pytest.mark.req("MCP-4.4x")
def test_a_call_that_swallows_its_cancellation_is_not_answered_either(world: World, talk: Talk):
    talk.call(1, "wait", stubborn=True)
    assert talk.cancel(1) == [] and talk.cancel(1) == []
    world.gates[0].set_result("late")
    assert talk.step() == [] and talk.step() == []
    assert talk.session.in_flight == {} and talk.session.composition.running == 0


@pytest.mark.req("MCP-4.4x")
def test_a_call_cancelled_before_its_first_step_is_settled(world: World, talk: Talk):
    assert talk.ask(1, "tools/call", name="wait", arguments={}) == []
    assert talk.cancel(1) == [] and talk.step() == []
    assert talk.session.in_flight == {} and talk.session.composition.running == 0


@pytest.mark.req("MCP-4.4x")
@pytest.mark.parametrize("id", [99, "1", True, None, 1.0, [], {}])
def test_cancelling_what_does_not_run_is_ignored(id: Any, world: World, talk: Talk):
    talk.call(1, "wait")
    assert talk.cancel(id) == []
    world.gates[0].set_result("done")
    assert words(talk.step()) == (1, "done")


@pytest.mark.req("MCP-4.4x")
def test_cancelling_after_the_answer_is_ignored(world: World, talk: Talk):
    talk.call(1, "wait")
    world.gates[0].set_result("done")
    assert words(talk.step()) == (1, "done")
    assert talk.cancel(1) == []


def test_a_session_that_closes_stops_its_calls_and_answers_nothing(world: World, talk: Talk):
    talk.call(1, "wait")
    talk.session.close()
    talk.session.close()
    assert talk.step() == [] and world.unwound == ["wait"]
    assert world.server.composition.running == 0 and not world.server.composition.sessions


# -- before and at the opening -----------------------------------------------------------------------------


@pytest.mark.req("MCP-4.1i", "MCP-4.4p")
def test_before_initialize_only_ping_is_answered(world: World):
    talk = world.talk()
    assert talk.ask(1, "ping") == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert code(talk.ask(2, "tools/list")) == (2, -32602)
    assert code(talk.ask(3, "tools/call", name="wait")) == (3, -32602)
    assert code(talk.ask(4, "no/such")) == (4, -32601)
    assert talk.open().ask(5, "tools/list")[0]["result"]["tools"]


@pytest.mark.req("MCP-4.1i")
def test_a_second_initialize_is_refused_and_changes_nothing(world: World):
    talk = world.talk().open("2025-03-26")
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    assert code(talk.ask(1, "initialize", **about)) == (1, -32600)
    assert talk.session.terms is not None and talk.session.terms.profile.batches


def test_a_request_pipelined_behind_initialize_finds_the_session_open(world: World):
    talk = world.talk()
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    first, second = talk.ask(1, "initialize", **about) + talk.ask(2, "tools/list")
    assert "result" in first and "result" in second


# -- notifications -----------------------------------------------------------------------------------------

NOTIFICATIONS = [
    {"method": "notifications/initialized"},
    {"method": "notifications/cancelled"},
    {"method": "notifications/cancelled", "params": {"requestId": {}}},
    {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
    {"method": "notifications/no_such"},
    {"method": "tools/list"},
    {"method": "tools/call", "params": {"name": "wait"}},
    {"method": "ping", "params": [1]},
    {"method": "notifications/initialized", "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": 1}}},
    {"id": None, "method": "notifications/initialized"},
]


@pytest.mark.req("MCP-2.3")
@pytest.mark.parametrize("message", NOTIFICATIONS, ids=json.dumps)
@pytest.mark.parametrize("opened", [False, True])
def test_a_notification_is_never_answered(message: Any, opened: bool, world: World):
    talk = world.talk().open() if opened else world.talk()
    assert talk.say(message) == [] and talk.step() == []


def test_a_null_id_is_overlooked_only_where_the_method_is_a_notification(talk: Talk):
    talk.session.ready = False
    assert talk.say({"id": None, "method": "notifications/initialized", "params": {}}) == []
    assert talk.session.ready
    (refused,) = talk.say({"id": None, "method": "tools/list"})
    assert refused["error"]["code"] == -32600 and "result" not in refused


# -- malformed ---------------------------------------------------------------------------------------------


@pytest.mark.req("MCP-2.2")
def test_after_sixteen_malformed_messages_in_a_row_there_is_silence_until_a_good_one(talk: Talk):
    for _ in range(2):
        answers = [talk.say(b"{") for _ in range(20)]
        assert [len(answer) for answer in answers] == [1] * 16 + [0] * 4
        assert answers[0][0]["error"]["code"] == -32700
        assert talk.ask("good", "ping") == [{"jsonrpc": "2.0", "id": "good", "result": {}}]


@pytest.mark.parametrize(
    "good", [{"method": "notifications/no_such"}, {"id": 9, "result": {}}, {"id": 9, "method": "no/such"}]
)
def test_any_well_formed_message_ends_the_silence(good: Any, talk: Talk):
    for _ in range(20):
        talk.say(b"{")
    assert talk.say(b"{") == []
    talk.say(good)
    assert len(talk.say(b"{")) == 1


@pytest.mark.req("MCP-2.2")
@pytest.mark.parametrize(("version", "null"), [("2024-11-05", True), ("2025-06-18", True), ("2025-11-25", False)])
def test_an_error_without_a_readable_id_says_null_up_to_2025_06_18_and_nothing_later(
    version: str, null: bool, world: World
):
    (refused,) = world.talk().open(version).say(b"{")
    assert ("id" in refused) is null and refused.get("id") is None


def test_a_frame_that_is_too_long_is_refused(talk: Talk):
    (refused,) = talk.say(None)
    assert refused["error"]["code"] == -32600 and "4194304" in refused["error"]["message"]


# -- batches -----------------------------------------------------------------------------------------------


def ping(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_batch_is_refused_outside_2025_03_26(version: str | None, world: World):
    talk = world.talk().open(version) if version else world.talk()
    (refused,) = talk.say([ping(1), ping(2)])
    assert refused["error"]["code"] == -32600 and refused.get("id") is None


def test_a_batch_is_answered_together_when_its_last_member_is_done(world: World):
    talk = world.talk().open("2025-03-26")
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {}}}
    note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
    unknown = {"jsonrpc": "2.0", "id": None, "method": "no/such"}
    assert talk.say([ping(1), call, note, 7, unknown, {"jsonrpc": "2.0", "id": 5, "result": 1}]) == []
    assert talk.step() == []
    world.gates[0].set_result("done")
    (answers,) = talk.step()
    assert {answer["id"]: "result" in answer for answer in answers if answer["id"]} == {1: True, 2: True}
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32600, -32600]


@pytest.mark.req("MCP-2.3")
def test_a_batch_of_notifications_and_answers_gets_nothing(world: World):
    talk = world.talk().open("2025-03-26")
    note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
    broken = {"jsonrpc": "2.0", "id": 5, "result": 1, "error": {}}
    assert talk.say([note, {**note, "id": None}, {"jsonrpc": "2.0", "id": 4, "result": {}}, broken]) == []


def test_a_cancelled_member_is_missing_from_the_answers_of_its_batch(world: World):
    talk = world.talk().open("2025-03-26")
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {}}}
    talk.say([ping(1), call])
    talk.step()
    (answers,) = talk.cancel(2)
    assert [answer["id"] for answer in answers] == [1]


def test_a_duplicate_id_within_a_batch_is_refused(world: World):
    talk = world.talk().open("2025-03-26")
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {}}}
    talk.say([call, call])
    talk.step()
    world.gates[0].set_result("done")
    (answers,) = talk.step()
    assert sorted("error" in answer for answer in answers) == [False, True]


@pytest.mark.req("MCP-4.1i")
def test_initialize_is_refused_inside_a_batch(world: World):
    about = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    fresh = world.talk()
    assert fresh.say([message])[0]["error"]["code"] == -32600 and fresh.session.terms is None
    ((answer,),) = world.talk().open("2025-03-26").say([message])
    assert answer["error"]["code"] == -32600


# -- limits ------------------------------------------------------------------------------------------------


def detail(replies: list[Any]) -> dict[str, Any]:
    (reply,) = replies
    assert reply["result"]["isError"]
    return reply["result"]["_meta"]["dev.defserve/error"]


def test_calls_past_the_limit_of_a_session_wait_in_order_and_a_ping_does_not():
    world = World(in_flight=2)
    talk = world.talk().open()
    for id in range(1, 6):
        assert talk.call(id, "wait") == []
    assert len(world.gates) == 2
    assert talk.ask("ping", "ping")[0]["result"] == {}
    answered: list[int] = []
    for gate in range(5):
        world.gates[gate].set_result("")
        answered += [reply["id"] for reply in talk.step() + talk.step()]
    assert answered == [1, 2, 3, 4, 5] and talk.session.queue is None


def test_calls_past_the_limit_of_the_server_wait_for_a_call_of_any_session():
    world = World(in_flight_total=2)
    first, second = world.talk().open(), world.talk().open()
    first.call(1, "wait")
    first.call(2, "wait")
    assert second.call(1, "wait") == [] and len(world.gates) == 2
    first.session.close()
    first.step()
    second.step()
    assert len(world.gates) == 3


def test_the_queue_is_bounded_in_number_and_bytes_where_nobody_stops_reading():
    for limits in ({"queued": 2}, {"queued_bytes": 150}):
        talk = World(in_flight=1, **limits).talk().open()
        for id in range(1, 4):
            assert talk.call(id, "wait") == []
        (reply,) = talk.call(4, "wait")
        assert (reply["id"], reply["error"]["code"]) == (4, -32603)
        assert reply["error"]["data"]["limit"] == "in_flight" and reply["error"]["data"]["retry_after_ms"] == 1000


def test_a_call_that_waits_is_cancelled_without_a_reply_and_never_begins():
    world = World(in_flight=1)
    talk = world.talk().open()
    for id in (1, 2, 3):
        talk.call(id, "wait")
    assert talk.cancel(2) == []
    world.gates[0].set_result("")
    assert [reply["id"] for reply in talk.step() + talk.step()] == [1]
    assert len(world.gates) == 2 and list(talk.session.in_flight) == [3]
    talk.session.close()
    talk.step()
    composition = talk.session.composition
    assert (composition.running, composition.queued, composition.queued_bytes) == (0, 0, 0)


@pytest.mark.parametrize("limit", ["sessions", "sessions_per_principal"])
def test_sessions_past_the_limit_are_refused_and_room_is_made_again(limit: str):
    world = World(**{limit: 2})
    first = world.talk()
    world.talk()
    with pytest.raises(LimitExceeded) as caught:
        world.talk()
    assert caught.value.data == {"limit": limit, "retry_after_ms": 1000}
    first.session.close()
    world.talk()


def test_the_limit_of_sessions_counts_each_principal_alone():
    world = World(sessions_per_principal=1)
    world.talk(principal="a")
    world.talk(principal="b")
    with pytest.raises(LimitExceeded):
        world.talk(principal="a")


def test_a_result_that_is_too_large_is_refused_not_cut():
    talk = World(response=1000).talk().open()
    assert words(talk.call(1, "big", size=10)) == (1, "x" * 10)
    refusal = detail(talk.call(2, "big", size=1000))
    assert (refusal["error_type"], refusal["limit"]) == ("limit_exceeded", "response")


def test_while_draining_new_calls_are_refused_and_running_ones_finish(world: World, talk: Talk):
    talk.call(1, "wait")
    world.server.composition.draining = True
    assert detail(talk.call(2, "wait"))["error_type"] == "draining"
    assert talk.ask(3, "ping")[0]["result"] == {}
    world.gates[0].set_result("done")
    assert words(talk.step()) == (1, "done")


def test_an_error_whose_own_data_has_no_json_form_is_still_an_answer(talk: Talk):
    (tool,) = talk.call(1, "unspeakable")
    assert tool["result"]["isError"] and "internal error" in tool["result"]["content"][0]["text"]
    assert talk.ask(2, "resources/read", uri="bad://data") == []
    (resource,) = talk.step()
    assert resource["error"]["code"] == -32603 and "internal error" in resource["error"]["message"]


def test_an_error_whose_class_never_called_its_parent_is_still_an_answer(talk: Talk):
    assert talk.ask(1, "resources/read", uri="bad://class") == []
    (resource,) = talk.step()
    assert resource["error"]["code"] == -32603 and "internal error" in resource["error"]["message"]


def test_an_error_may_be_made_of_another_exception(talk: Talk):
    (tool,) = talk.call(1, "relay_failure")
    assert tool["result"]["isError"] and tool["result"]["content"][0]["text"] == "no such city"
    assert talk.ask(2, "resources/read", uri="bad://cause") == []
    (resource,) = talk.step()
    assert resource["error"]["message"] == "no such city"


# -- asking the peer ---------------------------------------------------------------------------------------


@pytest.fixture
def asking(world: World) -> Talk:
    talk = world.talk().open(roots={})
    (question,) = talk.call("c", "ask_roots")
    assert (question["method"], question["id"]) == ("roots/list", 1)
    return talk


def question_id(talk: Talk) -> Any:
    """The id of the one question that was asked: they are numbered from 1."""
    return 1


def test_the_peers_answer_reaches_who_asked(asking: Talk):
    assert asking.say({"id": question_id(asking), "result": {"roots": [{"uri": "file:///a"}]}}) == []
    assert words(asking.step()) == ("c", "1 roots")


def test_the_peers_error_reaches_who_asked(asking: Talk):
    asking.say({"id": question_id(asking), "error": {"code": -1, "message": "not today"}})
    assert words(asking.step()) == ("c", "not today")


def test_a_broken_answer_fails_the_question_and_is_not_answered(asking: Talk):
    assert asking.say({"id": question_id(asking), "result": {}, "error": {}}) == []
    assert asking.step()[0]["result"]["isError"]


@pytest.mark.parametrize("reply", [{"id": 77, "result": {}}, {"id": None, "error": {"code": 1, "message": ""}}])
def test_an_answer_to_nothing_is_ignored(reply: Any, asking: Talk):
    assert asking.say(reply) == [] and asking.step() == []
    asking.say({"id": question_id(asking), "result": {"roots": []}})
    assert words(asking.step()) == ("c", "0 roots")


def test_the_text_of_an_id_does_not_answer_the_number(asking: Talk):
    assert asking.say({"id": str(question_id(asking)), "result": {"roots": []}}) == [] and asking.step() == []


@pytest.mark.req("MCP-4.4t")
def test_a_question_that_times_out_is_taken_back(world: World, asking: Talk):
    id = question_id(asking)
    (timer,) = asking.engine.timers
    assert timer.seconds == Limits().question
    timer.ring()
    taken_back, answer = asking.step()
    assert (taken_back["method"], taken_back["params"]["requestId"]) == ("notifications/cancelled", id)
    assert answer["id"] == "c" and answer["result"]["isError"] and world.unwound == ["PeerTimeout"]
    assert asking.say({"id": id, "result": {"roots": []}}) == [] and asking.step() == []


@pytest.mark.req("MCP-4.4x")
def test_cancelling_a_call_takes_its_question_back(asking: Talk):
    id = question_id(asking)
    (taken_back,) = asking.cancel("c")
    assert (taken_back["method"], taken_back["params"]["requestId"]) == ("notifications/cancelled", id)


def test_a_peer_that_leaves_fails_what_was_asked_outside_a_call(world: World):
    talk, failures = world.talk().open(), []

    async def ask() -> None:
        for _ in range(2):
            try:
                await talk.session.request("ping", {})
            except PeerError as error:
                failures.append(type(error))

    talk.engine.spawn(ask())
    assert [message["method"] for message in talk.step()] == ["ping"]
    talk.session.close()
    assert talk.step() == [] and failures == [PeerGone, PeerGone]


def test_a_session_of_its_own_is_needed_to_be_asked(world: World):
    failures: list[type] = []
    talk = world.talk()

    async def ask() -> None:
        try:
            await talk.session.request("ping", {})
        except PeerError as error:
            failures.append(type(error))

    talk.engine.spawn(ask())
    assert talk.step() == [] and [kind.__name__ for kind in failures] == ["NoBackChannel"]


# -- without a loop ----------------------------------------------------------------------------------------


def test_what_needs_a_loop_is_left_alone_until_there_is_one(world: World):
    talk = world.talk().open("2025-03-26")
    talk.engine.ready = False  # pyright: ignore
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).encode()
    assert not talk.session.feed_bytes(call)
    assert not talk.session.feed_bytes(b"[%b]" % json.dumps(ping(2)).encode())
    assert talk.heard() == [] and talk.session.in_flight == {}
    assert "result" in talk.ask(3, "tools/list")[0]


def test_a_stateless_request_and_a_session_share_a_pipe(world: World):
    talk = world.talk()
    (answer,) = talk.ask(1, "tools/list", _meta=STATELESS)
    assert answer["result"]["resultType"] == "complete" and talk.session.terms is None
    assert "resultType" not in talk.open().ask(2, "tools/list")[0]["result"]
    assert "resultType" in talk.ask(3, "tools/list", _meta=STATELESS)[0]["result"]


def test_an_idle_session_is_small(world: World):
    import sys

    session = Session(world.server.composition, SteppedEngine(), lambda _: None)  # pyright: ignore
    assert sys.getsizeof(session) + sys.getsizeof(session.in_flight) < 400
