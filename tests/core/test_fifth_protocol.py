"""Every contribution of the plug, used by a protocol the package has never heard of."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from defserve import Limits, Server, UsageError
from defserve.core.extension import Section
from defserve.extending import Extension
from defserve.protocols.mgp.server_discovery import DiscoverySection
from defserve.serve.connection import Connection
from defserve.serve.lifespans import MemoryTransport, connect_in_memory, enter_lifespans
from defserve.server import AccessPolicy
from tests.core.acme import EXTENSION, Acme, Badge, Depot, Locker, Post, PostOffice, handshake_offer, stateless_offer
from tests.raw import ERAS, STATELESS, Json, Raw, raw, text_of, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


def offer(version: str, level: int) -> Json:
    return stateless_offer(level) if version == STATELESS else handshake_offer(level)


def serve(acme: Acme, *, limits: Limits | None = None) -> Server:
    server = Server("shop", "1", extensions=[acme], limits=limits)

    @server.tool
    def double(n: int) -> int:
        return 2 * n

    return server


# -- terms


async def test_what_no_wrapper_sees_is_watched():
    acme = Acme()
    async with raw(serve(acme), ERAS[0], opened=False) as peer:
        await peer.ask("acme/hello")
        await peer.tell("notifications/acme/knock")
        await turns()
    assert acme.watched == [
        "acme/hello asks",
        "acme/hello is over",
        "notifications/acme/knock tells",
        "notifications/acme/knock is over",
    ]


async def test_a_listener_that_waits_is_watched_to_its_end():
    acme = Acme()
    async with raw(serve(acme), ERAS[0], handshake_offer(1)) as peer:
        await peer.tell("notifications/acme/tune", {"level": "3"})
        await turns()
    assert "tune 3" in acme.journal
    assert acme.watched == ["notifications/acme/tune tells", "notifications/acme/tune is over"]


async def test_the_servers_own_requests_are_wrapped():
    server = serve(Acme())
    async with raw(server, ERAS[0], {"roots": {}}) as peer:
        (session,) = server.composition.sessions
        asking = asyncio.create_task(session.request("roots/list", {}))
        question = await peer.hear()
        assert question["params"]["_meta"] == {"acmeStamp": "roots/list"}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
        assert await asking == {"roots": [], "acmeSeen": True}


@eras
async def test_the_capability_is_shown_only_to_a_client_that_offers_it(version: str):
    server = serve(Acme())
    async with raw(server, version) as plain, raw(server, version, offer(version, 1)) as acme:
        home, key = ("extensions", EXTENSION) if version == STATELESS else ("experimental", "acme")
        assert "acme" not in json.dumps(plain.opening["capabilities"])
        assert acme.opening["capabilities"][home][key] == {}
        assert "tools" in acme.opening["capabilities"]


async def test_each_session_has_a_state_of_its_own_even_after_the_same_offer():
    async with Two(serve(Acme()), "2025-11-25", handshake_offer(1)) as (one, other):
        assert [(await one.ask("acme/level"))["result"]["asked"] for _ in range(2)] == [1, 2]
        assert (await other.ask("acme/level"))["result"] == {"level": 1, "asked": 1}


async def test_without_a_handshake_each_request_is_negotiated_by_itself():
    async with raw(serve(Acme())) as peer:
        assert (await peer.ask("acme/level"))["error"]["code"] == -32601
        for level in (1, 2):
            peer.capabilities = stateless_offer(level)
            assert (await peer.ask("acme/level"))["result"]["level"] == level
        peer.capabilities = {}
        assert (await peer.ask("acme/level"))["error"]["code"] == -32601


async def test_a_repeated_offer_of_requests_is_negotiated_once():
    acme = Acme()
    async with raw(serve(acme), capabilities=stateless_offer(1)) as peer:
        for _ in range(3):
            await peer.ask("acme/level")
    assert acme.negotiated == [True]


@eras
async def test_a_method_that_was_not_negotiated_does_not_exist(version: str):
    async with raw(serve(Acme()), version) as peer:
        for method in ("acme/level", "acme/hello", "acme/nothing"):
            assert (await peer.ask(method))["error"]["code"] == -32601


# -- where negotiated


@eras
async def test_a_notification_is_heard_only_where_it_was_negotiated(version: str):
    acme = Acme()
    server = serve(acme)
    async with raw(server, version) as plain, raw(server, version, offer(version, 1)) as peer:
        await plain.tell("notifications/acme/tune", {"level": "plain"}, dressed=True)
        await peer.tell("notifications/acme/tune", {"level": "acme"}, dressed=True)
        await turns()
    assert [line for line in acme.journal if "tune" in line] == ["tune acme"]


async def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture):
    class Clumsy(Extension):
        name = "clumsy"

        def negotiate(self, offer: Any) -> object:
            return self

        def notifications(self) -> Any:
            return {"notifications/clumsy": self.fall}

        def fall(self, session: Any, params: Any) -> None:
            raise RuntimeError("fell")

    async with raw(Server("s", "1", extensions=[Clumsy()]), "2025-11-25") as peer:
        await peer.tell("notifications/clumsy")
        assert (await peer.ask("ping"))["result"] == {}
    assert "notifications/clumsy failed" in caplog.text


@eras
async def test_around_adds_wire_fields_in_and_out_where_negotiated(version: str):
    server = serve(Acme())
    async with raw(server, version) as plain, raw(server, version, offer(version, 1)) as peer:
        seen = await peer.call("double", {"n": 2}, acmeNote="hi")
        assert (text_of(seen), seen["acmeNote"]) == ("4", "hi!")
        assert "acmeNote" not in await plain.call("double", {"n": 2}, acmeNote="hi")


@eras
async def test_around_a_list_sees_its_members_though_lists_are_kept_as_bytes(version: str):
    server = serve(Acme())
    async with raw(server, version) as plain, raw(server, version, offer(version, 0)) as peer:
        bare, wrapped = (await plain.ask("tools/list"))["result"], (await peer.ask("tools/list"))["result"]
        assert wrapped["acmeCount"] == 1
        assert {key: value for key, value in wrapped.items() if key != "acmeCount"} == bare


# -- always

DONE = ["audit", "admit", "judge {'n': 2}", "hold", "run", "hold: done", "audit: done"]
STAGES: dict[str, tuple[Json, list[str], bool]] = {
    "success": ({"name": "work", "arguments": {"n": 2}}, DONE, False),
    "failure": (
        {"name": "fail", "arguments": {"n": 2}},
        ["audit", "admit", "judge {'n': 2}", "hold", "hold: RuntimeError", "audit: RuntimeError"],
        True,
    ),
    "a refusal at the door": ({"name": "barred"}, ["audit", "admit", "audit: Refused"], True),
    "bad arguments": ({"name": "work", "arguments": {"n": "x"}}, ["audit", "admit", "audit: BadArguments"], True),
    "a bad judgement": (
        {"name": "work", "arguments": {"n": 13}},
        ["audit", "admit", "judge {'n': 13}", "audit: ToolError"],
        True,
    ),
}


def workshop(acme: Acme) -> Server:
    server = Server("workshop", "1", extensions=[acme])

    @server.tool
    async def work(n: int) -> str:
        acme.journal.append("run")
        return "worked"

    @server.tool
    async def fail(n: int) -> str:
        raise RuntimeError("broken")

    @server.tool(tags=["barred"])
    async def barred() -> str:
        raise AssertionError("never reached")

    @server.tool
    async def wait() -> str:
        acme.journal.append("run")
        try:
            await asyncio.Event().wait()
        finally:
            await turns()  # clean-up takes its time
        return "never"

    return server


@eras
@for_each_row("negotiated", [False, True])
@for_each_row("outcome", STAGES)
async def test_stages_act_in_order_for_every_client_and_see_the_outcome(version: str, negotiated: bool, outcome: str):
    params, journal, failed = STAGES[outcome]
    acme = Acme()
    async with raw(workshop(acme), version, offer(version, 1) if negotiated else {}) as peer:
        acme.journal.clear()
        result = (await peer.ask("tools/call", params))["result"]
        assert result.get("isError", False) is failed
        assert acme.journal == journal


@eras
async def test_stages_see_a_cancellation(version: str):
    acme = Acme()
    async with raw(workshop(acme), version) as peer:
        acme.journal.clear()
        id = await peer.begin("tools/call", {"name": "wait"})
        await turns()
        await peer.tell("notifications/cancelled", {"requestId": id})
        await turns()
        await turns()
        entered = ["audit", "admit", "judge {}", "hold", "run"]
        assert acme.journal == [*entered, "hold: CancelledError", "audit: CancelledError"]
        assert await peer.news() == []


async def test_a_stage_that_swallows_an_error_does_not_make_a_success_of_it():
    class Careless(Acme):
        name = "careless"

    async with raw(workshop(Careless())) as peer:
        result = await peer.call("work", {"n": 13})
        assert (result["isError"], text_of(result)) == (True, "13 is unlucky; choose another")


@eras
async def test_a_draining_server_serves_what_is_vital_and_every_extension_knows_its_phase(version: str):
    acme = Acme()
    server = serve(acme)
    async with raw(server, version, offer(version, 1)) as peer:
        assert acme.phases == ["starting", "serving"]
        server.composition.service.drain()
        assert (await peer.ask("acme/level"))["result"]["level"] == 1
        assert "shutting down" in json.dumps(await peer.ask("tools/call", {"name": "add"}))
    assert acme.phases == ["starting", "serving", "draining", "stopped"]


async def test_what_running_calls_may_wait_for_does_not_wait_behind_them():
    go, server = asyncio.Event(), Server("s", "1", extensions=[Acme()], limits=Limits(in_flight=1))

    @server.tool
    async def wait() -> str:
        await go.wait()
        return "done"

    async with raw(server, "2025-11-25", offer("2025-11-25", 1)) as peer:
        ids = [await peer.begin("tools/call", {"name": "wait"}) for _ in range(3)]
        assert (await peer.ask("acme/level"))["result"]["level"] == 1
        go.set()
        assert [text_of((await peer.reply_to(id))["result"]) for id in ids] == ["done"] * 3


async def test_an_extension_that_fails_at_the_end_does_not_keep_the_server(caplog: pytest.LogCaptureFixture):
    class Clumsy(Acme):
        def phase_changed(self, composition: Any, previous: Any) -> None:
            raise RuntimeError("too late")

    server = serve(Clumsy())
    async with raw(server) as peer:
        server.composition.service.stop(1)
        assert await peer.link.receive() is None
    assert "too late" in caplog.text and server.composition.service.phase == "stopped"


@eras
async def test_an_injectable_is_given_to_the_function_and_is_not_in_its_schema(version: str):
    server = Server("s", "1", extensions=[Acme()])

    @server.tool
    def whoami(badge: Badge, greeting: str = "hello") -> str:
        return f"{greeting} {badge.principal} of level {badge.level}"

    async with raw(server, version, offer(version, 2)) as peer, raw(server, version) as plain:
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert list(tool["inputSchema"]["properties"]) == ["greeting"]
        assert text_of(await peer.call("whoami")) == "hello local of level 2"
        assert text_of(await plain.call("whoami")) == "hello local of level 0"


# -- lists


def warehouse(acme: Acme, tools: int = 10, page: int = 3) -> Server:
    """Tools t0, t1, …: every odd one is for level 2."""
    server = Server("warehouse", "1", extensions=[acme], limits=Limits(page=page))
    for number in range(tools):
        stock(server, number)
    return server


def stock(server: Server, number: int) -> None:
    def take() -> int:
        return number

    server.add_tool(take, name=f"t{number}", tags=["level-2"] if number % 2 else [], meta={EXTENSION: {"kept": True}})


async def pages(peer: Raw) -> list[list[str]]:
    found: list[list[str]] = []
    cursor: Json = {}
    while True:
        page = (await peer.ask("tools/list", cursor))["result"]
        found.append([tool["name"] for tool in page["tools"]])
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


class Two:
    """Two peers of one server."""

    def __init__(self, server: Server, version: str, *offers: Json) -> None:
        one, other = offers if len(offers) == 2 else offers * 2
        self._peers = raw(server, version, one), raw(server, version, other)

    async def __aenter__(self) -> tuple[Raw, Raw]:
        return await self._peers[0].__aenter__(), await self._peers[1].__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._peers[1].__aexit__(*error)
        await self._peers[0].__aexit__(*error)


@eras
@pytest.mark.req("MCP-5.1p")
async def test_hidden_items_never_break_paging(version: str):
    async with Two(warehouse(Acme()), version, offer(version, 0), offer(version, 2)) as (low, high):
        for _ in range(2):  # the second time from memory
            assert await pages(low) == [["t0", "t2", "t4"], ["t6", "t8"]]
            assert await pages(high) == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6", "t7", "t8"], ["t9"]]


@for_each_row(("tools", "sizes"), [(0, [0]), (1, [1]), (2, [1]), (5, [3]), (6, [3]), (7, [3, 1]), (12, [3, 3])])
async def test_there_is_no_empty_last_page(tools: int, sizes: list[int]):
    async with raw(warehouse(Acme(), tools)) as peer:
        assert [len(page) for page in await pages(peer)] == sizes


@eras
async def test_a_cursor_that_is_not_ours_is_refused(version: str):
    server = warehouse(Acme())
    for number in range(4):

        def prompt() -> str:
            return "hi"

        server.add_prompt(prompt, name=f"p{number}")
    async with raw(server, version) as peer:
        foreign = (await peer.ask("prompts/list"))["result"]["nextCursor"]
        for cursor in (foreign, "", "x", "dG9vbHM6LTE", "dG9vbHM6MDM", "é", 3, 1.5, True, [], {}):
            assert (await peer.ask("tools/list", {"cursor": cursor}))["error"]["code"] == -32602, cursor


async def test_items_added_or_removed_between_pages_neither_repeat_nor_skip_others():
    server = warehouse(Acme())
    async with raw(server, capabilities=stateless_offer(2)) as peer:
        first = (await peer.ask("tools/list"))["result"]
        server.remove_tool("t0")
        server.remove_tool("t2")  # the very item the cursor stands on
        server.remove_tool("t4")
        stock(server, 10)
        rest: list[str] = []
        cursor = first["nextCursor"]
        while cursor:
            page = (await peer.ask("tools/list", {"cursor": cursor}))["result"]
            rest += [tool["name"] for tool in page["tools"]]
            cursor = page.get("nextCursor")
        assert [tool["name"] for tool in first["tools"]] == ["t0", "t1", "t2"]
        assert rest == ["t3", "t5", "t6", "t7", "t8", "t9", "t10"]


@eras
async def test_two_views_never_see_each_others_words(version: str):
    async with Two(warehouse(Acme(), 4), version, offer(version, 1), offer(version, 3)) as (one, three):
        for _ in range(2):
            for peer, level in ((one, 1), (three, 3)):
                tools = (await peer.ask("tools/list"))["result"]["tools"]
                assert [tool["_meta"][EXTENSION] for tool in tools] == [{"kept": True, "seenFrom": level}] * len(tools)


async def test_callers_of_one_view_share_the_bytes_of_a_list():
    class Counting(Acme):
        described = 0

        def describe(self, item: Any, view: object) -> Any:
            self.described += 1
            return super().describe(item, view)

    acme = Counting()
    server = warehouse(acme, 3)
    async with Two(server, STATELESS, {}) as (one, other):
        await one.ask("tools/list")
        await other.ask("tools/list")
        assert acme.described == 2
        server.remove_tool("t0")
        await one.ask("tools/list")
        assert acme.described == 3


@eras
@for_each_row("kind", ["tool", "resource", "prompt"])
async def test_what_is_hidden_cannot_be_used_either(version: str, kind: str):
    class Hiding(Acme):
        def visible(self, call: Any, item: Any) -> bool:
            return not item.name.startswith("hidden")

    server = Server("s", "1", extensions=[Hiding()])

    @server.tool
    def hidden_tool() -> str:
        return "never"

    @server.resource("x://hidden")
    def hidden_resource() -> str:
        return "never"

    @server.prompt
    def hidden_prompt() -> str:
        return "never"

    requests = {
        "tool": ("tools/call", {"name": "hidden_tool"}, -32602),
        "resource": ("resources/read", {"uri": "x://hidden"}, -32602 if version == STATELESS else -32002),
        "prompt": ("prompts/get", {"name": "hidden_prompt"}, -32602),
    }
    method, params, code = requests[kind]
    async with raw(server, version) as peer:
        assert (await peer.ask(method, params))["error"]["code"] == code
        assert (await peer.ask(f"{kind}s/list"))["result"][f"{kind}s"] == []


async def test_who_hides_items_has_to_say_by_what_view():
    class Forgetful(Extension):
        name = "forgetful"

        def visible(self, call: Any, item: Any) -> bool:
            return False

    with pytest.raises(UsageError, match=r"forgetful.*`view`"):
        _ = Server("s", "1", extensions=[Forgetful()]).composition


async def test_fields_that_contradict_those_of_the_item_are_an_error_not_an_overwrite():
    class Rude(Extension):
        name = "rude"

        def describe(self, item: Any, view: object) -> Any:
            return {"name": "mine"}

    server = Server("s", "1", extensions=[Rude()])
    server.add_tool(turns, name="t")
    async with raw(server) as peer:
        assert (await peer.ask("tools/list"))["error"]["code"] == -32603


# -- opening and life


async def test_what_opens_with_the_extension_is_answered_before_the_handshake_and_nothing_else():
    acme = Acme()
    async with raw(serve(acme), "2025-11-25", opened=False) as peer:
        assert (await peer.ask("acme/hello", {"name": "Ann"}))["result"] == {"hello": "Ann"}
        assert (await peer.ask("acme/level"))["error"]["code"] == -32602
        await peer.tell("notifications/acme/tune", {"level": 9})
        await peer.tell("notifications/acme/knock")
        await turns()
        assert acme.journal == ["begin", "knock"]
        peer.capabilities = handshake_offer(1)
        await peer.open()
        assert (await peer.ask("acme/level"))["result"]["level"] == 1


async def test_the_lifespan_is_entered_once_before_serving_and_left_after_the_last_call():
    acme = Acme()
    server = workshop(acme)
    async with raw(server), raw(server) as peer:
        assert acme.journal == ["begin"]
        await peer.begin("tools/call", {"name": "wait"})
        await turns()
    assert acme.journal.count("begin") == 1
    assert acme.journal[-2:] == ["audit: CancelledError", "end"]


async def test_the_extension_learns_that_a_session_is_over():
    acme = Acme()
    server = serve(acme)
    async with raw(server):
        (session,) = server.composition.sessions
        assert acme.closed == []
    assert acme.closed == [session]


# -- sections


@eras
async def test_a_section_is_made_by_the_first_message_that_may_use_it(version: str):
    depot = Depot()
    server = Server("s", "1", extensions=[depot])
    assert {"acme/locker/fill", "acme/locker/look", "acme/vault/open", "acme/count"} <= server.composition.known_methods
    async with Two(server, version, offer(version, 0), offer(version, 1)) as (low, high):
        assert (await low.ask("acme/count"))["result"]["count"] == 1
        for method in ("acme/locker/fill", "acme/locker/look"):
            reply = await low.ask(method, {"thing": "hat"})
            assert (reply["error"]["code"], reply["error"]["message"]) == (-32601, f"Method not found: {method}")
        assert (await high.ask("acme/vault/open"))["error"]["code"] == -32601
        assert depot.sections() == [depot.counter]
        assert (await high.ask("acme/locker/fill", {"thing": "hat"}))["result"]["filled"] == "depot"
        assert depot.sections() == [depot.counter, Depot.locker.get_existing_section(depot)]
    async with raw(server, version) as plain:
        assert (await plain.ask("acme/locker/look"))["error"]["code"] == -32601


async def test_a_section_hears_of_its_session_and_of_the_server():
    depot = Depot()
    server = Server("s", "1", extensions=[depot])
    async with raw(server, "2025-11-25", offer("2025-11-25", 1)) as peer:
        (session,) = server.composition.sessions
        session.end_credential("unheard: there is no section yet")
        assert Depot.locker.get_existing_section(depot) is None
        await peer.ask("acme/locker/fill", {"thing": "hat"})
        await peer.tell("notifications/acme/locker/shake", {"how": "softly"})
        await peer.tell("notifications/acme/locker/shake")
        assert (await peer.ask("acme/locker/look"))["result"] == {"thing": "hat"}
        session.end_credential("key")
    assert depot.locker.journal == ["shake hat", "ended key", "draining", "stopped", "closed hat"]


async def test_what_a_section_keeps_is_taken_up_where_there_was_no_section_yet():
    one, other = Depot(), Depot()
    async with raw(Server("s", "1", extensions=[one]), "2025-11-25", offer("2025-11-25", 1)) as peer:
        await peer.ask("acme/locker/fill", {"thing": "hat"})
        (session,) = one.locker.left
        kept = one.export_state(session)
        assert kept == {"locker:thing": "hat"}
        other.import_state(session, {"unknown": 1})
        assert Depot.locker.get_existing_section(other) is None
        other.import_state(session, kept)
        assert other.export_state(session) == kept


async def test_somebody_elses_section_takes_the_place_of_one():
    depot = Depot()
    depot.locker = Locker("cellar")
    async with raw(Server("s", "1", extensions=[depot]), "2025-11-25", offer("2025-11-25", 1)) as peer:
        assert (await peer.ask("acme/locker/fill", {"thing": "hat"}))["result"] == {"filled": "cellar"}


def test_every_section_serves_what_is_declared_of_it():
    server = Server("s", "1", access=AccessPolicy("opt-out"), search="always")
    server.mgp.discovery = DiscoverySection(cast("Any", None))
    for extension in (server.mgp, server.mcpl, Depot()):
        for each in vars(type(extension)).values():
            if isinstance(each, Section) and (made := each.get_section(extension)) is not None:
                declared = [*each.methods, *each.at_once], [*each.notifications]
                assert tuple(map(sorted, declared)) == (sorted(made.methods()), sorted(made.notifications()))


# -- clashes


def clashing(**contribution: Any) -> list[Extension]:
    def extension(called: str) -> Extension:
        body = {"name": called, **{key: (lambda self, value=value: value) for key, value in contribution.items()}}
        return type(called, (Extension,), body)()

    return [extension("first"), extension("second")]


CLASHES = {
    "method": clashing(methods={"a/b": print}),
    "injectable": clashing(injectables={Badge: Badge}),
    "carrier": clashing(carrier=PostOffice()),
}


@for_each_row("kind", CLASHES)
async def test_a_clash_names_both_extensions(kind: str):
    with pytest.raises(UsageError, match=rf"(?s)(?=.*{kind})(?=.*first)(?=.*second).*fix: "):
        _ = Server("s", "1", extensions=CLASHES[kind]).composition


# -- carrier


class Mailbox:
    """The far end of a pipe that carries several peers."""

    def __init__(self, link: Any) -> None:
        self.link = link

    async def post(self, sender: str, letter: int, method: str, params: Json | None = None, *, id: int = 1) -> None:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        await self.link.send(json.dumps({"from": sender, "letter": letter, "message": message}).encode())

    async def event(self, sender: str, event: str) -> None:
        await self.link.send(json.dumps({"from": sender, "event": event}).encode())

    async def next(self) -> tuple[str, Any, Json]:
        letter = json.loads(await self.link.receive())
        return letter["to"], letter["answers"], letter["message"]


def hello(level: int) -> Json:
    return {"protocolVersion": "2025-11-25", "capabilities": handshake_offer(level), "clientInfo": {"name": "x"}}


async def test_two_peers_on_one_pipe_each_have_a_session_and_their_ids_may_collide():
    post, gates = Post(), {"ann": asyncio.Event(), "bob": asyncio.Event()}
    server = Server("s", "1", extensions=[Acme(), post])

    @server.tool
    async def wait(who: str, badge: Badge) -> str:
        await gates[who].wait()
        return f"{who} of level {badge.level}"

    async with connect_in_memory(server.composition) as link:
        box = Mailbox(link)
        for letter, (who, level) in enumerate({"ann": 1, "bob": 2}.items(), 100):
            await box.post(who, letter, "initialize", hello(level))
            to, answers, message = await box.next()
            assert (to, answers, message["id"]) == (who, letter, 1)
        await box.post("ann", 200, "tools/call", {"name": "wait", "arguments": {"who": "ann"}}, id=7)
        await box.post("bob", 300, "tools/call", {"name": "wait", "arguments": {"who": "bob"}}, id=7)
        await turns()
        assert {session.peer for session in server.composition.sessions} == {"ann", "bob"}
        gates["bob"].set()
        to, answers, message = await box.next()
        assert (to, answers, message["id"], text_of(message["result"])) == ("bob", 300, 7, "bob of level 2")
        gates["ann"].set()
        to, answers, message = await box.next()
        assert (to, answers, message["id"], text_of(message["result"])) == ("ann", 200, 7, "ann of level 1")


async def test_errors_answer_the_envelope_they_are_about_and_notifications_answer_none():
    server = Server("s", "1", extensions=[Post()])
    async with connect_in_memory(server.composition) as link:
        box = Mailbox(link)
        await box.post("ann", 1, "initialize", hello(0))
        await box.next()
        await link.send(b'{"from": "ann", "message": {"jsonrpc": "2.0", "method": "notifications/initialized"}}')
        await box.post("ann", 2, "no/such")
        assert (await box.next())[:2] == ("ann", 2)
        await link.send(b'{"from": "ann", "letter": 3, "message": {"jsonrpc": "1.0", "id": 4}}')
        to, answers, message = await box.next()
        assert (to, answers, message["error"]["code"]) == ("ann", 3, -32600)
        server.add_tool(turns, name="t")
        to, answers, message = await box.next()
        assert (to, answers, message["method"]) == ("ann", None, "notifications/tools/list_changed")


async def test_events_reach_the_carrier_and_a_peer_that_left_starts_anew():
    post, acme = Post(), Acme()
    server = Server("s", "1", extensions=[acme, post])
    async with connect_in_memory(server.composition) as link:
        box = Mailbox(link)
        await link.send(b"not a letter")
        await box.event("ann", "joined")
        await box.post("ann", 1, "initialize", hello(0))
        await box.next()
        await box.event("ann", "gone")
        assert len(acme.closed) == 1
        await box.post("ann", 2, "initialize", hello(0))
        assert "result" in (await box.next())[2]
        assert post.desk.events == [("ann", "joined"), ("ann", "gone")]


async def test_letters_that_come_before_the_loop_wait_for_it_in_order():
    server = Server("s", "1", extensions=[Post()])
    transport = MemoryTransport(1 << 20)
    connection = Connection(server.composition, transport)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    connection.feed_frames(
        [json.dumps({"from": who, "letter": who, "message": ping}).encode() for who in ("ann", "bob")]
    )
    assert len(connection.waiting) == 2
    async with enter_lifespans(server.composition) as engine:
        transport.start(asyncio.get_running_loop(), connection.feed_frames, connection.close)
        connection.attach(engine)
        box = Mailbox(transport.peer)
        assert [(await box.next())[:2] for _ in range(2)] == [("ann", "ann"), ("bob", "bob")]
        connection.close()


async def test_a_peer_too_many_is_refused_and_harms_no_other():
    server = Server("s", "1", extensions=[Post()], limits=Limits(sessions_per_principal=1))
    async with connect_in_memory(server.composition) as link:
        box = Mailbox(link)
        await box.post("ann", 1, "ping")
        await box.post("bob", 2, "ping")
        await box.post("ann", 3, "ping")
        replies = [await box.next() for _ in range(3)]
        assert [reply[:2] for reply in replies] == [("ann", 1), ("bob", 2), ("ann", 3)]
        assert replies[1][2]["error"]["data"]["limit"] == "sessions_per_principal"
