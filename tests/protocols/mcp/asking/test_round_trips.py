from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Context, Server
from defserve.client import Client
from defserve.client.links.stdio import ProcessLink
from defserve.protocols.mcp.asking.server_secret import ServerSecret
from defserve.serve.connection import Connection
from defserve.serve.lifespans import MemoryTransport, enter_lifespans
from defserve.stores.store import MemoryStore, StoreChange, StoreUnavailable
from tests.protocols.mcp.asking import asking_server
from tests.protocols.mcp.asking.askers import SERVER
from tests.raw import PREFIX, STATELESS, Raw, raw, text_of

pytestmark = pytest.mark.anyio

SECRET = "a secret of twenty-six bytes"
OFFER: dict[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}}
REFUSED = {"code": -32602, "message": "Invalid or expired requestState"}

Json = dict[str, Any]


def yes(**content: Any) -> Json:
    return {"action": "accept", "content": content}


@pytest.fixture
async def peer() -> AsyncIterator[Raw]:
    asking_server.EVENTS.clear()
    async with raw(asking_server.server, STATELESS, OFFER) as peer:
        yield peer


async def ask(peer: Raw, tool: str, answers: Json | None = None, state: str | None = None, **arguments: Any) -> Json:
    """The result of one round, or the error."""
    params: Json = {"name": tool, "arguments": arguments}
    params |= {"inputResponses": answers} if answers is not None else {}
    params |= {"requestState": state} if state is not None else {}
    reply = await peer.ask("tools/call", params)
    return reply.get("result") or reply["error"]


def requests(result: Json) -> Json:
    assert result["resultType"] == "input_required", result
    return result["inputRequests"]


# -- the shape of a round -------------------------------------------------------------------------------


async def test_a_question_travels_under_the_authors_key_as_a_bare_request(peer: Raw):
    result = await ask(peer, "greet")
    assert set(result) == {"resultType", "inputRequests", "requestState", "_meta"}
    assert requests(result) == {
        "user_name": {
            "method": "elicitation/create",
            "params": {
                "message": "Your name?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
        }
    }
    done = await ask(peer, "greet", {"user_name": yes(name="Ann")}, result["requestState"])
    assert (done["resultType"], text_of(done)) == ("complete", "hello Ann")


async def test_gathered_questions_travel_in_exactly_one_round(peer: Raw):
    first = await ask(peer, "gathered")
    methods = {key: request["method"] for key, request in requests(first).items()}
    assert methods == {
        "user_name": "elicitation/create",
        "greeting": "sampling/createMessage",
        "client_roots": "roots/list",
    }
    sample = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}
    answers = {"user_name": yes(name="Ann"), "greeting": sample, "client_roots": {"roots": [{"uri": "file:///x"}]}}
    assert text_of(await ask(peer, "gathered", answers, first["requestState"])) == "Ann Hi file:///x"


@pytest.mark.parametrize("tool", ["at_once", "at_once_anyio"])
async def test_questions_of_a_task_group_travel_in_one_round(peer: Raw, tool: str):
    assert len(requests(await ask(peer, tool))) == 2
    assert asking_server.EVENTS == []


async def test_identical_questions_have_keys_of_their_own_and_keep_their_answers(peer: Raw):
    first = await ask(peer, "twins")
    keys = list(requests(first))
    assert len(set(keys)) == 3
    answers = dict(zip(keys, (yes(value="a"), yes(value="b"), yes(value="c")), strict=True))
    backwards = dict(reversed(answers.items()))
    assert text_of(await ask(peer, "twins", backwards, first["requestState"])) == "a b c"


async def test_the_state_changes_with_every_round_and_carries_the_answers(peer: Raw):
    first = await ask(peer, "order")
    (what,) = requests(first)
    second = await ask(peer, "order", {what: yes(value="pears")}, first["requestState"])
    (count,) = requests(second)
    assert count != what and second["requestState"] != first["requestState"]
    assert "pears" not in second["requestState"]
    assert text_of(await ask(peer, "order", {count: yes(value=3)}, second["requestState"])) == "3 pears"


async def test_an_answer_given_too_early_is_kept_until_its_question_comes(peer: Raw):
    """Both were asked; the run with the answers stops at another question before it comes to the second."""
    server = Server("early", secret=SECRET)
    runs: list[str] = []

    @server.tool
    async def early(ctx: Context) -> str:
        runs.append("run")
        if len(runs) == 1:
            await ctx.gather(ctx.ask("A?", str, key="a"), ctx.ask("B?", str, key="b"))
        if len(runs) == 2:
            await ctx.ask("C?", str, key="c")
        return await ctx.ask("B?", str, key="b")

    async with raw(server, STATELESS, OFFER) as peer:
        first = await ask(peer, "early")
        second = await ask(peer, "early", {"a": yes(value="A"), "b": yes(value="B")}, first["requestState"])
        assert list(requests(second)) == ["c"]
        assert text_of(await ask(peer, "early", {"c": yes(value="C")}, second["requestState"])) == "B"


async def test_keys_of_the_author_never_collide():
    server = Server("keys", secret=SECRET)

    @server.tool
    async def collide(ctx: Context) -> list[str]:
        return await ctx.gather(*(ctx.ask(f"{i}?", str, key=key) for i, key in enumerate(("k", "k", "k-2"))))

    async with raw(server, STATELESS, OFFER) as peer:
        first = await ask(peer, "collide")
        asked = {key: request["params"]["message"] for key, request in requests(first).items()}
        assert sorted(asked.values()) == ["0?", "1?", "2?"]
        answers = {key: yes(value=message) for key, message in asked.items()}
        done = await ask(peer, "collide", answers, first["requestState"])
        assert done["structuredContent"] == {"result": ["0?", "1?", "2?"]}


# -- answers that do not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [
        {"user_name": 7},
        {"user_name": None},
        {"user_name": "Ann"},
        {"user_name": []},
        {"user_name": {}},
        {"user_name": {"action": "maybe"}},
        {"user_name": {"action": "accept", "content": [1]}},
        {"user_name": {"role": "assistant", "content": {"type": "text", "text": "Ann"}}},
        {"someone_else": yes(name="Ann")},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("stated", [True, False])
async def test_an_answer_of_the_wrong_shape_is_asked_again(peer: Raw, answers: Json, stated: bool):
    first = await ask(peer, "greet")
    again = await ask(peer, "greet", answers, first["requestState"] if stated else None)
    assert requests(again) == requests(first)
    assert again["requestState"] != first["requestState"]
    assert text_of(await ask(peer, "greet", {"user_name": yes(name="Ann")}, again["requestState"])) == "hello Ann"


async def test_answers_nobody_asked_for_are_ignored(peer: Raw):
    first = await ask(peer, "greet")
    answers = {"user_name": yes(name="Ann", extra=1), "other": 7, "another": yes(name="Bob")}
    assert text_of(await ask(peer, "greet", answers, first["requestState"])) == "hello Ann"


@pytest.mark.parametrize("params", [{"inputResponses": 7}, {"inputResponses": []}, {"requestState": 7}], ids=str)
async def test_members_of_the_wrong_type_are_invalid_params(peer: Raw, params: Json):
    reply = await peer.ask("tools/call", {"name": "greet", "arguments": {}, **params})
    assert reply["error"]["code"] == -32602


async def test_the_answer_to_another_question_under_the_same_key_is_asked_again(peer: Raw):
    first = await ask(peer, "wavering")
    assert requests(first)["it"]["params"]["message"] == "Question 1?"
    second = await ask(peer, "wavering", {"it": yes(value="to the first")}, first["requestState"])
    assert requests(second)["it"]["params"]["message"] == "Question 2?"


async def test_an_answer_without_a_state_is_good_for_asking(peer: Raw):
    assert text_of(await ask(peer, "greet", {"user_name": yes(name="Ann")})) == "hello Ann"


async def test_an_answer_without_a_state_is_never_good_for_confirming(peer: Raw):
    first = await ask(peer, "erase", {"sure": yes(value=True)})
    assert list(requests(first)) == ["sure"]
    assert text_of(await ask(peer, "erase", {"sure": yes(value=True)}, first["requestState"])) == "erased"


async def test_answers_in_the_handshake_era_mean_nothing():
    async with raw(asking_server.server, "2025-11-25") as peer:
        result = await peer.call("greet", inputResponses={"user_name": yes(name="Ann")}, requestState="v1.x")
        assert text_of(result) == "this needs a client that offers elicitation, and this one does not"


# -- the state ------------------------------------------------------------------------------------------


async def test_a_tampered_state_is_refused(peer: Raw):
    state = (await ask(peer, "greet"))["requestState"]
    middle = len(state) // 2
    other = "A" if state[middle] != "A" else "B"
    for bad in (state[:middle] + other + state[middle + 1 :], state[:-4], "v1.", "", "x" * 70_000):
        error = await ask(peer, "greet", {"user_name": yes(name="Ann")}, bad)
        assert {k: error[k] for k in REFUSED} == REFUSED


async def test_a_state_is_good_once(peer: Raw):
    state = (await ask(peer, "greet"))["requestState"]
    assert text_of(await ask(peer, "greet", {"user_name": yes(name="Ann")}, state)) == "hello Ann"
    error = await ask(peer, "greet", {"user_name": yes(name="Bob")}, state)
    assert {k: error[k] for k in REFUSED} == REFUSED


async def test_a_state_is_good_for_its_request_only():
    server = Server("bound", secret=SECRET)

    async def act(ctx: Context, on: str = "a") -> str:
        return f"{on} {await ctx.confirm('Sure?', key='sure')}"

    server.add_tool(act, name="one")
    server.add_tool(act, name="other")
    server.add_prompt(act, name="one")
    sure = {"sure": yes(value=True)}
    async with raw(server, STATELESS, OFFER) as peer:
        for tool, arguments in (("other", {"on": "a"}), ("one", {"on": "b"}), ("one", {})):
            state = (await ask(peer, "one", on="a"))["requestState"]
            error = await ask(peer, tool, sure, state, **arguments)
            assert {k: error[k] for k in REFUSED} == REFUSED
        state = (await ask(peer, "one", on="a"))["requestState"]
        params = {"name": "one", "arguments": {"on": "a"}, "inputResponses": sure, "requestState": state}
        assert (await peer.ask("prompts/get", params))["error"]["code"] == -32602
        state = (await ask(peer, "one", on="a"))["requestState"]
        assert text_of(await ask(peer, "one", sure, state, on="a")) == "a True"


async def test_a_state_expires():
    now = [1_000_000.0]
    server = Server("expiring")

    @server.tool
    async def greet(ctx: Context) -> str:
        return await ctx.ask("Your name?", str, key="name")

    server.mcp.lifecycle.dialects[STATELESS].secret = ServerSecret(SECRET, clock=lambda: now[0])
    async with raw(server, STATELESS, OFFER) as peer:
        state = (await ask(peer, "greet"))["requestState"]
        now[0] += 599
        assert text_of(await ask(peer, "greet", {"name": yes(value="Ann")}, state)) == "Ann"
        state = (await ask(peer, "greet"))["requestState"]
        now[0] += 601
        error = await ask(peer, "greet", {"name": yes(value="Ann")}, state)
        assert {k: error[k] for k in REFUSED} == REFUSED


@asynccontextmanager
async def connected(server: Server, principal: str) -> AsyncIterator[Raw]:
    async with enter_lifespans(server.composition) as engine:
        transport = MemoryTransport(server.limits.message)
        connection = Connection(server.composition, transport, principal=principal)
        connection.attach(engine)
        server.composition.service.add_runner(stop := lambda seconds: None)
        transport.start(asyncio.get_running_loop(), connection.feed_frames, connection.close)
        yield Raw(transport.peer, STATELESS, OFFER)
        server.composition.service.remove_runner(stop)
        connection.close()


async def test_a_state_of_another_principal_is_refused():
    server = asking_server.server
    answer = {"user_name": yes(name="Ann")}
    async with connected(server, "alice") as alice:
        stolen, own = [(await ask(alice, "greet"))["requestState"] for _ in range(2)]
    async with connected(server, "bob") as bob:
        error = await ask(bob, "greet", answer, stolen)
        assert {k: error[k] for k in REFUSED} == REFUSED
    async with connected(server, "alice") as alice:
        assert text_of(await ask(alice, "greet", answer, own)) == "hello Ann"


@asynccontextmanager
async def process(secret: str) -> AsyncIterator[Client]:
    env = {"PYTHONPATH": ":".join(filter(None, sys.path)), "DEFSERVE_SECRET": secret}
    link = await ProcessLink.spawn(sys.executable, [str(SERVER)], env=env)
    async with Client(link, version=STATELESS, capabilities=OFFER, timeout=20) as client:
        yield client


@pytest.mark.slow
async def test_two_processes_with_one_secret_take_up_each_others_answers():
    answers = {"user_name": yes(name="Ann")}
    call = {"name": "greet", "arguments": {}}
    async with process(SECRET) as first, process(SECRET) as second, process(SECRET[::-1]) as stranger:
        asked = await first.request("tools/call", call, follow=False)
        again = {**call, "inputResponses": answers, "requestState": asked["requestState"]}
        with pytest.raises(Exception, match="Invalid or expired requestState"):
            await stranger.request("tools/call", again, follow=False)
        assert text_of(await second.request("tools/call", again, follow=False)) == "hello Ann"


@pytest.mark.slow
def test_on_stdio_a_key_that_ends_with_the_process_is_no_matter():
    envelope = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": OFFER}
    params = {"name": "greet", "arguments": {}, "_meta": envelope}
    lines = [json.dumps({"jsonrpc": "2.0", "id": i, "method": "tools/call", "params": params}) for i in (1, 2)]
    # The calls are answered before the end of input is looked at only if it comes after the replies.
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    ) as server:
        assert server.stdin and server.stdout and server.stderr
        for line in lines:
            server.stdin.write(line + "\n")
            server.stdin.flush()
            assert json.loads(server.stdout.readline())["result"]["resultType"] == "input_required"
        server.stdin.close()
        warnings = server.stderr.read()
    assert "DEFSERVE_SECRET" not in warnings


# -- where nothing can be asked -------------------------------------------------------------------------


async def test_what_a_request_offers_counts_not_what_the_last_one_did(peer: Raw):
    requests(await ask(peer, "greet"))
    peer.capabilities = {"sampling": {}}
    error = await ask(peer, "greet")
    assert error["code"] == -32021
    assert error["data"]["requiredCapabilities"] == {"elicitation": {}}


@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "introduce", "arguments": {}}), ("resources/read", {"uri": "asked://fruit"})],
)
async def test_prompts_and_resources_name_the_missing_capability(peer: Raw, method: str, params: Json):
    asked = (await peer.ask(method, params))["result"]
    assert asked["resultType"] == "input_required"
    assert not {"ttlMs", "cacheScope"} & set(asked)
    peer.capabilities = {}
    error = (await peer.ask(method, params))["error"]
    assert (error["code"], error["data"]["requiredCapabilities"]) == (-32021, {"elicitation": {}})


async def test_a_request_that_may_not_be_answered_with_a_question_cannot_ask(peer: Raw):
    params = {"ref": {"type": "ref/prompt", "name": "introduce"}, "argument": {"name": "tone", "value": ""}}
    values = (await peer.ask("completion/complete", params))["result"]["completion"]["values"]
    assert values[0] == "can=False"
    assert values[1].startswith("completion/complete cannot ask the client")


async def test_answers_too_large_to_carry_are_an_error_the_model_reads():
    server = Server("large", secret=SECRET)

    @server.tool
    async def hoard(ctx: Context) -> str:
        await ctx.once("big", lambda: "x" * 100_000)
        return await ctx.ask("More?", str)

    async with raw(server, STATELESS, OFFER) as peer:
        result = await ask(peer, "hoard")
        assert result["isError"] and "do not fit in a requestState" in text_of(result)


async def test_an_effect_that_gives_no_json_is_the_authors_mistake(caplog: pytest.LogCaptureFixture):
    server = Server("odd", secret=SECRET)

    @server.tool
    async def odd(ctx: Context) -> str:
        return str(await ctx.once("lock", object))

    async with raw(server, STATELESS, OFFER) as peer:
        assert text_of(await ask(peer, "odd")).startswith("internal error")
    assert "ctx.once('lock') gave a object, which is no JSON value" in caplog.text


# -- many processes --------------------------------------------------------------------------------------


def asking(store: Any) -> Server:
    server = Server("asking", "1", secret=SECRET, store=store)

    @server.tool
    async def greet(ctx: Context) -> str:
        """Ask for a name."""
        return f"hello {await ctx.ask('Your name?', str, key='user_name')}"

    return server


async def test_servers_that_share_a_store_honour_a_state_once_between_them(tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'store.db'}"
    async with raw(asking(address), STATELESS, OFFER) as one, raw(asking(address), STATELESS, OFFER) as other:
        first = await ask(one, "greet")
        (key,) = requests(first)
        answers = {key: yes(value="Ann")}
        replies = await asyncio.gather(
            *(ask(peer, "greet", answers, first["requestState"]) for peer in (one, other, one, other))
        )
        assert sorted(reply.get("message", "answered") for reply in replies) == [REFUSED["message"]] * 3 + ["answered"]


async def test_without_the_store_that_remembers_no_state_is_honoured(tmp_path: Path):
    class Away(MemoryStore):
        async def change(self, change: StoreChange) -> bool:
            raise StoreUnavailable("The store is away")

    async with raw(asking(Away()), STATELESS, OFFER) as peer:
        first = await ask(peer, "greet")
        (key,) = requests(first)
        reply = await ask(peer, "greet", {key: yes(value="Ann")}, first["requestState"])
        assert "hello" not in json.dumps(reply)
        assert "The store is away" in json.dumps(reply)
