"""Who runs a dangerous tool over HTTP: every caller × every policy × clients that can be asked and that cannot.

`docs/permissions.md` shows the same table.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import mcp
import mcp_types as types
import pytest
from mcp.client.streamable_http import streamable_http_client

from defserve import Remote, Server, ToolError, dangerous
from defserve.auth import ApiKeys, Auth, StaticTokens
from defserve.client import Answers
from defserve.code_mode import CodeMode
from defserve.protocols.mgp.access import AccessPolicy, Entry
from defserve.server.web import announce_dangerous_tools
from tests.at_address import at_address
from tests.effort import slow
from tests.protocols.mgp.callers import NOON, Trail, offer
from tests.raw import HANDSHAKE, STATELESS, raw
from tests.serve.processes import ServerProcess

pytestmark = pytest.mark.anyio

REFUSED, ASKED, ASSUMED, UNASKED = "refused", "asked", "believed to have asked", "nobody is asked"
AUDITED = {"dev.defserve.confirmed_by_right", "dev.defserve.unconfirmed", "dev.defserve.confirmed_in_front"}
LOCAL_KEY = "L" * 43


@dataclass(frozen=True)
class CallerKind:
    """What a caller shows, what the server has in writing, and what comes of a call whose client cannot be asked."""

    mute: str
    """With `confirm="auto"`. What starts with another word than those above is the right that names the tool."""
    scopes: Sequence[str] = ()
    shows: str = "token"
    entry: Entry | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def tool_entry(agent: str = "ann", **more: Any) -> Entry:
    return Entry("tool_grant", agent, "wipe", **more)


CALLERS = {
    "no token": CallerKind(REFUSED, shows="nothing"),
    "no token, an access entry for its address": CallerKind(
        REFUSED, shows="nothing", entry=tool_entry("anonymous:127.0.0.1")
    ),
    "the local token": CallerKind(ASSUMED, shows="local token"),
    "a key for the tool": CallerKind("tool:invoke:wipe", ["ToolInvoke(wipe)"], "key"),
    "a key for the tool and for all": CallerKind("tool:invoke:wipe", ["ToolInvoke(*)", "ToolInvoke(wipe)"], "key"),
    "a key for all tools": CallerKind(REFUSED, ["ToolInvoke(*)", "AdminWrite"], "key"),
    "a token": CallerKind(REFUSED),
    "a token with the scope of the tool": CallerKind("tool:invoke:wipe", ["tool:invoke:wipe"]),
    "a token with the scope of another tool": CallerKind(REFUSED, ["tool:invoke:wipe_too", "tool:read:wipe", "wipe"]),
    "a token with wildcards": CallerKind(REFUSED, ["tool:invoke:*", "tool:invoke:w*", "*"]),
    "an access entry for the tool": CallerKind("access entry of ann", entry=tool_entry()),
    "an access entry that has expired": CallerKind(REFUSED, entry=tool_entry(expires_at=NOON - timedelta(days=999))),
    "an access entry for the server": CallerKind(REFUSED, entry=Entry("server_grant", "ann")),
    "an access entry of somebody else": CallerKind(REFUSED, entry=tool_entry("bob")),
    "a permission granted by name": CallerKind(
        "granted: filesystem.write", options={"permissions": "config_only", "granted": ["filesystem.write"]}
    ),
    "a permission granted with all others": CallerKind(
        REFUSED, options={"permissions": "operator", "granted": ["filesystem.write"]}
    ),
}
POLICIES = ("auto", "always", "never")


def expected(caller: CallerKind, confirm: str, *, can_ask: bool) -> str:
    if confirm == "never":
        return UNASKED
    if caller.shows == "nothing":
        return REFUSED
    if can_ask:
        return ASKED
    return caller.mute if confirm == "auto" else REFUSED


class Disks:
    """A server with a dangerous tool, and what became of the calls."""

    def __init__(self, caller: CallerKind, folder: Path, **options: Any) -> None:
        self.caller, self.trail, self.wiped, self.asked = caller, Trail(), list[str](), list[str]()
        self.keys = ApiKeys(folder / "keys.json", pepper="0123456789abcdef")
        if caller.shows == "key":
            options["auth"] = self.keys
        elif caller.shows == "token":
            options["auth"] = StaticTokens({"good": {"principal": "ann", "scopes": caller.scopes}})
        access = AccessPolicy("opt-out", [caller.entry]) if caller.entry is not None else None
        granted = {"granted": ["filesystem.write"], **caller.options}
        self.server = Server("disks", "1", access=access, audit=self.trail, **granted, **options)

        @self.server.tool
        @dangerous("filesystem.write")
        def wipe(disk: str) -> str:
            self.wiped.append(disk)
            return "wiped"

    async def make_token(self) -> str | None:
        if self.caller.shows == "key":
            return (await self.keys.create("ann", permissions=self.caller.scopes)).token
        return {"token": "good", "local token": LOCAL_KEY}.get(self.caller.shows)

    def answer(self, question: str) -> bool:
        self.asked.append(question)
        return True

    def tell_outcome(self) -> str:
        """What became of the calls since the last time."""
        events = [(event["event_type"], event["details"]) for event in self.trail.events]
        audited = [details.get("right", ASSUMED) for kind, details in events if kind in AUDITED]
        ran, asked = self.wiped == ["sda"], self.asked == ["Run wipe?\n  disk: sda"]
        self.wiped.clear(), self.asked.clear(), self.trail.events.clear()
        assert len(audited) + asked <= ran
        return (audited[0] if audited else ASKED if asked else UNASKED) if ran else REFUSED


Call = Callable[[Disks, str, str | None, str, bool], Awaitable[str]]
"""Calls the tool, and returns the text of the result."""


async def call_with_ours(disks: Disks, url: str, token: str | None, version: str, can_ask: bool) -> str:
    answers = Answers(ask=lambda message, schema: disks.answer(message)) if can_ask else None
    async with Remote(url, token=token).connect(version, answers=answers) as client:
        return (await client.call_raw("wipe", {"disk": "sda"}))["content"][0]["text"]


async def call_with_official(disks: Disks, url: str, token: str | None, version: str, can_ask: bool) -> str:
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": disks.answer(params.message)})

    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, verify=False) as http:
        way = streamable_http_client(url, http_client=http)
        mode: Any = version if version == STATELESS else "legacy"
        asks: Any = {"elicitation_callback": elicit} if can_ask else {}
        async with mcp.Client(way, mode=mode, read_timeout_seconds=20, **asks) as client:
            (block,) = (await client.call_tool("wipe", {"disk": "sda"})).content
            assert isinstance(block, types.TextContent)
            return block.text


# The official client takes its time, so by default it comes with one right, without one, and as nobody.
OFFICIAL_SAMPLE = {"no token", "a key for all tools", "a token with the scope of the tool"}
ROWS = [pytest.param(name, call_with_ours, id=f"{name}, ours") for name in CALLERS]
for name in CALLERS:
    row = pytest.param(name, call_with_official, id=f"{name}, official")
    ROWS.append(row if name in OFFICIAL_SAMPLE else slow(row))


@pytest.mark.parametrize(("name", "call"), ROWS)
async def test_who_runs_a_dangerous_tool_is_what_the_table_says(name: str, call: Call, tmp_path: Path):
    caller = CALLERS[name]
    table, found = dict[tuple[str, str, bool], str](), dict[tuple[str, str, bool], str]()
    for confirm in POLICIES:
        disks = Disks(caller, tmp_path, confirm=confirm)
        token = await disks.make_token()
        async with at_address(disks.server, key=LOCAL_KEY if caller.shows == "local token" else None) as url:
            for version in (HANDSHAKE[-1], STATELESS):
                for can_ask in (False, True):
                    row = confirm, version, can_ask
                    table[row] = expected(caller, confirm, can_ask=can_ask)
                    text = await call(disks, url, token, version, can_ask)
                    found[row] = disks.tell_outcome()
                    assert ("has to be confirmed" in text) is (found[row] == REFUSED), (row, text)
    assert found == table


# -- what a refused caller reads, and what only the author reads -------------------------------------------


async def test_a_refused_caller_reads_which_ways_are_left(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "defserve")
    disks = Disks(CALLERS["a token"], tmp_path)
    async with at_address(disks.server) as url:
        text = await call_with_ours(disks, url, "good", STATELESS, False)
    assert text == (
        "wipe has to be confirmed, and this client cannot be asked: use a client that offers elicitation or MGP "
        "callbacks, or a key, token or access entry that names the tool: "
        "defserve keys create NAME --allow 'ToolInvoke(wipe)', or the scope tool:invoke:wipe"
    )
    (logged,) = [record.getMessage() for record in caplog.records if "wipe" in record.getMessage()]
    assert "refused to ann" in logged and 'Server(confirm="never")' in logged


async def test_where_a_person_must_be_asked_a_right_is_not_offered(tmp_path: Path):
    disks = Disks(CALLERS["a key for the tool"], tmp_path, confirm="always")
    token = await disks.make_token()
    async with at_address(disks.server) as url:
        text = await call_with_ours(disks, url, token, STATELESS, False)
    assert text.endswith("cannot be asked: use a client that offers elicitation or MGP callbacks")


# -- the same rule, whatever the way to the tool -----------------------------------------------------------


async def run_through(disks: Disks, name: str, arguments: Mapping[str, Any], token: str | None, **client: Any) -> str:
    async with at_address(disks.server) as url, Remote(url, token=token).connect(STATELESS, **client) as connected:
        await connected.call_raw(name, arguments)
    return disks.tell_outcome()


@pytest.mark.usefixtures("borrowed_workers")
@pytest.mark.parametrize("name", ["a token", "a token with the scope of the tool", "a token with wildcards"])
async def test_a_call_from_code_that_a_model_wrote_needs_the_same_right(name: str, tmp_path: Path):
    disks = Disks(CALLERS[name], tmp_path, code_mode=CodeMode())
    code = {"code": "await wipe(disk='sda')"}
    assert await run_through(disks, "run_code", code, "good") == CALLERS[name].mute


@pytest.mark.parametrize("scope", ["", "tool:invoke:wipe", "tool:invoke:office_wipe"])
async def test_a_mounted_tool_is_named_as_it_is_listed(scope: str, tmp_path: Path):
    disks, office = Disks(CallerKind(REFUSED, [scope] if scope else []), tmp_path), Server("office", "1")

    @office.tool
    @dangerous("filesystem.write")
    def wipe(disk: str) -> None:
        disks.wiped.append(disk)

    disks.server.mount(office, prefix="office")
    outcome = await run_through(disks, "office_wipe", {"disk": "sda"}, "good")
    assert outcome == (scope if scope == "tool:invoke:office_wipe" else REFUSED)


@pytest.mark.parametrize("scope", ["", "tool:invoke:shred"])
async def test_a_task_needs_the_same_right(scope: str, tmp_path: Path):
    disks = Disks(CallerKind(REFUSED, [scope] if scope else []), tmp_path)

    @disks.server.tool(task="required")
    @dangerous("filesystem.write")
    async def shred(disk: str) -> str:
        disks.wiped.append(disk)
        return "shredded"

    async with at_address(disks.server) as url, Remote(url, token="good").connect(STATELESS) as client:
        started = await client.start("shred", disk="sda")
        with nullcontext() if scope else pytest.raises(ToolError, match="has to be confirmed"):
            await started.result()
    assert disks.tell_outcome() == (scope or REFUSED)


async def test_a_client_that_speaks_mgp_security_confirms_by_itself(tmp_path: Path):
    disks = Disks(CALLERS["a token"], tmp_path)
    capabilities = offer(STATELESS, "security")
    assert await run_through(disks, "wipe", {"disk": "sda"}, "good", capabilities=capabilities) == UNASKED


async def test_a_permission_that_the_client_granted_is_not_the_operators_yes(tmp_path: Path):
    caller = CallerKind(REFUSED, options={"permissions": "config_only", "granted": ["filesystem.write"]})
    disks = Disks(caller, tmp_path)

    @disks.server.tool
    @dangerous("filesystem.write", "shell.execute")
    def run(disk: str) -> str:
        disks.wiped.append(disk)
        return "ran"

    capabilities = offer(STATELESS, "permissions")
    async with (
        at_address(disks.server) as url,
        Remote(url, token="good").connect(STATELESS, capabilities=capabilities) as client,
    ):
        meta = {"dev.cloto/mgp/grants": {"shell.execute": "approved"}}
        result = await client.request("tools/call", {"name": "run", "arguments": {"disk": "sda"}, "_meta": meta})
    assert "has to be confirmed" in result["content"][0]["text"]
    assert disks.wiped == []


async def test_a_token_in_a_message_on_a_pipe_is_still_the_local_users_client(tmp_path: Path):
    disks = Disks(CALLERS["no token"], tmp_path, auth=Auth(StaticTokens({"good": "ann"}), in_messages=True))
    async with raw(disks.server, opened=False) as peer:
        params = peer.with_meta({"name": "wipe", "arguments": {"disk": "sda"}})
        shown = {"auth": {"type": "bearer", "token": "good"}}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params} | shown)
        await peer.reply_to(1)
    assert disks.tell_outcome() == ASSUMED


# -- what the operator reads at the start ------------------------------------------------------------------

AUTO = "A call runs if a person confirms it through the client, or if a key, token or access entry names the tool."
ALWAYS = "A call runs if a person confirms it through the client."
NO_TOKEN = "  always refused: callers without a token"
UNASKED = "  refused if the client can't ask a person: "


def serve_disks(*names: str, **options: Any) -> Server:
    server = Server("disks", "1", **options)
    for name in names:

        @server.tool(name=name)
        @dangerous("filesystem.write")
        def run() -> None: ...

    @server.tool
    @dangerous(confirm=False)
    def look() -> None: ...

    return server


async def announced(server: Server) -> list[str]:
    lines: list[str] = []
    await announce_dangerous_tools(server.composition, server.auth, lines.append)
    return lines


async def test_the_start_names_the_dangerous_tools_and_who_is_refused():
    assert await announced(serve_disks()) == []
    assert await announced(serve_disks("wipe", confirm="never")) == []
    assert await announced(serve_disks("wipe")) == [f"dangerous tools: wipe. {AUTO}", NO_TOKEN]
    several = await announced(serve_disks(*"abcdefg", confirm="always"))
    assert several == [
        f"dangerous tools: a, b, c, d, e and 2 more. {ALWAYS}",
        NO_TOKEN,
        f"{UNASKED}every caller",
    ]


async def test_the_start_names_what_tokens_lack():
    tokens = StaticTokens({"good": "ann"})
    lacking = f"{UNASKED}tokens without the scope tool:invoke:NAME"
    assert await announced(serve_disks("wipe", auth=tokens)) == [f"dangerous tools: wipe. {AUTO}", NO_TOKEN, lacking]
    granted = serve_disks("wipe", auth=tokens, permissions="config_only", granted=["filesystem.write"])
    assert (await announced(granted))[1:] == [NO_TOKEN]


async def test_the_start_names_the_keys_that_do_not_name_a_tool(tmp_path: Path):
    now = 0.0
    keys = ApiKeys(tmp_path / "keys.json", pepper="0123456789abcdef", clock=lambda: now)
    await keys.create("expired", permissions=["ToolInvoke(*)"], expires_in=1)
    for name, permissions in {
        "ci": ["ToolInvoke(*)"],
        "half": ["ToolInvoke(*)", "ToolInvoke(wipe)"],
        "whole": ["ToolInvoke(wipe)", "ToolInvoke(shred)"],
        "other": ["ToolInvoke(look)"],
        "bob": ["ToolInvoke(*)"],
    }.items():
        await keys.create(name, permissions=permissions)
    access = AccessPolicy("opt-out", [Entry("tool_grant", "bob", tool) for tool in ("wipe", "shred")])
    _, _, refused = await announced(serve_disks("wipe", "shred", auth=keys, access=access))
    assert refused == f'{UNASKED}key "ci" (it does not name wipe, shred), key "half" (it does not name shred)'


async def test_keys_that_cannot_be_read_do_not_stop_the_start(tmp_path: Path):
    server = serve_disks("wipe", auth=ApiKeys(tmp_path / "keys.json", pepper="0123456789abcdef"))
    (tmp_path / "keys.json").write_text("no JSON")
    (tmp_path / "keys.json").chmod(0o600)
    assert (await announced(server))[1] == NO_TOKEN


@pytest.mark.parametrize("on", ["http://127.0.0.1:0/mcp", "unix:{folder}/s"])
def test_the_lines_follow_the_address_on_standard_error(on: str, tmp_path: Path):
    source = f"""
from defserve import dangerous
server = Server("disks")

@server.tool
@dangerous
def wipe() -> None: ...

server.run(on={on.format(folder=tmp_path)!r})
sys.exit()
"""
    with ServerProcess(tmp_path, source) as served:
        address = served.line(2)
        assert address is not None and address.startswith(b"serving on ")
        if on.startswith("http"):
            assert [served.line(2), served.line(2)] == [f"dangerous tools: wipe. {AUTO}".encode(), NO_TOKEN.encode()]
        served.signal(signal.SIGTERM)
        assert (served.exit_code(), served.rest(1), served.rest(2)) == (0, [], [])
