from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Barrier, Thread
from types import ModuleType
from typing import Any, Literal

import pytest

from defserve import Context, Server, UsageError
from defserve.extending import Extension
from tests.raw import ERAS, STATELESS, Json, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


def weather() -> Server:
    """One item of each kind."""
    server = Server("weather", "1")

    @server.tool
    def forecast(city: str) -> str:
        return f"sun in {city}"

    @server.resource("weather://today")
    def today() -> str:
        return "sunny"

    @server.resource("weather://city/{city}")
    def of_city(city: str) -> str:
        return f"rain in {city}"

    @server.resource("note:odd")
    def odd() -> str:
        return "no authority"

    @server.prompt
    def ask(city: str, tone: Literal["dry", "warm"] = "dry") -> str:
        return f"weather in {city}, {tone}"

    @server.completion("ask", "city")
    def cities(value: str) -> list[str]:
        return [city for city in ("Oslo", "Ostrava") if city.startswith(value)]

    @server.completion("weather://city/{city}", "city")
    def more_cities(value: str) -> list[str]:
        return [value + "!"]

    return server


async def inventory(peer: Any) -> dict[str, list[str]]:
    fields = {"tools": "name", "prompts": "name", "resources": "uri"}
    found = {
        kind: [item[key] for item in (await peer.ask(f"{kind}/list"))["result"][kind]] for kind, key in fields.items()
    }
    templates = (await peer.ask("resources/templates/list"))["result"]["resourceTemplates"]
    return {**found, "templates": [item["uriTemplate"] for item in templates]}


NAMES: dict[str | None, dict[str, list[str]]] = {
    None: {
        "tools": ["forecast"],
        "prompts": ["ask"],
        "resources": ["weather://today", "note:odd"],
        "templates": ["weather://city/{city}"],
    },
    "w": {
        "tools": ["w_forecast"],
        "prompts": ["w_ask"],
        "resources": ["weather://w/today", "w+note:odd"],
        "templates": ["weather://w/city/{city}"],
    },
}


@eras
@pytest.mark.parametrize("prefix", NAMES)
async def test_a_mounted_servers_items_are_served_under_the_prefix(version: str, prefix: str | None):
    names, parent = NAMES[prefix], Server("parent", "1")
    parent.mount(weather(), prefix=prefix)
    async with raw(parent, version) as peer:
        assert await inventory(peer) == names
        assert text_of(await peer.call(names["tools"][0], {"city": "Oslo"})) == "sun in Oslo"
        for uri, text in (
            (names["resources"][0], "sunny"),
            (names["resources"][1], "no authority"),
            (names["templates"][0].replace("{city}", "Oslo"), "rain in Oslo"),
        ):
            (contents,) = (await peer.ask("resources/read", {"uri": uri}))["result"]["contents"]
            assert (contents["uri"], contents["text"]) == (uri, text)
        prompt = await peer.ask("prompts/get", {"name": names["prompts"][0], "arguments": {"city": "Oslo"}})
        assert prompt["result"]["messages"][0]["content"]["text"] == "weather in Oslo, dry"


COMPLETIONS: dict[str, tuple[Json, str, list[str]]] = {
    "a function's": ({"type": "ref/prompt", "name": "w_ask"}, "city", ["Oslo", "Ostrava"]),
    "a literal's": ({"type": "ref/prompt", "name": "w_ask"}, "tone", []),
    "a template's": ({"type": "ref/resource", "uri": "weather://w/city/{city}"}, "city", ["Os!"]),
}


@eras
@for_each_row("case", COMPLETIONS)
async def test_completions_come_along(version: str, case: str):
    ref, argument, values = COMPLETIONS[case]
    parent = Server("parent", "1")
    parent.mount(weather(), prefix="w")
    async with raw(parent, version) as peer:
        params = {"ref": ref, "argument": {"name": argument, "value": "Os"}}
        assert (await peer.ask("completion/complete", params))["result"]["completion"]["values"] == values


def clash(parent: Server) -> None:
    parent.add_tool(heard, name="forecast", schema={"type": "object", "required": ["peer"]})


REFUSED: dict[str, tuple[Any, str]] = {
    "a taken name": (lambda parent: (clash(parent), parent.mount(weather())), "tool 'forecast' is already registered"),
    "the same twice": (lambda parent: (parent.mount(weather()), parent.mount(weather())), "already registered"),
    "itself": (lambda parent: parent.mount(parent), "'parent' cannot be mounted on itself"),
    "a circle": (lambda parent: around(parent), "'weather' cannot be mounted on itself"),
    "a prefix of odd letters": (lambda parent: parent.mount(weather(), prefix="a b"), "prefix 'a b'"),
    "after the server has started": (
        lambda parent: (parent.composition, parent.mount(weather())),
        "after the server has started",
    ),
}


def around(parent: Server) -> None:
    child = weather()
    parent.mount(child, prefix="c")
    child.mount(parent, prefix="p")


@for_each_row("case", REFUSED)
def test_what_cannot_be_mounted_is_refused_when_it_is_declared(case: str):
    declare, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        declare(Server("parent", "1"))


class Guard(Extension):
    name = "guard"


async def passing(call: Any, params: Any, next: Any) -> Any:
    return await next(call, params)


STRAYS: dict[str, tuple[Any, str]] = {
    "an extension": (lambda: Server("child", "1", extensions=[Guard()]), "extension 'guard' of 'child'"),
    "middleware": (lambda: wrapped(), r"around\('tools/call'\) of 'child'"),
}


def wrapped() -> Server:
    child = Server("child", "1")
    child.around("tools/call")(passing)
    return child


@for_each_row("case", STRAYS)
def test_a_childs_protection_is_never_left_behind_silently(case: str):
    make, message = STRAYS[case]
    middle, parent = Server("middle", "1"), Server("parent", "1")
    middle.mount(make())
    parent.mount(middle)
    with pytest.raises(UsageError, match=message):
        _ = parent.composition


def test_an_extension_both_servers_have_is_no_stray():
    guard = Guard()
    parent = Server("parent", "1", extensions=[guard])
    parent.mount(Server("child", "1", extensions=[guard]))
    assert parent.composition.extensions.count(guard) == 1


@eras
async def test_mounts_nest(version: str):
    top, middle = Server("top", "1"), Server("middle", "1")
    middle.mount(weather(), prefix="w")
    top.mount(middle, prefix="m")
    async with raw(top, version) as peer:
        assert (await inventory(peer))["tools"] == ["m_w_forecast"]
        assert (await inventory(peer))["templates"] == ["weather://m/w/city/{city}"]
        assert text_of(await peer.call("m_w_forecast", {"city": "Rome"})) == "sun in Rome"


def living(name: str, journal: list[str]) -> Server:
    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[str]:
        journal.append(f"+{name}")
        yield f"value of {name}"
        journal.append(f"-{name}")

    server = Server(name, "1", lifespan=life)

    @server.tool(name=f"{name}_value")
    def value(ctx: Context) -> str:
        return str(ctx.lifespan)

    return server


async def test_children_live_around_their_parent_each_once_and_keep_their_own_lifespan_value():
    journal: list[str] = []
    shared, left, right, top = (living(name, journal) for name in ("shared", "left", "right", "top"))
    left.mount(shared, prefix="l")
    right.mount(shared, prefix="r")
    top.mount(left)
    top.mount(right)
    for _ in range(2):
        journal.clear()
        async with raw(top) as peer:
            assert journal == ["+shared", "+left", "+right", "+top"]
            values = {
                name: text_of(await peer.call(name)) for name in ("l_shared_value", "r_shared_value", "top_value")
            }
            assert list(values.values()) == ["value of shared", "value of shared", "value of top"]
        assert journal[4:] == ["-top", "-right", "-left", "-shared"]
        assert shared.lifespan_value is top.lifespan_value is None


async def heard(peer: Any) -> list[str]:
    return [message["method"] for message in await peer.news()]


@pytest.mark.req("MCP-5.1l")
async def test_a_change_of_the_child_is_told_to_the_clients_of_the_parent():
    child, middle, parent = weather(), Server("middle", "1"), Server("parent", "1")
    middle.mount(child, prefix="c")
    parent.mount(middle)
    async with raw(parent, "2025-11-25") as peer:
        await inventory(peer)
        child.add_tool(heard, name="more", schema={"type": "object", "required": ["peer"]})
        assert await heard(peer) == ["notifications/tools/list_changed"]
        assert (await inventory(peer))["tools"] == ["c_forecast", "c_more"]
        child.remove_tool("forecast")
        child.remove_prompt("ask")
        child.remove_resource("weather://today")
        child.remove_resource("weather://city/{city}")
        kinds = ("prompts", "resources", "tools")
        assert await heard(peer) == [f"notifications/{kind}/list_changed" for kind in kinds]
        assert await inventory(peer) == {
            "tools": ["c_more"],
            "prompts": [],
            "resources": ["c+note:odd"],
            "templates": [],
        }


async def test_a_replaced_tool_of_the_child_is_replaced_in_the_parent():
    child, parent = weather(), Server("parent", "1")
    parent.mount(child, prefix="c")

    def forecast(city: str) -> str:
        return f"snow in {city}"

    child.add_tool(forecast, replace=True)
    async with raw(parent) as peer:
        assert text_of(await peer.call("c_forecast", {"city": "Oslo"})) == "snow in Oslo"


@eras
async def test_updates_of_the_childs_resources_are_forwarded_under_their_new_names(version: str):
    child, parent = weather(), Server("parent", "1")
    parent.mount(child, prefix="w")
    async with raw(parent, version) as peer:
        if version == STATELESS:
            filter = {"resourceSubscriptions": ["weather://w/today", "weather://w/city/Oslo"]}
            await peer.begin("subscriptions/listen", {"notifications": filter})
        else:
            for uri in ("weather://w/today", "weather://w/city/Oslo"):
                assert (await peer.ask("resources/subscribe", {"uri": uri}))["result"] == {}
        await peer.news()
        for uri in ("weather://today", "weather://city/Oslo", "weather://city/Rome"):
            child.resource_updated(uri)
        told = await peer.news()
        assert [message["method"] for message in told] == ["notifications/resources/updated"] * 2
        assert [message["params"]["uri"] for message in told] == ["weather://w/today", "weather://w/city/Oslo"]


def test_tools_come_and_go_in_many_threads_through_every_mount():
    grandchild, child, parent = (Server(name, "1") for name in ("grandchild", "child", "parent"))
    child.mount(grandchild, prefix="g")
    parent.mount(child, prefix="c")
    servers, start, errors = (grandchild, child, parent), Barrier(6), list[BaseException]()

    def nothing() -> str:
        return ""

    def work(number: int) -> None:
        server = servers[number % 3]
        start.wait()
        try:
            for count in range(30):
                server.add_tool(nothing, name=f"t{number}x{count}")
                assert server.mcp.tools.registry.get(f"t{number}x{count}")
                if count % 3:
                    server.remove_tool(f"t{number}x{count}")
        except BaseException as error:
            errors.append(error)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert errors == []
    assert [len(server.mcp.tools.registry) for server in servers] == [20, 40, 60]


@for_each_row(
    "given, problem, fix",
    [
        (["npx", "-y", "x", "--key=hush"], "server.mount takes no list", 'write server.mount(Command("npx", …))'),
        (("uvx",), "server.mount takes no tuple", 'write server.mount(Command("uvx"))'),
        ({"mcpServers": {}}, "server.mount takes no dict", "mount each of its servers: server.mount(Command("),
        ({"command": "npx"}, "server.mount takes no dict", "write server.mount(Command("),
        (Path("other.py"), "server.mount takes no PosixPath", 'write server.mount(Command("python", "other.py"))'),
        (Server, "server.mount takes no class", "give an object of it"),
        (3, "server.mount takes no int", 'give a Server, Command("npx", "-y", "some-server"), Remote("https://…")'),
        ([], "server.mount takes no list", "give a Server"),
    ],
)
def test_what_cannot_be_mounted_is_refused_with_what_to_write(given: Any, problem: str, fix: str):
    with pytest.raises(UsageError) as refused:
        Server("t").mount(given)
    assert refused.value.problem == problem
    assert refused.value.fix.startswith(fix)
    assert refused.value.where.startswith("tests/server/test_mounting.py:")
    assert "hush" not in str(refused.value)


def test_a_module_is_refused_with_the_name_of_its_server():
    module = ModuleType("weather")
    module.app = Server("weather")  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"server.mount takes no module\n  fix: .*server.mount\(weather.app\)"):
        Server("t").mount(module)  # type: ignore[arg-type]
