"""MGP §4.4: who confirms a dangerous call. The table of `confirmation`, row by row, and answers that do not count."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr

from defserve import Context, Server, ShellCommand, dangerous, moderate
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from tests import asgi
from tests.protocols.mgp.callers import ALICE, LOOPBACK, STRANGER, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
MGP = ("security",)
ASKS: Json = {"elicitation": {}}
AUDITED = {"dev.defserve.unconfirmed": "trusted and audited", "dev.defserve.confirmed_by_right": "a right names it"}
NAMED = Principal("alice", frozenset({"tool:invoke:wipe"}))
QUESTION = "Run wipe?\n  disk: sda"


def made(**options: Any) -> tuple[Server, list[str], Trail]:
    trail, wiped = Trail(), list[str]()
    server = Server("disks", "1", granted=["filesystem.write"], audit=trail, **options)

    @server.tool
    @dangerous("filesystem.write")
    def wipe(disk: str) -> str:
        wiped.append(disk)
        return f"wiped {disk}"

    @server.tool
    @dangerous("filesystem.write", confirm=False)
    def trim(disk: str) -> str:
        return "trimmed"

    @server.tool
    @moderate("filesystem.write", confirm=True)
    def name(disk: str) -> str:
        return "named"

    return server, wiped, trail


async def called(peer: Raw, tool: str = "wipe", answers: bool = True, **arguments: Any) -> tuple[Json, list[str]]:
    """The reply to a call, and the questions a person answered on the way, always the same way."""
    params: Json = {"name": tool, "arguments": {"disk": "sda"} | arguments}
    action = {"action": "accept", "content": {"value": answers}}
    asked: list[str] = []
    if peer.version == STATELESS:
        reply = await peer.ask("tools/call", params)
        while reply.get("result", {}).get("resultType") == "input_required":
            ((key, question),) = reply["result"]["inputRequests"].items()
            asked.append(question["params"]["message"])
            state = reply["result"]["requestState"]
            reply = await peer.ask("tools/call", params | {"inputResponses": {key: action}, "requestState": state})
        return reply, asked
    id = await peer.begin("tools/call", params)
    while True:
        message = await next_message(peer)
        if message.get("method") == "elicitation/create":
            asked.append(message["params"]["message"])
            await peer.send({"jsonrpc": "2.0", "id": message["id"], "result": action})
        elif message.get("method") == "notifications/mgp.callback.request":
            asked.append(message["params"]["message"])
            given = {"callback_id": message["params"]["callback_id"], "response": "confirm" if answers else "cancel"}
            await peer.begin("mgp/callback/respond", given)
        elif message.get("id") == id:
            return message, asked


async def next_message(peer: Raw) -> Json:
    return json.loads(await peer.link.receive())


# peer (identity, what it can be asked, extensions) → what each policy makes of it
PEERS: dict[str, tuple[Principal, Json, tuple[str, ...]]] = {
    "local, MGP": (LOCAL_PRINCIPAL, {}, MGP),
    "local, MGP, can be asked": (LOCAL_PRINCIPAL, ASKS, MGP),
    "local, MGP without security": (LOCAL_PRINCIPAL, {}, ("audit",)),
    "local, can be asked": (LOCAL_PRINCIPAL, ASKS, ()),
    "local, mute": (LOCAL_PRINCIPAL, {}, ()),
    "authenticated, can be asked": (ALICE, ASKS, ()),
    "authenticated, mute": (ALICE, {}, ()),
    "authenticated, MGP": (ALICE, {}, MGP),
    "authenticated, the tool is named, can be asked": (NAMED, ASKS, ()),
    "authenticated, the tool is named, mute": (NAMED, {}, ()),
    "stranger, MGP": (STRANGER, {}, MGP),
    "stranger, MGP, can be asked": (STRANGER, ASKS, MGP),
    "loopback, MGP": (LOOPBACK, {}, MGP),
    "loopback, can be asked": (LOOPBACK, ASKS, ()),
    "stranger, can be asked": (STRANGER, ASKS, ()),
    "stranger, mute": (STRANGER, {}, ()),
    "loopback, mute": (LOOPBACK, {}, ()),
}
CLIENT, ASKED, REFUSED = "the client confirms", "asked", "refused"
TRUSTED, BY_RIGHT = AUDITED.values()
TABLE: dict[str, tuple[str, str]] = {
    # peer: auto, always
    "local, MGP": (CLIENT, REFUSED),
    "local, MGP, can be asked": (CLIENT, ASKED),
    "local, MGP without security": (TRUSTED, REFUSED),
    "local, can be asked": (ASKED, ASKED),
    "local, mute": (TRUSTED, REFUSED),
    "authenticated, can be asked": (ASKED, ASKED),
    "authenticated, mute": (REFUSED, REFUSED),
    "authenticated, MGP": (CLIENT, REFUSED),
    "authenticated, the tool is named, can be asked": (ASKED, ASKED),
    "authenticated, the tool is named, mute": (BY_RIGHT, REFUSED),
    "stranger, MGP": (REFUSED, REFUSED),
    "stranger, MGP, can be asked": (REFUSED, REFUSED),
    "stranger, can be asked": (REFUSED, REFUSED),
    "stranger, mute": (REFUSED, REFUSED),
    "loopback, MGP": (REFUSED, REFUSED),
    "loopback, can be asked": (REFUSED, REFUSED),
    "loopback, mute": (REFUSED, REFUSED),
}
CASES = [
    pytest.param(peer, confirm, outcome, id=f"{peer}-{confirm}")
    for peer, by_policy in TABLE.items()
    for confirm, outcome in zip(("auto", "always", "never"), (*by_policy, CLIENT), strict=True)
]


@pytest.mark.slow
@for_each_row("version", ERAS)
@for_each_row(("peer", "confirm", "outcome"), CASES)
async def test_who_confirms_is_what_the_table_says(peer: str, confirm: str, outcome: str, version: str):
    server, wiped, trail = made(confirm=confirm)
    who, capabilities, extensions = PEERS[peer]
    async with speaking(server, version, extensions, who=who, capabilities=capabilities) as client:
        reply, asked = await called(client)
        assert asked == ([QUESTION] if outcome == ASKED else [])
        assert code_of(reply) == ("confirmation_required" if outcome == REFUSED else None)
        assert wiped == ([] if outcome == REFUSED else ["sda"])
        assert [AUDITED[event] for event, _ in trail.told(*AUDITED)] == [outcome][: outcome in AUDITED.values()]
        if outcome == ASKED:
            reply, _ = await called(client, answers=False)
            assert code_of(reply) == "confirmation_required"
            assert wiped == ["sda"]


@for_each_row("version", ERAS)
@for_each_row(("tool", "asked"), [("wipe", 1), ("trim", 0), ("name", 1)])
async def test_the_mark_says_whether_a_call_is_confirmed(tool: str, asked: int, version: str):
    server, _, _ = made()
    async with speaking(server, version, (), who=LOCAL_PRINCIPAL, capabilities=ASKS) as client:
        reply, questions = await called(client, tool)
    assert (code_of(reply), len(questions)) == (None, asked)


async def test_a_callback_is_the_road_where_security_was_not_negotiated():
    server, wiped, _ = made()
    async with speaking(server, SESSION, ("callbacks",), who=LOCAL_PRINCIPAL, capabilities={}) as client:
        reply, asked = await called(client)
        assert (asked, wiped) == ([QUESTION], ["sda"])
        reply, _ = await called(client, answers=False)
    assert code_of(reply) == "confirmation_required"
    assert wiped == ["sda"]


async def test_what_a_guard_refuses_is_not_asked_about():
    server = Server("x", "1")

    @server.tool
    @dangerous("shell.execute")
    def run(command: ShellCommand) -> str:
        return "ran"

    async with raw(server, SESSION, ASKS) as peer:
        reply = await peer.ask("tools/call", {"name": "run", "arguments": {"command": "id; id"}})
        assert code_of(reply) == "validation_blocked"
        assert await peer.news() == []


async def test_what_is_not_permitted_is_not_asked_about():
    server, _, _ = made(permissions="deny_all")
    async with raw(server, SESSION, ASKS) as peer:
        reply = await peer.ask("tools/call", {"name": "wipe", "arguments": {"disk": "sda"}})
        assert code_of(reply) == "permission_denied"
        assert await peer.news() == []


# -- what a person reads ---------------------------------------------------------------------------------


class Login(BaseModel):
    user: str
    password: str
    key: SecretStr


async def test_the_question_shows_what_will_be_done_and_no_secrets():
    server = Server("x", "1")

    @server.tool(title="Sign in")
    @dangerous
    def sign_in(
        ctx: Context, command: Annotated[ShellCommand, "what"], login: Login, token: str, blob: bytes, note: str = ""
    ) -> str:
        return "done"

    arguments = {
        "command": "git status -s",
        "login": {"user": "ann", "password": "hunter2", "key": "hunter3"},
        "token": "hunter4",
        "blob": "\u00ff",
        "note": "x" * 5_000 + "\nRun nothing?",
    }
    async with raw(server, SESSION, ASKS) as peer:
        await peer.begin("tools/call", {"name": "sign_in", "arguments": arguments})
        (asked,) = [m["params"]["message"] for m in await peer.news() if m["method"] == "elicitation/create"]
    lines = asked.splitlines()
    assert lines[0] == "Run sign_in?"
    assert lines[1] == "  command: git status -s"
    assert "ann" in lines[2]
    assert len(lines) == 6
    assert "hunter" not in asked
    assert max(map(len, lines)) < 1_600
    assert lines[-1].startswith("  note: xxx") and lines[-1].endswith("xxx\\nRun nothing?")
    assert "(3513 characters are not shown)" in lines[-1]


@for_each_row(
    ("query", "shown"),
    [
        ("SELECT 1 -- token='\n; DROP TABLE users; --'", "SELECT 1 -- token='\\n; DROP TABLE users; --'"),
        ("SELECT 1 -- Bearer DROP.TABLE.users", "SELECT 1 -- Bearer DROP.TABLE.users"),
        ("SELECT 1" + " " * 5_000 + "; DROP TABLE users", "; DROP TABLE users"),
        (["SELECT 1"] * 20 + ["password: DROP TABLE users"], "password: DROP TABLE users']"),
        ({"DROP TABLE users -- Bearer 123456": 1}, "{'DROP TABLE users -- Bearer 123456': 1}"),
    ],
)
async def test_nothing_that_a_caller_writes_hides_what_it_asks_for(query: Any, shown: str):
    server = Server("x", "1")

    @server.tool
    @dangerous
    def sql(query: Any) -> str:
        return "done"

    async with raw(server, SESSION, ASKS) as peer:
        await peer.begin("tools/call", {"name": "sql", "arguments": {"query": query}})
        (asked,) = [m["params"]["message"] for m in await peer.news() if m["method"] == "elicitation/create"]
    assert asked.endswith(shown)


# -- answers that do not count ---------------------------------------------------------------------------


async def ask(peer: Raw, **more: Any) -> Json:
    return await peer.ask("tools/call", {"name": "wipe", "arguments": {"disk": "sda"}} | more)


def yes(question: Json) -> Json:
    return {key: {"action": "accept", "content": {"value": True}} for key in question["result"]["inputRequests"]}


@asynccontextmanager
async def asked_without_session(who: Principal = LOCAL_PRINCIPAL) -> AsyncGenerator[tuple[Raw, Json, list[str]]]:
    server, wiped, _ = made()
    async with speaking(server, STATELESS, (), who=who, capabilities=ASKS) as peer:
        question = await ask(peer)
        assert question["result"]["resultType"] == "input_required"
        yield peer, question, wiped


async def test_an_answer_nobody_asked_for_confirms_nothing():
    async with asked_without_session() as (peer, question, wiped):
        again = await ask(peer, inputResponses=yes(question))
        assert again["result"]["resultType"] == "input_required"
        assert wiped == []


async def test_a_state_is_spent_once():
    async with asked_without_session() as (peer, question, wiped):
        told = {"inputResponses": yes(question), "requestState": question["result"]["requestState"]}
        assert text_of((await ask(peer, **told))["result"]) == "wiped sda"
        assert (await ask(peer, **told))["error"]["code"] == -32602
        assert wiped == ["sda"]


TAMPERED: dict[str, Callable[[str], str]] = {
    "tag": lambda state: state[:-4] + "AAAA",
    "body": lambda state: state[:20] + ("A" if state[20] != "A" else "B") + state[21:],
    "made up": lambda state: "v1." + "A" * 200,
    "empty": lambda state: "",
    "headless": lambda state: state.removeprefix("v1."),
}


@for_each_row(
    "change",
    TAMPERED,
)
async def test_a_state_that_was_tampered_with_confirms_nothing(change: str):
    async with asked_without_session() as (peer, question, wiped):
        state = TAMPERED[change](question["result"]["requestState"])
        reply = await ask(peer, inputResponses=yes(question), requestState=state)
        assert reply["error"]["code"] == -32602
        assert wiped == []


async def test_a_state_confirms_the_call_it_was_made_for_and_no_other():
    async with asked_without_session() as (peer, question, wiped):
        told = {"inputResponses": yes(question), "requestState": question["result"]["requestState"]}
        other = await ask(peer, **told, arguments={"disk": "sdb"})
        assert other["error"]["code"] == -32602
        other = await ask(peer, **told, name="name")
        assert other["error"]["code"] == -32602
        assert wiped == []


async def test_a_state_confirms_for_the_caller_who_was_asked():
    server, wiped, _ = made()
    app = asgi.with_tokens(server.asgi(), "ann", "bob")
    asked, other = (asgi.Peer(app, STATELESS, ASKS) for _ in range(2))
    asked.token, other.token = "ann", "bob"
    call = {"name": "wipe", "arguments": {"disk": "sda"}}
    question = await asked.ask("tools/call", call)
    told = {"inputResponses": yes(question), "requestState": question["result"]["requestState"]}
    assert (await other.ask("tools/call", call | told))["error"]["code"] == -32602
    assert wiped == []
    assert asgi.text(await asked.ask("tools/call", call | told)) == "wiped sda"


@for_each_row(
    "answer",
    [
        {"action": "decline"},
        {"action": "cancel"},
        {"action": "accept", "content": {"value": False}},
        {"action": "accept", "content": {}},
        {"action": "accept"},
        {"action": "accept", "content": {"value": "of course not"}},
    ],
)
@for_each_row("version", ERAS)
async def test_only_a_yes_confirms(answer: Json, version: str):
    server, wiped, _ = made()
    async with speaking(server, version, (), who=LOCAL_PRINCIPAL, capabilities=ASKS) as peer:
        if version == STATELESS:
            question = await ask(peer)
            (key,) = question["result"]["inputRequests"]
            state = question["result"]["requestState"]
            reply = await ask(peer, inputResponses={key: answer}, requestState=state)
        else:
            id = await peer.begin("tools/call", {"name": "wipe", "arguments": {"disk": "sda"}})
            asked = await next_message(peer)
            await peer.send({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
            reply = await peer.reply_to(id)
    assert reply["result"]["isError"] is True
    assert wiped == []
