"""Which servers a kernel tells of, and how servers are added and removed while it runs (MGP §15)."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, moderate
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.errors import UsageError
from tests.kernel.governance.governing import SERVER, governed, tool
from tests.kernel.running import BACKEND, entry, running, url_entry
from tests.listening import listening
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, STRANGER, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json
from tests.waiting import until

pytestmark = pytest.mark.anyio

COMMANDS = f'commands = ["{sys.executable} -I -S {BACKEND}"]'
OPEN = f'[kernel]\nadmins = ["alice"]\n[kernel.register]\nenabled = true\n{COMMANDS}\n'
WANTED: Json = {
    "id": "dynamic.sums",
    "command": sys.executable,
    "args": ["-I", "-S", str(BACKEND)],
    "transport": "stdio",
}
STREAMS = 'extensions = ["security", "streaming"]\npermissions_required = ["network.outbound"]\ntrust_level = "trusted"'
OTHERS = [BOB, LOOPBACK, STRANGER, Principal("local", kind="anonymous"), Principal("alice", kind="anonymous")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def speaking_mgp() -> Server:
    server = Server("a", "1")

    @server.tool
    @moderate("network.outbound")
    def fetch() -> str:
        return "fetched"

    return server


@pytest.mark.req("MGP-15.2l")
@pytest.mark.parametrize("version", ERAS)
async def test_servers_are_listed_and_filtered(tmp_path: Path, version: str) -> None:
    off = '[[servers]]\nid = "off"\nenabled = false\nurl = "https://wiki.example.org/mcp"\n'
    async with (
        listening(speaking_mgp()) as where,
        running(
            tmp_path, url_entry("a", f"http://{where.authority}/mcp", f"[servers.mgp]\n{STREAMS}"), off, wait=False
        ) as here,
    ):
        await here.connected("a")
        async with speaking(here.kernel.server, version, ["discovery"]) as peer:

            async def ids(**wanted: Any) -> list[str]:
                reply = await peer.ask("mgp/discovery/list", {"filter": wanted} if wanted else {})
                return [one["id"] for one in reply["result"]["servers"]]

            (one, two) = (await peer.ask("mgp/discovery/list"))["result"]["servers"]
            assert (one["id"], one["status"], one["trust_level"]) == ("a", "connected", "trusted")
            assert one["extensions"] == ["security", "streaming", "lifecycle"]
            assert one["mgp_version"] == "0.3.0"
            assert "a_fetch" in one["tools"]
            assert (two["id"], two["status"], two["mgp_version"], two["tools"]) == ("off", "registered", None, [])
            assert await ids(extensions=["streaming"]) == ["a"]
            assert await ids(extensions=["streaming", "discovery"]) == []
            assert await ids(permissions=["network.outbound"]) == ["a"]
            assert await ids(permissions=["shell.execute"]) == []
            assert await ids(status="connected") == await ids(status="Connected") == ["a"]
            assert await ids(status="registered") == ["off"]
            assert await ids(status="all") == ["a", "off"]


@pytest.mark.req("MGP-15.2l")
@pytest.mark.parametrize(
    "wanted",
    [{"status": "up"}, {"status": 1}, {"extensions": "streaming"}, {"permissions": [1]}, {"extensions": ["x"] * 99},
     {"other": 1}, [], "all"],
)  # fmt: skip
async def test_a_filter_that_makes_no_sense_is_refused(tmp_path: Path, wanted: Any) -> None:
    async with (
        running(tmp_path, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer,
    ):
        assert code_of(await peer.ask("mgp/discovery/list", {"filter": wanted})) == -32602


async def test_others_learn_only_of_servers_whose_tools_they_see(tmp_path: Path) -> None:
    head = '[kernel]\nadmins = ["alice"]\n'
    async with running(tmp_path, head, entry("a", more='default_policy = "opt-in"'), entry("b")) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"], who=BOB) as peer:
            found = (await peer.ask("mgp/discovery/list"))["result"]["servers"]
            assert [one["id"] for one in found] == ["b"]
            # The tool of the same name is no way around it.
            reply = await peer.ask("tools/call", {"name": "mgp_servers", "arguments": {}})
            assert "a_add" not in json.dumps(reply)
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as peer:
            found = (await peer.ask("mgp/discovery/list"))["result"]["servers"]
            assert [one["id"] for one in found] == ["a", "b"]


@pytest.mark.req("MGP-15.4", "MGP-15.5")
async def test_a_server_is_registered_and_deregistered(tmp_path: Path) -> None:
    trail = Trail()
    async with running(tmp_path, OPEN, entry("a"), audit=trail) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as peer:
            words = {"created_by": "agent.other", "justification": "sums are needed", "mgp": {"trust_level": "trusted"}}
            made = (await peer.ask("mgp/discovery/register", {**WANTED, **words}))["result"]
            assert (made["id"], made["status"]) == ("dynamic.sums", "connected")
            listed = {one["id"]: one for one in (await peer.ask("mgp/discovery/list"))["result"]["servers"]}
            # Who registered it is who asked, whatever was said; and it is never trusted.
            assert listed["dynamic.sums"]["created_by"] == "alice"
            assert listed["dynamic.sums"]["trust_level"] == "sandboxed"
            assert "dynamic_sums_add" in listed["dynamic.sums"]["tools"]
            ((_, told),) = trail.told("dev.defserve.server_registered")
            assert (told["created_by"], told["reason"]) == ("agent.other", "sums are needed")
            assert code_of(await peer.ask("mgp/discovery/register", WANTED)) == 4101
            gone = (await peer.ask("mgp/discovery/deregister", {"id": "dynamic.sums", "reason": "done"}))["result"]
            assert gone["status"] == "deregistered"
            assert list(here.kernel.members) == ["a"]
            assert "dynamic_sums_add" not in here.kernel.server.mcp.tools.registry
            assert code_of(await peer.ask("mgp/discovery/deregister", {"id": "dynamic.sums"})) == 4004
            assert code_of(await peer.ask("mgp/discovery/deregister", {"id": "a"})) == 1000
            assert trail.told("dev.defserve.server_deregistered")
        assert here.state("a") == "connected"


@pytest.mark.req("MGP-15.4")
async def test_tools_of_a_registered_server_are_under_stricter_rules(tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as peer:
            needs = {"mgp": {"permissions_required": ["shell.execute"]}}
            assert code_of(await peer.ask("mgp/discovery/register", {**WANTED, **needs})) == 1000
            await peer.ask("mgp/discovery/register", {**WANTED, "keep": True})
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=STRANGER) as peer:
            call = {"name": "dynamic_sums_pid", "arguments": {}}
            assert code_of(await peer.ask("tools/call", call)) == "confirmation_required"


@pytest.mark.req("MGP-15.4", "MGP-15.5")
@pytest.mark.parametrize("who", OTHERS, ids=lambda who: f"{who.kind} {who.id}")
@pytest.mark.parametrize("version", ERAS)
async def test_only_operators_register_and_deregister(tmp_path: Path, who: Principal, version: str) -> None:
    async with running(tmp_path, OPEN, entry("a")) as here:
        async with speaking(here.kernel.server, version, ["discovery"], who=who) as peer:
            claim = {**WANTED, "keep": True, "created_by": "alice"}
            assert code_of(await peer.ask("mgp/discovery/register", claim)) == 1000
            for id in ("a", "unknown", 7):
                assert code_of(await peer.ask("mgp/discovery/deregister", {"id": id})) == 1000
            # What is wrong with the params is told to operators only.
            assert code_of(await peer.ask("mgp/discovery/register", {"nonsense": 1})) == 1000
            tool_call = {"name": "mgp_server_register", "arguments": {name: claim[name] for name in ("id", "command")}}
            assert code_of(await peer.ask("tools/call", tool_call)) is not None
        assert list(here.kernel.members) == ["a"]


@pytest.mark.req("MGP-15.4")
async def test_registering_is_off_unless_the_file_says_so(tmp_path: Path) -> None:
    async with (
        running(tmp_path, OPEN.replace("enabled = true", ""), entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer,
    ):
        assert code_of(await peer.ask("mgp/discovery/register", WANTED)) == 1000


@pytest.mark.req("MGP-15.4")
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"command": "/bin/sh", "args": ["-c", "id"]}, 1010),
        ({"command": sys.executable, "args": ["-c", "import os"]}, 1010),
        ({"args": ["-I", "-S", f"{BACKEND}x"]}, 1010),
        ({"args": ["-I", "-S", str(BACKEND), "--option"]}, 1010),
        ({"args": ["-I", "-S", str(BACKEND), "${HOME}"]}, -32602),
        ({"args": ["-I", "-S", str(BACKEND), "a\x00b"]}, -32602),
        ({"args": "text"}, -32602),
        ({"args": ["x"] * 100}, -32602),
        ({"env": {"LD_PRELOAD": "/tmp/x.so"}}, -32602),
        ({"cwd": "/"}, -32602),
        ({"id": "../x"}, -32602),
        ({"id": "kernel"}, 4101),
        ({"id": "a"}, 4101),
        ({"id": ""}, -32602),
        ({"url": "https://example.org/mcp"}, -32602),
        ({"transport": "http"}, -32602),
        ({"transport": ["stdio"]}, -32602),
        ({"justification": "x" * 5_000}, -32602),
        ({"justification": "two\nlines"}, -32602),
        ({"keep": "yes"}, -32602),
        ({"mgp": {"trust_level": "king"}}, -32602),
        ({"mgp": {"extensions": ["wings"]}}, -32602),
        ({"mgp": {"restart_policy": "always"}}, -32602),
    ],
)
async def test_a_registration_that_is_not_allowed_starts_nothing(tmp_path: Path, more: Json, code: int) -> None:
    async with (
        running(tmp_path, OPEN, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer,
    ):
        assert code_of(await peer.ask("mgp/discovery/register", {**WANTED, **more})) == code
        assert list(here.kernel.members) == ["a"]


@pytest.mark.req("MGP-15.4")
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/mcp", "http://169.254.169.254/", "https://other.example.net/mcp", "file:///etc/passwd",
     "http://localhost:9/", "http://[::1]:9/", "http://user:pass@127.0.0.1:9/", "ws://127.0.0.1:9/"],
)  # fmt: skip
@pytest.mark.parametrize("hosts", ["", 'hosts = ["wiki.example.org", "127.0.0.1:8"]'])
async def test_only_addresses_of_the_operators_list_are_reached(tmp_path: Path, url: str, hosts: str) -> None:
    async with (
        running(tmp_path, OPEN + hosts, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer,
    ):
        assert code_of(await peer.ask("mgp/discovery/register", {"id": "x", "url": url})) == 1010
        assert list(here.kernel.members) == ["a"]


@pytest.mark.req("MGP-15.4")
@pytest.mark.parametrize("path", ["mcp", "sse"])
async def test_a_name_that_moves_to_a_private_address_later_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    reached = list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append((await reader.readline()).decode())
        writer.close()

    answers = ["93.184.216.34"]

    def resolved(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        # Public when it is registered, and the machine itself from then on.
        address = answers.pop() if answers and host == "wiki.example.org" else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        running(tmp_path, OPEN + 'hosts = ["wiki.example.org"]') as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer,
    ):
        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        wanted = {"id": "x", "url": f"http://wiki.example.org:{port}/{path}"}
        made = (await peer.ask("mgp/discovery/register", wanted))["result"]
        assert answers == []
        assert made["status"] in ("error", "restarting")
        await until(lambda: "127.0.0.1" in here.kernel.members["x"].make_ps_row()["note"])
        assert reached == []


async def test_a_private_address_of_the_operators_list_is_reached_until_it_is_taken_from_the_list(
    tmp_path: Path,
) -> None:
    async with listening(Server("wiki", "1")) as where:
        rules = OPEN + f'hosts = ["{where.authority}"]\n'
        async with running(tmp_path, rules) as here:
            async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer:
                wanted = {"id": "x", "url": f"http://{where.authority}/mcp", "keep": True}
                assert (await peer.ask("mgp/discovery/register", wanted))["result"]["status"] == "connected"
                here.write(OPEN)
                await here.kernel.reload()
                await here.kernel.restart("x", now=True)
                await until(lambda: "may be registered" in here.kernel.members["x"].make_ps_row()["note"])


@pytest.mark.req("MGP-15.4")
async def test_a_registered_server_ends_with_the_conversation_that_made_it(tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer:
            await peer.ask("mgp/discovery/register", WANTED)
            await peer.ask("mgp/discovery/register", {**WANTED, "id": "kept", "keep": True})
            assert list(here.kernel.members) == ["dynamic.sums", "kept"]
        await until(lambda: list(here.kernel.members) == ["kept"])
        # A reload knows only the file, and leaves it alone.
        assert (await here.kernel.reload())["removed"] == []
        assert here.state("kept") == "connected"


async def test_a_request_without_a_session_has_to_say_that_the_server_is_kept(tmp_path: Path) -> None:
    async with (
        running(tmp_path, OPEN) as here,
        speaking(here.kernel.server, STATELESS, ["discovery"]) as peer,
    ):
        assert code_of(await peer.ask("mgp/discovery/register", WANTED)) == -32602
        made = await peer.ask("mgp/discovery/register", {**WANTED, "keep": True})
        assert made["result"]["status"] == "connected"


async def test_the_file_takes_an_id_over_from_a_registered_server(tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer:
            await peer.ask("mgp/discovery/register", {**WANTED, "id": "a", "keep": True})
        here.write(OPEN, entry("a", mgp='trust_level = "trusted"'))
        assert (await here.kernel.reload())["added"] == ["a"]
        await here.connected("a")
        assert here.kernel.members["a"].creator is None


@pytest.mark.req("MGP-15.2l", "MGP-15.4", "MGP-15.5")
async def test_the_same_are_tools_for_operators_without_mgp(tmp_path: Path) -> None:
    names = {"mgp_servers", "mgp_server_register", "mgp_server_deregister"}
    async with running(tmp_path, OPEN, entry("a")) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=ALICE) as peer:

            async def ask(name: str, **arguments: Any) -> Json:
                return (await peer.ask("tools/call", {"name": name, "arguments": arguments}))["result"]

            assert names <= {one["name"] for one in (await peer.ask("tools/list"))["result"]["tools"]}
            assert [one["id"] for one in (await ask("mgp_servers"))["structuredContent"]["servers"]] == ["a"]
            made = await ask("mgp_server_register", id="b", command=WANTED["command"], args=WANTED["args"])
            assert made["structuredContent"]["status"] == "connected"
            again = await ask("mgp_server_register", id="b", command=WANTED["command"], args=WANTED["args"])
            assert refused_as(again) == "server_already_registered"
            assert not (await ask("mgp_server_deregister", id="b")).get("isError")
            assert refused_as(await ask("mgp_server_deregister", id="b")) == "server_not_found"
        # The local user may call them, and nobody else sees them.
        for who in (LOCAL_PRINCIPAL, BOB, STRANGER):
            async with speaking(here.kernel.server, HANDSHAKE[-1], who=who) as peer:
                assert not names & {one["name"] for one in (await peer.ask("tools/list"))["result"]["tools"]}


def refused_as(result: Json) -> str:
    """The symbol of an error, for clients that know no codes of MGP."""
    return result["_meta"]["dev.defserve/error"]["error_type"]


async def test_without_discovery_there_are_no_such_methods(tmp_path: Path) -> None:
    async with (
        running(tmp_path, OPEN, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"]) as peer,
    ):
        for method in ("list", "register", "deregister"):
            assert code_of(await peer.ask(f"mgp/discovery/{method}", WANTED)) == -32601


@pytest.mark.parametrize(
    ("rules", "told"), [('commands = ["\'"]', "no command line"), ('hosts = ["a b"]', "not valid")]
)
async def test_rules_that_cannot_be_meant_are_named_before_anything_starts(
    tmp_path: Path, rules: str, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        async with running(tmp_path, f"[kernel.register]\nenabled = true\n{rules}\n"):
            pass


async def test_a_registered_server_that_changes_its_tools_is_held(tmp_path: Path) -> None:
    path = tmp_path / "more.json"
    path.write_text(json.dumps([tool("add")]))
    head = f'[kernel.register]\nenabled = true\ncommands = ["{sys.executable} -I -S {SERVER} {path}"]\n'
    async with governed(tmp_path, tool("look"), kernel=head) as one:
        async with speaking(one.here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer:
            wanted = {"id": "d", "command": sys.executable, "args": ["-I", "-S", str(SERVER), str(path)]}
            assert (await peer.ask("mgp/discovery/register", wanted))["result"]["status"] == "connected"
            draft = tmp_path / "draft.json"
            draft.write_text(json.dumps([tool("add", "Another text.")]))
            draft.replace(path)
            await until(lambda: one.here.kernel.governance.pins.list_held_names("d") == ["add"])


async def test_decisions_about_a_registered_server_end_with_it(tmp_path: Path) -> None:
    head = OPEN.replace("[kernel]\n", '[kernel]\npermissions = "interactive"\n', 1)
    needs = {**WANTED, "mgp": {"permissions_required": ["network.outbound"]}}
    async with running(tmp_path, head, audit=Trail()) as here:
        kernel = here.kernel
        async with speaking(kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as peer:
            await peer.ask("mgp/discovery/register", needs)
            await kernel.access.set_entry("allow", "bob", "dynamic.sums")
            assert (await kernel.permissions.decide_permission("approved", "dynamic.sums"))[0]["decision"] == "approved"
            assert len(await kernel.access.list_entries("dynamic.sums")) == 2
            await peer.ask("mgp/discovery/deregister", {"id": "dynamic.sums"})
            # Another server takes the id.
            await peer.ask("mgp/discovery/register", needs)
            assert len(await kernel.access.list_entries("dynamic.sums")) == 1
            assert (await kernel.permissions.list_needed())[0]["decision"] == "asked"
    assert not (tmp_path / "mgp.state.json").exists()


async def test_tools_of_a_server_on_its_way_out_are_nobodys(tmp_path: Path) -> None:
    head = '[kernel]\nadmins = ["alice"]\n'
    async with running(tmp_path, head, entry("a", more='default_policy = "opt-in"')) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as bob:
            async with here.kernel.members["a"].changing:
                leaving = asyncio.create_task(here.kernel.remove("a", "configuration_change"))
                await until(lambda: "a" not in here.kernel.members)
                assert code_of(await bob.ask("tools/call", {"name": "a_pid", "arguments": {}})) == "access_denied"
            await leaving
