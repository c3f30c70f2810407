from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

import pytest

from defserve import Context, Depends, Limits, Server, Text, UsageError
from defserve.protocols.mcpl.content import FinishedTurn, IncomingMessage, Injection, Rewrite, Turn, TurnChannels
from defserve.protocols.mcpl.peers import CURRENT_CALL, IN_HOOK
from defserve.protocols.mcpl.policies import POLICY_META_KEY
from tests.protocols.mcpl.appendix_b import AFTER_INFERENCE_RESULT, BEFORE_INFERENCE_RESULT, validate
from tests.protocols.mcpl.hosts import Host, hosting
from tests.raw import ERAS, HANDSHAKE, STATELESS, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BEFORE: dict[str, Any] = {
    "inferenceId": "inf_xyz",
    "conversationId": "conv_123",
    "turnIndex": 7,
    "userMessage": None,
    "model": {"id": "claude-opus", "vendor": "anthropic", "contextWindow": 200000, "capabilities": ["vision"]},
}
AFTER: dict[str, Any] = {
    **BEFORE,
    "userMessage": "What's the API key?",
    "assistantMessage": "The API key is sk-123",
    "usage": {"inputTokens": 50, "outputTokens": 20},
}


def make(limits: Limits | None = None) -> Server:
    return Server("hooked", "1", limits=limits)


async def before(host: Host, **changes: Any) -> Any:
    reply = await host.ask("context/beforeInference", {**BEFORE, **changes})
    result = reply["result"]
    validate(result, BEFORE_INFERENCE_RESULT)
    return {key: value for key, value in result.items() if key not in ("_meta", "resultType")}


async def after(host: Host, **changes: Any) -> Any:
    reply = await host.ask("context/afterInference", {**AFTER, **changes})
    result = reply["result"]
    validate(result, AFTER_INFERENCE_RESULT)
    return {key: value for key, value in result.items() if key not in ("_meta", "resultType")}


def texts(result: Any) -> list[str]:
    return [block["text"] for injection in result["contextInjections"] for block in injection["content"]]


# -- before ----------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-10.1", "MCPL-10.2", "MCPL-14.4")
@for_each_row("version", ERAS)
async def test_a_hook_sees_the_turn(version: str):
    server, seen = make(), list[Turn]()

    @server.feature_set("memory.retrieval", "Retrieve").before_inference
    async def recall(turn: Turn) -> str | None:
        seen.append(turn)

    channels = {
        "incoming": {"channelId": "discord:#general", "messageId": "m1", "threadId": "t1"},
        "defaultOutgoing": {"channelId": "discord:#general"},
        "candidates": ["ui", "discord:#general"],
    }
    async with hosting(server, version) as host:
        assert await before(host, channels=channels, extra=1) == {
            "featureSet": "memory.retrieval",
            "contextInjections": [],
        }
    (turn,) = seen
    assert (turn.inference_id, turn.conversation_id, turn.turn_index) == ("inf_xyz", "conv_123", 7)
    assert turn.user_message is None and turn.raw["extra"] == 1
    assert turn.model is not None and (turn.model.id, turn.model.context_window) == ("claude-opus", 200000)
    assert turn.channels == TurnChannels(
        IncomingMessage("discord:#general", "m1", "t1"), "discord:#general", ("ui", "discord:#general")
    )


@pytest.mark.req("MCPL-10.2", "MCPL-10.4", "MCPL-6.5b", "MCPL-B")
async def test_whatever_a_hook_gives_is_an_injection():
    server = make()
    memory = server.feature_set("memory.retrieval", "Retrieve")

    @memory.before_inference
    def in_a_thread(turn: Turn) -> str:
        return "plain"

    @memory.before_inference
    async def several(turn: Turn) -> list[Any]:
        return [Injection([Text("a"), "b"], "before_user", "notes", {"ids": [1]}), "c", Injection("d", "afterUser"), ""]

    async with hosting(server) as host:
        result = await before(host)
    assert result["featureSet"] == "memory.retrieval"
    assert result["contextInjections"] == [
        {"namespace": "memory", "position": "system", "content": [{"type": "text", "text": "plain"}]},
        {
            "namespace": "notes",
            "position": "beforeUser",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "metadata": {"ids": [1]},
        },
        {"namespace": "memory", "position": "system", "content": [{"type": "text", "text": "c"}]},
        {"namespace": "memory", "position": "afterUser", "content": [{"type": "text", "text": "d"}]},
    ]


@pytest.mark.req("MCPL-10.m")
async def test_several_sets_share_one_result():
    server = make()

    @server.feature_set("quiet", "Says nothing").before_inference
    async def nothing(turn: Turn) -> None: ...

    @server.feature_set("first.a", "A").before_inference
    async def a(turn: Turn) -> Injection:
        return Injection("from a", metadata={"n": 1})

    @server.feature_set("second.b", "B").before_inference
    async def b(turn: Turn) -> str:
        return "from b"

    async with hosting(server) as host:
        result = await before(host)
        assert (result["featureSet"], texts(result)) == ("first.a", ["from a", "from b"])
        assert [injection["metadata"] for injection in result["contextInjections"]] == [
            {"n": 1, "featureSet": "first.a"},
            {"featureSet": "second.b"},
        ]
        await host.update(disabled=["first.*"])
        result = await before(host)
        assert (result["featureSet"], texts(result)) == ("second.b", ["from b"])
        assert "metadata" not in result["contextInjections"][0]
        await host.update(disabled=["*"])
        assert await before(host) == {"contextInjections": []}


async def test_without_sessions_the_policy_comes_with_the_request():
    server = make()

    @server.feature_set("memory", "M").before_inference
    async def recall(turn: Turn) -> str:
        return "remembered"

    async with hosting(server, STATELESS) as host:
        assert texts(await before(host)) == ["remembered"]
        assert texts(await before(host, _meta={POLICY_META_KEY: {"disabled": ["memory"]}})) == []
        assert texts(await before(host)) == ["remembered"]


@pytest.mark.req("MCPL-10.6")
@pytest.mark.parametrize("version", ERAS)
async def test_a_hook_that_fails_or_dawdles_does_not_spoil_the_others(version: str, caplog: pytest.LogCaptureFixture):
    server = make(Limits(hook=0.05))
    memory = server.feature_set("memory", "M")
    unwound, over = list[str](), asyncio.Event()

    @memory.before_inference(timeout=20)
    async def crashes(turn: Turn) -> str:
        raise RuntimeError("password 1234")

    @memory.before_inference
    async def dawdles(turn: Turn) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            unwound.append("dawdles")
        return ""

    @memory.before_inference
    async def will_not_stop(turn: Turn) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await over.wait()
        return "too late"

    @memory.before_inference(timeout=20)
    async def gives_nonsense(turn: Turn) -> Any:
        return 42

    @memory.before_inference(timeout=20)
    async def works(turn: Turn) -> str:
        return "fine"

    async with hosting(server, version) as host:
        result = await before(host)
        assert texts(result) == ["fine"] and "1234" not in str(result)
        assert texts(await before(host)) == ["fine"]
        over.set()
    assert unwound == ["dawdles", "dawdles"]
    assert "context/beforeInference crashes" in caplog.text and "dawdles timed out after 0.05 s" in caplog.text


async def test_a_set_that_is_switched_off_while_it_thinks_says_nothing():
    server, asked, go = make(), asyncio.Event(), asyncio.Event()

    @server.feature_set("memory", "M").before_inference
    async def recall(turn: Turn) -> str:
        asked.set()
        await go.wait()
        return "too late"

    async with hosting(server) as host:
        pending = asyncio.create_task(before(host))
        await asked.wait()
        await host.update(disabled=["memory"])
        go.set()
        assert await pending == {"contextInjections": []}


async def test_what_is_too_long_is_cut_and_says_so():
    server = make(Limits(injection=10))

    @server.feature_set("memory", "M").before_inference
    async def recall(turn: Turn) -> list[str | Injection]:
        return ["ä" * 6, "0123456789", Injection(["12345", "123456", "7"])]

    async with hosting(server) as host:
        found = texts(await before(host))
    cut = "\n[cut: longer than 10 bytes]"
    assert found == ["ä" * 5 + cut, "0123456789", "12345", "12345" + cut, cut]


@pytest.mark.req("MCPL-10.7")
@for_each_row("is_sync", [True, False])
async def test_a_hook_knows_that_it_is_one_and_whom_it_speaks_to(is_sync: bool):
    server, seen = make(), list[Any]()

    def look() -> None:
        call, run = CURRENT_CALL.get(), IN_HOOK.get()
        assert call is not None and run is not None
        seen.append((call.session, run.running))

    async def recall(turn: Turn) -> None:
        look()

    def recall_in_a_thread(turn: Turn) -> None:
        look()

    server.feature_set("memory", "M").before_inference(recall_in_a_thread if is_sync else recall)
    async with hosting(server) as host:
        await before(host)
        assert seen == [(next(iter(server.composition.sessions)), True)]
    assert IN_HOOK.get() is None and CURRENT_CALL.get() is None


@pytest.mark.req("MCPL-10.7")
async def test_a_hook_may_push_but_not_infer():
    server, raised = make(), list[UsageError]()
    memory = server.feature_set("memory", "M", uses=["pushEvents", "inferenceRequest"])
    begun = list[asyncio.Task[Any]]()

    async def consolidate() -> str:
        await turns()
        return str(await memory.infer("Summarize"))

    @memory.before_inference
    async def recall(turn: Turn) -> str:
        with pytest.raises(UsageError, match="inside a context hook") as caught:
            await memory.infer("Summarize")
        raised.append(caught.value)
        begun.append(asyncio.create_task(consolidate()))
        receipt = await memory.push("recalled")
        return f"accepted: {receipt.accepted}"

    async with hosting(server, answers={"inference/request": {"content": "short"}}) as host, hosting(server) as other:
        assert texts(await before(host)) == ["accepted: True"]
        assert len(host.list_requested_uris("push/event")) == 1 and other.asked == []
        assert await begun[0] == "short"
        assert len(raised) == 1 and len(host.list_requested_uris("inference/request")) == 1


async def test_hooks_are_injected_like_tools():
    def store(turn: Turn) -> str:
        return f"store of {turn.conversation_id}"

    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(server: Server):
        yield "alive"

    server = Server("hooked", "1", lifespan=lifespan)

    @server.feature_set("memory", "M").before_inference
    async def recall(ctx: Context, found: Annotated[str, Depends(store)], turn: Turn) -> str:
        return f"{found}, {ctx.lifespan}, {turn.turn_index}"

    async with hosting(server) as host:
        assert texts(await before(host)) == ["store of conv_123, alive, 7"]


def stream(turn: Turn) -> Any:
    yield "a"


def wants_more(turn: Turn, place: str) -> str:
    return place


def wants_the_end(turn: FinishedTurn) -> str:
    return ""


@for_each_row(("function", "words"), [(stream, "yields nothing"), (wants_more, "'place'"), (wants_the_end, "'turn'")])
def test_what_cannot_be_a_hook_is_refused(function: Any, words: str):
    with pytest.raises(UsageError, match=words):
        make().feature_set("memory", "M").before_inference(function)


def test_only_blocking_hooks_fail_open():
    with pytest.raises(UsageError, match="blocking"):
        make().feature_set("memory", "M").after_inference(fail_open=True)


@for_each_row("position", ["top", "", "BeforeUser"])
def test_there_are_three_positions(position: Any):
    with pytest.raises(UsageError, match="before_user"):
        Injection("x", position)


@pytest.mark.req("MCPL-8.0")
@for_each_row(
    ("changes", "words"),
    [
        ({"inferenceId": 1}, "inferenceId"),
        ({"turnIndex": "7"}, "turnIndex"),
        ({"userMessage": ["hi"]}, "userMessage"),
        ({"model": "opus"}, "model"),
    ],
)
async def test_a_broken_turn_is_refused(changes: dict[str, Any], words: str):
    server = make()
    server.feature_set("memory", "M").before_inference(idle)
    async with hosting(server) as host:
        error = (await host.ask("context/beforeInference", {**BEFORE, **changes}))["error"]
    assert error["code"] == -32602 and words in error["message"]


async def idle(turn: Turn) -> None:
    """A hook that does nothing."""


# -- after -----------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-10.5b", "MCPL-6.5b")
@for_each_row("version", ERAS)
async def test_blocking_hooks_are_chained(version: str):
    server = make()
    redaction = server.feature_set("compliance.redaction", "R")

    @redaction.after_inference(blocking=True)
    def redact(turn: FinishedTurn) -> Rewrite:
        assert turn.usage is not None and (turn.usage.input_tokens, turn.usage.output_tokens) == (50, 20)
        return Rewrite(turn.assistant_message.replace("sk-123", "***"), {"redactions": ["key"], "by": "redact"})

    @server.feature_set("style", "S").after_inference(blocking=True)
    async def shout(turn: FinishedTurn) -> str:
        return turn.assistant_message.upper()

    @redaction.after_inference(blocking=True)
    async def sign(turn: FinishedTurn) -> Rewrite:
        return Rewrite(turn.assistant_message + "!", {"redactions": ["none"], "by": "sign"})

    async with hosting(server, version) as host:
        assert await after(host) == {
            "featureSet": "compliance.redaction",
            "modifiedResponse": "THE API KEY IS ***!",
            "metadata": {
                "redactions": ["key", "none"],
                "by": "sign",
                "featureSets": ["compliance.redaction", "style"],
            },
        }


@pytest.mark.req("MCPL-10.5b")
async def test_what_was_not_changed_is_not_sent():
    server = make()

    @server.feature_set("compliance", "C").after_inference(blocking=True)
    def redact(turn: FinishedTurn) -> str | None:
        return turn.assistant_message if turn.turn_index else None

    async with hosting(server) as host:
        assert await after(host) == await after(host, turnIndex=0) == {"featureSet": "compliance"}
        await host.update(disabled=["compliance"])
        assert await after(host) == {}


@pytest.mark.req("MCPL-10.5n", "MCPL-4.1")
@for_each_row("version", ERAS)
async def test_a_turn_is_answered_exactly_when_it_has_an_id(version: str):
    server, seen = make(), list[str]()

    @server.feature_set("memory", "M").after_inference
    async def learn(turn: FinishedTurn) -> str:
        seen.append(turn.assistant_message)
        return "ignored"

    @server.feature_set("compliance", "C").after_inference(blocking=True)
    async def redact(turn: FinishedTurn) -> str:
        return turn.assistant_message.replace("sk-123", "***")

    async with hosting(server, version) as host:
        assert await after(host) == {"featureSet": "compliance", "modifiedResponse": "The API key is ***"}
        await turns()
        await host.tell("context/afterInference", host.with_meta(AFTER))
        await turns()
        assert seen == ["The API key is ***"] * 2
        assert (host.asked, host.heard) == ([], [])
        await host.tell("context/afterInference", host.with_meta({"assistantMessage": "no turn"}))
        assert len(seen) == 2


@pytest.mark.req("MCPL-13.3")
@pytest.mark.parametrize("version", ERAS)
async def test_a_blocking_hook_that_fails_leaves_the_decision_to_the_host(
    version: str, caplog: pytest.LogCaptureFixture
):
    server, seen = make(Limits(blocking_hook=0.2)), list[str]()

    @server.feature_set("compliance", "C").after_inference(blocking=True)
    async def redact(turn: FinishedTurn) -> str:
        if turn.turn_index:
            await asyncio.sleep(60)
        raise RuntimeError("password 1234")

    @server.feature_set("memory", "M").after_inference
    async def learn(turn: FinishedTurn) -> None:
        seen.append(turn.assistant_message)

    async with hosting(server, version) as host:
        slow = (await host.ask("context/afterInference", AFTER))["error"]
        broken = (await host.ask("context/afterInference", {**AFTER, "turnIndex": 0}))["error"]
        await host.tell("context/afterInference", host.with_meta({**AFTER, "turnIndex": 0}))
        await turns()
    assert slow["code"] == broken["code"] == -32603
    assert slow["message"] == "timed out after 0.2 s" and broken["message"].startswith("internal error (id ")
    assert slow["data"]["error_type"] == "hook_failed" and slow["data"]["featureSet"] == "compliance"
    assert "1234" not in str(broken) and seen == []


async def test_one_that_fails_open_is_left_out():
    server = make()

    @server.feature_set("style", "S").after_inference(blocking=True, fail_open=True)
    async def polish(turn: FinishedTurn) -> str:
        raise RuntimeError("no polish left")

    @server.feature_set("compliance", "C").after_inference(blocking=True)
    async def redact(turn: FinishedTurn) -> str:
        return "redacted"

    async with hosting(server) as host:
        assert await after(host) == {"featureSet": "compliance", "modifiedResponse": "redacted"}


@for_each_row("given", [Rewrite(None), Rewrite(5), Rewrite("x", [1]), Rewrite("x", {"a": object()}), 5])
async def test_a_rewrite_that_cannot_be_sent_fails_its_hook_and_no_other(given: Any):
    server, fails_open = make(), [False]

    @server.feature_set("style", "S").after_inference(blocking=True, fail_open=True)
    async def polish(turn: FinishedTurn) -> Any:
        return given if fails_open[0] else None

    @server.feature_set("compliance", "C").after_inference(blocking=True)
    async def redact(turn: FinishedTurn) -> Any:
        return "redacted" if fails_open[0] else given

    async with hosting(server) as host:
        error = (await host.ask("context/afterInference", AFTER))["error"]
        assert (error["data"]["error_type"], error["data"]["featureSet"]) == ("hook_failed", "compliance")
        fails_open[0] = True
        assert await after(host) == {"featureSet": "compliance", "modifiedResponse": "redacted"}


async def test_an_injection_that_cannot_be_sent_is_left_out_and_no_other():
    server = make()

    @server.feature_set("memory", "M").before_inference
    async def recall(turn: Turn) -> Injection:
        return Injection("x", metadata={"a": object()})

    @server.feature_set("clock", "C").before_inference
    async def tell_time(turn: Turn) -> str:
        return "noon"

    async with hosting(server) as host:
        assert texts(await before(host)) == ["noon"]


async def test_turns_that_come_faster_than_hooks_look_are_skipped(caplog: pytest.LogCaptureFixture):
    server, go, seen = make(Limits(in_flight=2)), asyncio.Event(), list[int]()

    @server.feature_set("memory", "M").after_inference
    async def learn(turn: FinishedTurn) -> None:
        await go.wait()
        seen.append(turn.turn_index)

    async with hosting(server) as host:
        for index in range(4):
            await host.tell("context/afterInference", {**AFTER, "turnIndex": index})
        go.set()
        await turns()
        await host.tell("context/afterInference", {**AFTER, "turnIndex": 4})
    assert seen == [0, 1, 4] and "skipped" in caplog.text


async def test_what_a_hook_began_may_go_on_when_it_has_answered():
    server, tasks = make(), list[asyncio.Task[bool]]()

    async def later() -> bool:
        await turns()
        run = IN_HOOK.get()
        return run is not None and run.running

    @server.feature_set("memory", "M").after_inference
    async def learn(turn: FinishedTurn) -> None:
        tasks.append(asyncio.create_task(later()))

    async with hosting(server) as host:
        await host.tell("context/afterInference", AFTER)
        assert await tasks[0] is False


# -- advertised ------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-5.1")
@for_each_row(
    ("verbs", "advertised"),
    [
        ([], None),
        (["before"], {"beforeInference": True}),
        (["after"], {"afterInference": {"blocking": False}}),
        (["before", "after", "blocking"], {"beforeInference": True, "afterInference": {"blocking": True}}),
    ],
)
async def test_hooks_are_advertised_as_declared(verbs: list[str], advertised: Any):
    server = make()
    memory = server.feature_set("memory", "M")
    for verb in verbs:
        if verb == "before":
            memory.before_inference(idle)
        else:
            memory.after_inference(blocking=verb == "blocking")(idle)
    async with hosting(server) as host:
        assert host.advertised.get("contextHooks") == advertised
        if not verbs:
            for method in ("context/beforeInference", "context/afterInference"):
                assert (await host.ask(method, AFTER))["error"]["code"] == -32601


@pytest.mark.req("MCPL-3.2")
@for_each_row("version", [*HANDSHAKE, STATELESS])
async def test_a_plain_host_has_no_hooks(version: str):
    server = make()
    server.feature_set("memory", "M").before_inference(idle)
    async with hosting(server, version, mcpl=None) as host:
        assert (await host.ask("context/beforeInference", BEFORE))["error"]["code"] == -32601


async def test_a_hook_added_while_serving_is_run():
    server = make()
    server.feature_set("memory", "M")
    async with hosting(server) as host:
        server.feature_set("late", "L").before_inference(says_hello)
        assert texts(await before(host)) == ["hello"]
        server.remove_feature_set("late")
        assert texts(await before(host)) == []


async def says_hello(turn: Turn) -> str:
    return "hello"


async def test_a_request_that_is_cancelled_cancels_its_hooks():
    server, asked, ended = make(), asyncio.Event(), asyncio.Event()

    @server.feature_set("memory", "M").before_inference
    async def recall(turn: Turn) -> None:
        asked.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with hosting(server) as host:
        pending = asyncio.create_task(host.ask("context/beforeInference", BEFORE))
        await asked.wait()
        await host.tell("notifications/cancelled", {"requestId": 2})
        await until(ended.is_set)
        assert not pending.done()
        pending.cancel()


async def test_what_a_host_lets_happen_by_saying_nothing_is_logged_once(caplog: pytest.LogCaptureFixture):
    server = make()
    server.feature_set("memory", "M").before_inference(says_hello)
    with caplog.at_level(logging.INFO, "defserve"):
        async with hosting(server) as host:
            await before(host)
            await before(host)
    assert caplog.text.count("no featureSets/update") == 1
