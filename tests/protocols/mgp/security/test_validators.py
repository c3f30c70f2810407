"""MGP §4.5: the standard validators by name, the author's own beside them, and guards that no type lets bypass."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NewType, TypedDict

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, SecretStr, StringConstraints
from typing_extensions import TypeAliasType

from defserve import (
    Code,
    PublicUrl,
    Security,
    Server,
    Shell,
    ShellCommand,
    Url,
    UsageError,
    Within,
    moderate,
    validator,
)
from defserve.guard import Verdict
from defserve.guard import network as egress
from defserve.guard.verdict import Violation
from tests.raw import ERAS, Json, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

Words = NewType("Words", str)
Line = Annotated[str, Field(max_length=100)]
AliasedUrl = TypeAliasType("AliasedUrl", PublicUrl)


class Task(BaseModel):
    command: ShellCommand


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""


class Other(BaseModel):
    kind: int


class Order(TypedDict):
    what: str


@dataclass(slots=True)
class Slotted:
    url: PublicUrl


NamedUrl = NewType("NamedUrl", PublicUrl)


class OwnUrl(PublicUrl): ...


class Link(NamedTuple):
    url: PublicUrl


class Two(BaseModel):
    """What the first may reach, the second may not."""

    inner: Annotated[PublicUrl, Url(private=("inside.example.com:8443",))]
    outer: PublicUrl


class Pair(NamedTuple):
    left: str
    right: str


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names resolve as the tests want: one is public, one has an address inside."""

    async def system(host: str, port: int) -> list[str]:
        return {"public.example.com": ["93.184.216.34"], "inside.example.com": ["93.184.216.34", "10.0.0.1"]}[host]

    monkeypatch.setattr(egress, "resolve_with_system", system)


def body(result: Json) -> Json:
    assert result.get("isError") is True, result
    return result["_meta"]["dev.defserve/error"]


async def outcome(server: Server, arguments: Json, tool: str = "work", version: str = ERAS[0]) -> str | list[str]:
    """What the tool gave, or what was found in its arguments."""
    async with raw(server, version) as peer:
        result = await peer.call(tool, arguments)
    return body(result)["violations"] if result.get("isError") else text_of(result)


def serving(function: Callable[..., Any], *, validator: Any = None) -> Server:
    server = Server("x", "1", confirm="never")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        security = Security("dangerous", ["shell.execute"], validator=validator)
        server.tool(name="work", security=security)(function)
    return server


# -- the standard ones, by name --------------------------------------------------------------------------


@pytest.mark.req("MGP-4.5")
@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize(
    ("name", "permission", "parameter", "good", "bad"),
    [
        ("sandbox", "shell.execute", "command", "git status", "git status; id"),
        ("readonly", "filesystem.read", "command", "ls -l", "touch x"),
        ("network_restricted", "network.outbound", "url", "https://public.example.com/", "http://10.0.0.1/"),
        ("code_safety", "code_execution", "code", "1 + 1", "import os"),
        ("none", "shell.execute", "command", "git status; id", None),
    ],
)
async def test_a_standard_validator_looks_at_the_parameter_it_is_meant_for(
    name: str, permission: str, parameter: str, good: str, bad: str | None, version: str
):
    server = Server("x", "1", confirm="never")

    @server.tool
    @moderate(permission, validator=name)
    def work(command: str = "", url: str = "", code: str = "", note: str = "") -> str:
        return "ran"

    assert await outcome(server, {parameter: good, "note": "rm -rf /; import os"}, version=version) == "ran"
    if bad is not None:
        assert await outcome(server, {parameter: bad}, version=version) != "ran"


async def test_a_validator_without_a_parameter_by_its_name_looks_at_every_text():
    def work(first: str, second: list[str]) -> str:
        return "ran"

    server = serving(work, validator="sandbox")
    assert await outcome(server, {"first": "ls", "second": ["pwd"]}) == "ran"
    assert await outcome(server, {"first": "ls", "second": ["pwd", "id; id"]}) != "ran"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[str], ["ls", "id; id"]),
        (dict[str, list[str]], {"a": ["id; id"]}),
        (dict[str, str], {"id; id": "ls"}),
        (tuple[str, ...], ["id; id"]),
        (set[str], ["id; id"]),
        (Pair, ["ls", "id; id"]),
        (Order, {"what": "id; id"}),
        (Other | str, "id; id"),
        (Loose, {"more": "id; id"}),
        (bytes, "id; id"),
        (SecretStr, "id; id"),
        (Path, "id; id"),
        (Words, "id; id"),
        (Any, {"deep": [[["id; id"]]]}),
    ],
)
async def test_a_text_is_judged_wherever_it_is_nested_and_whatever_its_type(annotation: Any, value: Any):
    def work(command: Any) -> str:
        return "ran"

    work.__annotations__["command"] = annotation
    assert await outcome(serving(work, validator="sandbox"), {"command": value}) != "ran"


async def test_a_url_of_pydantics_is_judged_like_a_text():
    def work(url: HttpUrl) -> str:
        return "ran"

    server = serving(work, validator="network_restricted")
    assert await outcome(server, {"url": "https://public.example.com/"}) == "ran"
    assert await outcome(server, {"url": "http://127.0.0.1/"}) != "ran"


async def test_a_url_judged_by_name_is_resolved_too():
    def work(url: str) -> str:
        return "ran"

    server = serving(work, validator="network_restricted")
    assert await outcome(server, {"url": "https://inside.example.com/"}) == ["Blocked address: '10.0.0.1' (private)"]


async def test_a_validator_that_is_named_looks_at_what_stands_beside_a_guarded_type():
    def work(command: ShellCommand, script: str = "", note: str = "") -> str:
        return "ran"

    named, derived = serving(work, validator="sandbox"), serving(work)
    arguments = {"command": "ls", "note": "any; thing"}
    assert await outcome(named, arguments) == "ran"
    assert await outcome(named, arguments | {"script": "id; id"}) == ["Blocked shell operator: ';'"]
    assert await outcome(derived, arguments | {"script": "id; id"}) == "ran"


def test_a_validator_with_nothing_to_look_at_is_refused():
    def work() -> str:
        return "ran"

    with pytest.raises(UsageError, match="validator='sandbox' has no argument to look at"):
        serving(work, validator="sandbox")


# -- the author's own ------------------------------------------------------------------------------------


@validator
def short(command: str) -> str | None:
    return "too long" if len(command) > 12 else None


@validator(name="com.example.quiet")
async def quiet(**arguments: Any) -> Verdict:
    await asyncio.sleep(0)
    loud = [name for name, value in arguments.items() if str(value).isupper()]
    return Verdict(not loud, tuple(Violation("loud", f"{name} is loud") for name in loud), hints={"form": "lower case"})


@validator
def flat(command: str, depth: int = 0) -> bool:
    return depth == 0


def work(command: str, depth: int = 1) -> str:
    return "ran"


@pytest.mark.req("GGEN-P4-2")
@pytest.mark.parametrize(
    ("validators", "arguments", "found"),
    [
        ([short], {"command": "ls"}, "ran"),
        ([short], {"command": "ls -l a/b/c/d/e"}, ["too long"]),
        ([quiet], {"command": "LS"}, ["command is loud"]),
        ([flat], {"command": "ls", "depth": 0}, "ran"),
        ([flat], {"command": "ls"}, ["not allowed"]),
        (["sandbox", short], {"command": "ls -l"}, "ran"),
        (["sandbox", short], {"command": "ls;id"}, ["Blocked shell operator: ';'"]),
        (["sandbox", short], {"command": "ls -l a/b/c/d/e"}, ["too long"]),
        ([short, quiet, flat], {"command": "ls", "depth": 0}, "ran"),
        ((short, quiet), {"command": "LS"}, ["command is loud"]),
        (short, {"command": "ls -l a/b/c/d/e"}, ["too long"]),
    ],
)
async def test_an_authors_validators_compose_with_the_standard_ones(validators: Any, arguments: Json, found: Any):
    assert await outcome(serving(work, validator=validators), arguments) == found


async def test_the_refusal_carries_the_hints_of_the_validator_and_leaves_out_its_name():
    async with raw(serving(work, validator=[quiet])) as peer:
        result = await peer.call("work", {"command": "LS"})
    assert text_of(result) == "Call refused: command is loud. Write lower case."
    assert body(result)["hints"] == {"form": "lower case"}


async def test_an_authors_validator_composes_with_a_guarded_type():
    @validator
    def no_git(command: ShellCommand) -> bool:
        return command.argv[0] != "git"

    def work(command: ShellCommand) -> str:
        return "ran"

    server = serving(work, validator=[no_git])
    assert await outcome(server, {"command": "ls"}) == "ran"
    assert await outcome(server, {"command": "git status"}) == ["not allowed"]
    assert await outcome(server, {"command": "ls; id"}) == ["Blocked shell operator: ';'"]


async def test_a_validator_that_breaks_refuses_the_call_and_shows_nothing(caplog: pytest.LogCaptureFixture):
    @validator
    def broken(command: str) -> None:
        raise RuntimeError("password=hunter2")

    async with raw(serving(work, validator=[broken])) as peer:
        result = await peer.call("work", {"command": "ls"})
    assert result["isError"] is True
    assert "internal error" in text_of(result)
    assert "hunter2" not in json.dumps(result)


def test_a_validator_that_looks_at_an_argument_the_tool_does_not_have_is_refused():
    def other(text: str) -> str:
        return "ran"

    with pytest.raises(UsageError, match="has no argument 'command', which its validator 'short' looks at"):
        serving(other, validator=[short])


def test_what_is_no_function_is_no_validator():
    with pytest.raises(UsageError, match="@validator marks functions"):
        validator("short")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_validator_is_still_a_function():
    assert short("a" * 20) == "too long"


# -- guards in types -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotation",
    [
        ShellCommand | str,
        str | ShellCommand,
        str | Annotated[ShellCommand, Shell()],
        PublicUrl | str | None,
        OwnUrl | str,
        NamedUrl | str,
        PublicUrl | Any,
        ShellCommand | object,
        Annotated[str, Code()] | str,
        Annotated[Path, Within("/srv")] | Path,
        Annotated[Path, Within("/srv")] | str,
        ShellCommand | bytes,
        ShellCommand | Path,
        ShellCommand | Line,
        ShellCommand | Words,
        list[ShellCommand] | list[str],
        list[ShellCommand | str],
        dict[str, PublicUrl | str],
        Annotated[ShellCommand | str, Field(description="either")],
        Task | dict[str, Any],
        list[Task] | list[dict[str, Any]],
    ],
    ids=str,
)
def test_a_guarded_type_beside_one_that_takes_what_it_refuses_is_refused(annotation: Any):
    def work(command: Any) -> str:
        return "ran"

    work.__annotations__["command"] = annotation
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        serving(work)


@pytest.mark.parametrize(
    "annotation",
    [ShellCommand | None, ShellCommand | int, Task | Other, list[ShellCommand] | ShellCommand, PublicUrl | list[int]],
    ids=str,
)
def test_a_guarded_type_beside_one_that_takes_something_else_is_fine(annotation: Any):
    def work(command: Any) -> str:
        return "ran"

    work.__annotations__["command"] = annotation
    assert serving(work)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (PublicUrl, "https://inside.example.com/"),
        (AliasedUrl, "https://inside.example.com/"),
        (list[PublicUrl], ["https://public.example.com/", "https://inside.example.com/"]),
        (tuple[PublicUrl, ...], ["https://inside.example.com/"]),
        (dict[PublicUrl, int], {"https://inside.example.com/": 1}),
        (Slotted, {"url": "https://inside.example.com/"}),
        (Annotated[PublicUrl, Url(hosts=("inside.example.com",))], "https://inside.example.com/"),
        (NamedUrl, "https://inside.example.com/"),
        (NewType("Renamed", NamedUrl), "https://inside.example.com/"),
        (OwnUrl, "https://inside.example.com/"),
        (Link, ["https://inside.example.com/"]),
        (deque[PublicUrl], ["https://inside.example.com/"]),
        (Annotated[PublicUrl, AfterValidator(str.strip)], "https://inside.example.com/"),
        (Annotated[PublicUrl, StringConstraints(strip_whitespace=True)], "https://inside.example.com/"),
        (Two, {"inner": "https://inside.example.com:8443/", "outer": "https://inside.example.com/"}),
    ],
    ids=str,
)
async def test_every_url_is_resolved_before_the_call_wherever_it_is(annotation: Any, value: Any):
    def work(url: Any) -> str:
        return "ran"

    work.__annotations__["url"] = annotation
    assert await outcome(serving(work), {"url": value}) == ["Blocked address: '10.0.0.1' (private)"]


def test_guards_in_many_models_are_all_found():
    # Annotations made while reading one model must not be taken for those of the next.
    from pydantic import create_model

    from defserve.protocols.mgp.terms import get_tool_security

    inner = [create_model(f"M{i}", a=(Annotated[str, Field(max_length=i + 1)], ...)) for i in range(30)]
    last = create_model("Last", code=(Annotated[str, Code(level="strict")], ...))
    fields: Any = {model.__name__: (model, ...) for model in [*inner, last]}
    outer: Any = create_model("Outer", **fields)

    def work(given: Any) -> str:
        return "ran"

    work.__annotations__["given"] = outer
    (tool,) = serving(work).mgp.tools
    found = get_tool_security(tool)
    assert found is not None
    assert found.security.to_wire()["validator"] == "code_safety"


# -- how many names one call can have looked up ------------------------------------------------------------


def fetch_noted(urls: list[PublicUrl]) -> str:
    return str(len(urls))


def fetch_named(urls: list[str]) -> str:
    return str(len(urls))


@for_each_row("function, validator", [(fetch_noted, None), (fetch_named, "network_restricted")])
async def test_a_call_looks_each_host_up_once_and_a_hundred_at_most(
    function: Callable[..., Any], validator: str | None, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    async def system(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"]

    monkeypatch.setattr(egress, "resolve_with_system", system)
    server = serving(function, validator=validator)
    pages = [f"https://h{number % 100}.example.com/{number}" for number in range(1000)]
    assert await outcome(server, {"urls": pages}) == "1000"
    assert len(asked) == 100
    found = await outcome(server, {"urls": [*pages, "https://one.more.example.com/"]})
    assert found == ["they name more than 100 hosts in one call"]
    assert len(asked) == 100
