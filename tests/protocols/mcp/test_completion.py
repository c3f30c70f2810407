from __future__ import annotations

import ast
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

import defserve
from defserve import PublicUrl, Server, ShellCommand, UsageError, Within
from defserve.errors import PeerError
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def dispatcher() -> Server:
    server = Server("s", "1")

    @server.prompt
    def route(start: str, goal: Annotated[str, Field(alias="to")], express: bool = False) -> str:
        return f"{start} {goal} {express}"

    return server


@pytest.mark.req("MCP-5.7")
async def test_at_most_a_hundred_values_travel_and_the_rest_is_counted():
    server = dispatcher()

    @server.completion("route", "start")
    def stops(value: str) -> list[str]:
        return [f"{value}{number}" for number in range(250)]

    async with server.connect() as client:
        found = await client.complete("route", argument="start", value="s")
        assert (len(found["values"]), found["values"][-1], found["total"], found["hasMore"]) == (100, "s99", 250, True)


async def test_one_text_is_one_value_and_none_is_none():
    server = dispatcher()

    @server.completion("route", "start")
    def only(value: str) -> Any:
        return "here" if value else None

    async with server.connect() as client:
        assert (await client.complete("route", argument="start", value="h"))["values"] == ["here"]
        assert (await client.complete("route", argument="start", value=""))["values"] == []


async def test_values_that_are_yielded_are_suggested():
    server = dispatcher()

    @server.completion("route", "start")
    def blocking(value: str) -> Iterator[str]:
        yield f"{value}1"
        yield f"{value}2"

    @server.completion("route", "to")
    async def waiting(value: str) -> AsyncIterator[str]:
        yield f"{value}3"

    async with server.connect() as client:
        assert (await client.complete("route", argument="start", value="s"))["values"] == ["s1", "s2"]
        assert (await client.complete("route", argument="to", value="s"))["values"] == ["s3"]


async def test_an_argument_is_completed_under_the_name_it_is_listed_with():
    server = dispatcher()

    @server.completion("route", "to")
    async def goals(value: str, start: str | None) -> list[str]:
        return [f"beyond {start}"]

    async with server.connect() as client:
        (route,) = await client.prompts()
        assert [argument["name"] for argument in route["arguments"]] == ["start", "to", "express"]
        found = await client.complete("route", argument="to", value="", context={"start": "A"})
        assert found["values"] == ["beyond A"]
        assert (await client.complete("route", argument="express", value="t"))["values"] == ["true"]
        assert (await client.complete("route", argument="start", value="t"))["values"] == []


@for_each_row(
    "params",
    [
        {},
        {"ref": "route", "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/tool", "name": "route"}, "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "rout"}, "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "a://{b}"}, "argument": {"name": "b", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "route"}, "argument": {"name": "goal", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "route"}, "argument": {"name": "to"}},
        {"ref": {"type": "ref/prompt", "name": "route"}, "argument": {"name": "to", "value": ""}, "context": []},
    ],
)
async def test_what_cannot_be_completed_is_a_broken_request(params: dict[str, Any]):
    async with dispatcher().connect() as client:
        with pytest.raises(PeerError) as refused:
            await client.request("completion/complete", params)
        assert refused.value.code == -32602


@for_each_row(
    ("target", "argument", "problem"),
    [
        ("rout", "to", "'rout' is no prompt or resource template"),
        ("route", "goal", "'route' has no argument 'goal'"),
        ("a://{b}", "b", "is no prompt or resource template"),
    ],
)
def test_a_completion_of_something_undeclared_is_refused_before_serving(target: str, argument: str, problem: str):
    server = dispatcher()

    @server.completion(target, argument)
    def nothing(value: str) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        return []

    with pytest.raises(UsageError, match=problem) as refused:
        _ = server.composition
    assert "test_completion.py" in str(refused.value)


PLACES = "/srv/defserve-places"


@for_each_row(
    "filled",
    [
        {"folder": "/etc"},
        {"folder": "../../etc"},
        {"folder": {"a": [1]}},
        {"url": "http://169.254.169.254/"},
        {"command": "git status; rm -rf /"},
        {"count": "many"},
        {"count": [1]},
    ],
)
async def test_what_a_completion_takes_is_validated_and_judged_like_any_argument(filled: dict[str, Any]):
    server, seen = Server("s", "1"), list[dict[str, Any]]()

    @server.prompt
    def review(folder: str, url: str, command: str, count: str, file: str) -> str:
        return file

    @server.completion("review", "file")
    def files(
        value: str,
        folder: Annotated[Path, Within(PLACES)],
        url: PublicUrl | None = None,
        command: ShellCommand | None = None,
        count: int = 1,
    ) -> list[str]:
        seen.append({"folder": folder, "url": url, "command": command, "count": count})
        return ["found"]

    asked = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "file", "value": "a"}}
    async with server.connect() as client:
        refused = await client.request("completion/complete", {**asked, "context": {"arguments": filled}})
        assert (refused["completion"]["values"], seen) == ([], [])
        good = {"folder": "a", "count": "3"}
        found = await client.request("completion/complete", {**asked, "context": {"arguments": good}})
        assert found["completion"]["values"] == ["found"]
        assert seen == [{"folder": Path(PLACES, "a"), "url": None, "command": None, "count": 3}]


async def test_a_completion_gets_its_default_or_none_for_what_is_not_filled_in():
    server = dispatcher()

    @server.completion("route", "to")
    def goals(value: str, start: str, express: bool = True) -> list[str]:
        return [f"{start} {express}"]

    async with server.connect() as client:
        assert (await client.complete("route", argument="to", value=""))["values"] == ["None True"]


# Functions of channels get what their section has validated (`ChannelVerbFunction.validated`), or values of our own.
TRUSTED = "protocols/mcpl/channels/"


def test_every_function_of_an_author_runs_with_validated_arguments():
    root, found = Path(defserve.__file__).parent, list[str]()
    for path in root.rglob("*.py"):
        text, place = path.read_text(), path.relative_to(root).as_posix()
        if "function.run(call" in text and not place.startswith(TRUSTED):
            found += [f"{place}: {given}" for given in _unvalidated(ast.parse(text))]
    assert found == []


def _unvalidated(module: ast.Module) -> Iterator[str]:
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = list(ast.walk(function))
        assigned = [(target, node.value) for node in inside if isinstance(node, ast.Assign) for target in node.targets]
        validated = {ast.unparse(target) for target, value in assigned if _is_validation(value)}
        validated -= {ast.unparse(target) for target, value in assigned if not _is_validation(value)}
        for node in inside:
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("function.run"):
                given = node.args[1]
                is_own = isinstance(given, ast.Dict)  # written here: nothing of it is a caller's
                if not (is_own or _is_validation(given) or ast.unparse(given) in validated):
                    yield ast.unparse(given)


def _is_validation(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".validate")
