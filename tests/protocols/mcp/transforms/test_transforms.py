"""Tools changed where a server is mounted or imported: what callers see, what the tool gets, and what nobody can do."""

from __future__ import annotations

import runpy
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Command, PublicUrl, Server, UsageError
from defserve.extending import Argument, Transform
from tests.forking.spawning import quick_arguments
from tests.openapi.apis import RecordingApi, operation, parameter
from tests.protocols.mgp.callers import Trail
from tests.proxying.talkers import START
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

NOTES = Path(__file__).with_name("notes.py")


def child() -> Server:
    return runpy.run_path(str(NOTES))["server"]


def mounted(transform: Transform) -> Server:
    server = Server("desk")
    server.mount(child(), prefix="n", transform=transform)
    return server


def remote(transform: Transform) -> Server:
    server = Server("desk")
    server.mount(Command(sys.executable, *quick_arguments(NOTES)), prefix="n", transform=transform)
    return server


def imported(transform: Transform) -> Server:
    """The same tools as operations of an API, which answers as they do."""
    import httpx2

    def answer(request: httpx2.Request) -> httpx2.Response:
        p = request.url.params
        return httpx2.Response(200, text=f"{p.get('query')} in {p.get('folder', 'all')}, {p.get('limit', '10')}")

    query = parameter("query", required=True)
    paths = {
        "/n/search": {
            "get": operation(
                query, parameter("folder"), parameter("limit", kind="integer"), operationId="search", tags=["public"]
            )
        },
        "/n/wipe": {"delete": operation(parameter("folder", required=True), operationId="wipe", tags=["admin"])},
        "/n/ping": {"get": operation(operationId="ping")},
    }
    parent = Server("desk")
    parent.mount(RecordingApi(answer).server(paths, transform=transform), prefix="n")
    return parent


@asynccontextmanager
async def opened(server: Server) -> AsyncIterator[Any]:
    """A client of a server whose backends are all connected, however long they take."""
    async with server.connect() as client:
        if any(extension.name == "proxying" for extension in server.extensions):
            for backend in server.mounts.backends.values():
                await backend.ready(50)
        yield client


WAYS: list[Callable[[Transform], Server]] = [mounted, remote, imported]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@every_way
async def test_names_descriptions_and_arguments_are_changed(way: Callable[[Transform], Server]) -> None:
    transform = Transform(
        rename={"search": "find"},
        hide=["wipe"],
        describe={"search": "Find notes of this project."},
        arguments={
            "search": {
                "folder": Argument(fixed="project"),
                "query": Argument(name="text", description="What to look for."),
                "limit": Argument(default=3),
            }
        },
    )
    async with opened(way(transform)) as client:
        listed = {tool["name"]: tool for tool in await client.tools()}
        assert sorted(listed) == ["n_find", "n_ping"]
        assert listed["n_find"]["description"] == "Find notes of this project."
        schema = listed["n_find"]["inputSchema"]
        assert list(schema["properties"]) == ["text", "limit"] and schema["required"] == ["text"]
        assert schema["properties"]["text"]["description"] == "What to look for."
        assert schema["properties"]["limit"]["default"] == 3
        assert await client.call("n_find", text="tea") == "tea in project, 3"
        assert await client.call("n_find", text="tea", limit=5) == "tea in project, 5"
        for sent in ({"text": "t", "folder": "all"}, {"query": "t"}, {"text": "t", "query": "t"}):
            result = await client.call_raw("n_find", sent)
            assert result["isError"] and "unknown argument" in result["content"][0]["text"], result
        wrong = await client.call_raw("n_find", {"text": "t", "limit": "many"})
        assert wrong["isError"] and "limit" in wrong["content"][0]["text"]


@every_way
async def test_what_is_hidden_cannot_be_called(way: Callable[[Transform], Server]) -> None:
    async with opened(way(Transform(hide=["tag:admin"]))) as client:
        assert sorted(tool["name"] for tool in await client.tools()) == ["n_ping", "n_search"]
        for name in ("n_wipe", "wipe"):
            with pytest.raises(Exception, match="Unknown tool"):
                await client.call_raw(name, {"folder": "all"})
    async with opened(way(Transform(only=["tag:public", "pi*"], hide=["ping"]))) as client:
        assert [tool["name"] for tool in await client.tools()] == ["n_search"]


@every_way
async def test_marks_and_hints_stay_with_a_renamed_tool(way: Callable[[Transform], Server]) -> None:
    async with opened(way(Transform(rename={"wipe": "tidy"}))) as client:
        listed = {tool["name"]: tool for tool in await client.tools()}
        assert listed["n_tidy"]["annotations"]["destructiveHint"] is True


async def test_the_audit_has_both_names() -> None:
    trail = Trail()
    server = Server("desk", audit=trail)
    server.mount(child(), transform=Transform(rename={"ping": "alive"}))
    async with server.connect() as client:
        assert await client.call("alive") == "pong"
        assert await client.call("search", query="t") == "t in all, 10"
    names = {event["target"].get("tool_name"): event["details"].get("original_name") for event in trail.events}
    assert names["alive"] == "ping" and names["search"] is None


async def test_guards_judge_what_the_tool_gets() -> None:
    inner = Server("web")

    @inner.tool
    def fetch(url: PublicUrl) -> str:
        return str(url)

    for change, sent in (
        (Argument(name="address"), {"address": "http://169.254.169.254/"}),
        (Argument(default="http://127.0.0.1/"), {}),
        (Argument(fixed="http://10.0.0.1/"), {}),
    ):
        server = Server("desk")
        server.mount(inner, transform=Transform(rename={"fetch": "get"}, arguments={"fetch": {"url": change}}))
        async with server.connect() as client:
            result = await client.call_raw("get", sent)
            assert result["isError"] and "Blocked" in str(result), result


@pytest.mark.slow
async def test_a_mount_of_a_mount_keeps_what_is_fixed() -> None:
    middle = Server("middle")
    middle.mount(
        Command(sys.executable, *quick_arguments(NOTES)),
        transform=Transform(arguments={"search": {"folder": Argument(fixed="project")}}),
    )
    async with opened(middle) as client:
        assert await client.call("search", query="t") == "t in project, 10"
        tool = middle.mcp.tools.registry.get("search")
        assert tool is not None
        again = tool.copy_as("other")
        with pytest.raises(Exception, match="unknown argument"):
            again.function.arguments.validate({"query": "t", "folder": "all"})
        assert again.function.arguments.validate({"query": "t"}) == {"query": "t", "folder": "project"}


async def test_tools_that_come_later_are_changed_too() -> None:
    inner = Server("inner")
    server = Server("desk")
    server.mount(inner, transform=Transform(hide=["secret_*"], arguments={"*_note": {"folder": Argument(fixed="x")}}))

    def secret_one() -> str:
        return "secret"

    def add_note(folder: str) -> str:
        return folder

    async with server.connect() as client:
        inner.add_tool(secret_one)
        inner.add_tool(add_note)
        await until(lambda: "add_note" in server.mcp.tools.registry)
        assert [tool["name"] for tool in await client.tools()] == ["add_note"]
        assert await client.call("add_note") == "x"


@for_each_row(
    "transform problem",
    [
        (Transform(rename={"serch": "find"}), "names a tool 'serch'"),
        (Transform(hide=["nothing"]), "names a tool 'nothing'"),
    ],
)
def test_a_tool_that_there_is_not_is_an_error_when_serving_begins(transform: Transform, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        _ = mounted(transform).composition
    with pytest.raises(UsageError, match=problem):
        imported(transform)


@for_each_row(
    "make problem",
    [
        (lambda: Transform(rename={"a": "not a name"}), "is not made of"),
        (lambda: Transform(arguments={"a": {"b": "c"}}), "is given 'c'"),  # type: ignore[dict-item]
        (lambda: Argument(name="a b"), "is not made of"),
        (lambda: Argument(fixed=1, default=2), "a fixed argument"),
        (lambda: mounted(Transform(arguments={"search": {"quer": Argument(fixed=1)}})), "no argument 'quer'"),
        (lambda: mounted(Transform(arguments={"search": {"query": Argument(name="limit")}})), "two arguments 'limit'"),
        (lambda: mounted(Transform(rename={"search": "ping"})), "already registered"),
    ],
)
def test_what_cannot_be_is_an_error_at_once(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make()


async def test_a_value_that_does_not_fit_is_the_operators_mistake() -> None:
    async with mounted(Transform(arguments={"search": {"limit": Argument(fixed="many")}})).connect() as client:
        text = (await client.call_raw("n_search", {"query": "t"}))["content"][0]["text"]
        assert text == "a value that this server sets does not fit: tell its operator"


@for_each_row("required", ["None", "5", "'query'", "{'query': 1}"])
async def test_a_list_of_required_arguments_that_is_none_does_not_break_the_list_of_tools(required: str) -> None:
    body = START.replace(
        '{"type": "object"}', f'{{"type": "object", "properties": {{"q": {{}}}}, "required": {required}}}'
    )
    front = Server("front")
    transform = Transform(arguments={"talk": {"q": Argument(name="query", default=1)}})
    command = Command(sys.executable, "-I", "-S", "-c", f"{body}\nfor call in told(): pass", version="handshake")
    front.mount(command, prefix="b", transform=transform)
    async with front.connect() as client:
        (tool,) = await client.tools()
        assert tool["inputSchema"] == {"type": "object", "properties": {"query": {"default": 1}}}
