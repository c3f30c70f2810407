"""The ten numbered errors: a code, a retry flag, and suggestions made from what was violated."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from defserve import Server, ToolError
from defserve.errors import Declined, Problem, Refused, Rejected
from defserve.protocols.mcp import numbered_errors
from defserve.protocols.mcp import numbered_errors as numbered
from defserve.protocols.mcp.numbered_errors import NumberedErrors
from tests.asgi import peer
from tests.raw import HANDSHAKE, STATELESS, Json, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

LATEST = HANDSHAKE[-1]
LONG = "Length must be at least 2 characters"
DOCS = "https://docs.example.com/errors"


class Point(BaseModel):
    x: int


def served(error: BaseException | None = None) -> Server:
    server = Server("numbered", "1", extensions=[NumberedErrors(documentation_url=DOCS)])

    @server.tool
    def quote(
        ticker: Annotated[str, Field(pattern=r"^[A-Z]{1,5}$")] = "A",
        days: Annotated[int, Field(ge=1, le=30)] = 1,
        unit: Literal["usd", "eur"] = "usd",
        at: Point | None = None,
    ) -> str:
        return ticker

    @server.tool
    def fails() -> str:
        if error is not None:
            raise error
        return "fine"

    @server.tool(timeout=0.01)
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    @server.prompt
    def ask(count: int) -> str:
        return "?"

    @server.resource("x://fails")
    def resource() -> str:
        assert error is not None
        raise error

    return server


async def refused(
    tool: str, arguments: Json | None = None, *, error: BaseException | None = None, version: str = LATEST
) -> Json:
    async with raw(served(error), version) as peer:
        return (await peer.ask("tools/call", {"name": tool, "arguments": arguments or {}}))["error"]


@pytest.mark.req("GGEN-ERR-1")
def test_ten_types_with_their_codes_and_retry_flags() -> None:
    assert {kind.error_type: (kind.code, kind.retryable) for kind in numbered.ERROR_NUMBERS} == {
        "ParseError": (-32700, False),
        "InvalidRequest": (-32600, False),
        "MethodNotFound": (-32601, False),
        "InvalidParams": (-32602, False),
        "InternalError": (-32603, True),
        "ValidationError": (-32001, False),
        "ToolNotFound": (-32002, False),
        "ToolExecution": (-32003, True),
        "AuthenticationError": (-32004, False),
        "AuthorizationError": (-32005, False),
    }


@pytest.mark.req("GGEN-ERR-2")
@for_each_row("version", HANDSHAKE)
async def test_bad_arguments_are_a_validation_error(version: str) -> None:
    said = await refused("quote", {"ticker": "invalid123"}, version=version)
    trace = said["data"].pop("trace_id")
    assert trace.startswith("req-")
    assert said == {
        "code": -32001,
        "message": "Validation failed",
        "data": {
            "error_type": "ValidationError",
            "field": "ticker",
            "reason": 'must match the pattern ^[A-Z]{1,5}$, got "invalid123"',
            "problems": [{"field": "ticker", "reason": 'must match the pattern ^[A-Z]{1,5}$, got "invalid123"'}],
            "suggestions": ["Use uppercase letters only", "Length must be 1-5 characters"],
            "documentation_url": DOCS,
            "retryable": False,
        },
    }


@pytest.mark.req("GGEN-ERR-4")
@for_each_row(
    ("arguments", "expected"),
    [
        ({"days": 0}, ["Use a value at least 1"]),
        ({"days": 31}, ["Use a value at most 30"]),
        ({"days": "two"}, ["Use a value of type integer"]),
        ({"unit": "yen"}, ['Use "usd" or "eur"']),
        ({"at": {}}, ["Provide at.x"]),
        ({"tickr": "A"}, ['Use "ticker"']),
        ({"days": 0, "unit": "yen"}, ["Use a value at least 1", 'Use "usd" or "eur"']),
    ],
)
async def test_suggestions_follow_from_the_violated_constraint(arguments: Json, expected: list[str]) -> None:
    assert (await refused("quote", arguments))["data"]["suggestions"] == expected


async def test_an_unknown_tool() -> None:
    said = await refused("nothing")
    assert (said["code"], said["message"]) == (-32002, "Unknown tool: nothing")
    assert said["data"]["error_type"] == "ToolNotFound"
    assert "tools/list" in said["data"]["suggestions"][0]


@pytest.mark.req("GGEN-TMO-2")
async def test_a_timeout_names_tool_and_time() -> None:
    said = await refused("slow")
    assert (said["code"], said["message"]) == (-32003, "Tool execution timeout")
    data = said["data"]
    assert (data["error_type"], data["tool_name"], data["timeout_ms"]) == ("ToolTimeout", "slow", 10)
    assert (data["retryable"], len(data["suggestions"])) == (True, 3)
    assert data["trace_id"].startswith("req-")


async def test_a_crash_is_masked_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "defserve"):
        said = await refused("fails", error=RuntimeError("password=hunter2"))
    assert (said["code"], said["data"]["error_type"], said["data"]["retryable"]) == (-32003, "ToolExecution", True)
    assert "hunter2" not in str(said)
    (record,) = caplog.records
    assert said["message"].split("id ")[1].rstrip(")") in record.getMessage()


async def test_a_tools_own_words_are_the_message() -> None:
    said = await refused("fails", error=ToolError("the market is closed", data={"opens": "09:00"}))
    assert (said["code"], said["message"]) == (-32003, "the market is closed")
    assert said["data"]["opens"] == "09:00"


async def test_what_a_person_declined_is_not_retried() -> None:
    assert (await refused("fails", error=Declined("no")))["data"]["retryable"] is False


class Denied(Refused):
    error_type = "permission_denied"


class Anonymous(Refused):
    error_type = "auth_required"


@for_each_row(
    ("error", "code", "name"),
    [(Anonymous("who?"), -32004, "AuthenticationError"), (Denied("no"), -32005, "AuthorizationError")],
)
async def test_who_you_are_and_what_you_may_do(error: Refused, code: int, name: str) -> None:
    said = await refused("fails", error=error)
    assert (said["code"], said["data"]["error_type"]) == (code, name)


async def test_a_guards_refusal_is_a_validation_error_with_its_hints() -> None:
    error = Rejected("code refused", ["import os"], {"nearest": ["json", "math"]}, guard="code_safety")
    said = await refused("fails", error=error)
    assert (said["code"], said["data"]["violations"]) == (-32001, ["import os"])
    assert said["data"]["suggestions"] == ["Try json or math."]


async def test_a_limit_says_how_long_to_wait() -> None:
    error = Refused("busy", data={"retry_after_ms": 50})
    said = await refused("fails", error=error)
    assert (said["code"], said["data"]["retryable"]) == (-32603, True)
    assert said["data"]["suggestions"] == ["Wait 50 ms and try again"]


async def test_other_refusals_are_internal_and_final() -> None:
    said = await refused("fails", error=Refused("no"))
    assert (said["code"], said["data"]["retryable"]) == (-32603, False)


async def test_an_unknown_method_has_its_type() -> None:
    async with raw(served(), LATEST) as peer:
        said = (await peer.ask("no/such"))["error"]
    assert (said["code"], said["data"]["error_type"]) == (-32601, "MethodNotFound")
    assert said["data"]["trace_id"].startswith("req-")


UNREADABLE = [
    (b"{", -32700, "ParseError"),
    (b"\xff", -32700, "ParseError"),
    (b"7", -32600, "InvalidRequest"),
    (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, "InvalidRequest"),
]


@pytest.mark.req("GGEN-ERR-1", "GGEN-ERR-3")
@for_each_row("version", [*HANDSHAKE, STATELESS])
@for_each_row(("frame", "code", "name"), UNREADABLE)
async def test_what_cannot_be_read_has_its_type_and_a_trace_id(
    version: str, frame: bytes, code: int, name: str
) -> None:
    async with raw(served(), version) as peer:
        await peer.send(frame)
        (said,) = await peer.news()
    unreadable(said["error"], code, name)


@pytest.mark.req("GGEN-ERR-1", "GGEN-ERR-3")
@for_each_row(("frame", "code", "name"), UNREADABLE)
async def test_what_cannot_be_read_over_http_has_them_too(frame: bytes, code: int, name: str) -> None:
    async with peer(served()) as web:
        said = await web.post(frame).ended()
        unreadable(said.json["error"], code, name)


@pytest.mark.req("GGEN-ERR-3")
async def test_what_http_refuses_before_it_is_read_has_a_trace_id() -> None:
    async with peer(served()) as web:
        said = await web.post(b"{}", {"content-type": "text/plain"}).ended()
        assert said.status == 415
        unreadable(said.json["error"], -32600, "InvalidRequest")


def unreadable(error: Json, code: int, name: str) -> None:
    data = error["data"]
    assert (error["code"], data["error_type"], data["retryable"]) == (code, name, False)
    assert data["trace_id"].startswith("req-") and data["reason"] == error["message"]
    assert data["documentation_url"] == DOCS


async def test_a_server_without_numbers_says_no_more_than_what_is_wrong() -> None:
    async with raw(Server("plain", "1"), LATEST) as other:
        await other.send(b"{")
        (said,) = await other.news()
    assert set(said["error"]) == {"code", "message"}


@pytest.mark.req("GGEN-ERR-3")
@for_each_row(
    ("method", "params"),
    [
        ("tools/call", {"name": "nothing"}),
        ("tools/call", {"name": "fails", "arguments": {}}),
        ("tools/call", {"name": "quote", "arguments": {"days": 0}}),
        ("tools/call", {"name": "slow"}),
        ("tools/call", {}),
        ("prompts/get", {"name": "nothing"}),
        ("prompts/get", {"name": "ask", "arguments": {"count": "x"}}),
        ("resources/read", {"uri": "x://fails"}),
        ("resources/read", {"uri": "x://nothing"}),
        ("initialize", {}),
        ("no/such", {}),
    ],
)
async def test_every_error_carries_a_trace_id(method: str, params: Json) -> None:
    async with raw(served(RuntimeError("no")), LATEST) as other:
        said = await other.ask(method, params)
    assert said["error"]["data"]["trace_id"].startswith("req-")


async def test_a_prompts_bad_argument_is_invalid_params() -> None:
    async with raw(served(), LATEST) as peer:
        said = (await peer.ask("prompts/get", {"name": "ask", "arguments": {"count": "x"}}))["error"]
    assert (said["code"], said["data"]["error_type"], said["data"]["field"]) == (-32602, "InvalidParams", "count")
    assert said["data"]["suggestions"] == ["Use a value of type integer"]


async def test_a_resource_that_fails_is_an_internal_error() -> None:
    async with raw(served(ToolError("no disk")), LATEST) as peer:
        said = (await peer.ask("resources/read", {"uri": "x://fails"}))["error"]
    assert (said["code"], said["data"]["error_type"]) == (-32603, "InternalError")


async def test_a_missing_resource_keeps_the_code_that_mcp_gave_it() -> None:
    async with raw(served(), LATEST) as peer:
        said = (await peer.ask("resources/read", {"uri": "x://nothing"}))["error"]
    assert (said["code"], said["data"]["error_type"]) == (-32002, "resource_not_found")


async def test_a_callers_trace_id_is_kept_inside() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with raw(served(), LATEST) as peer:
        meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        said = (await peer.ask("tools/call", {"name": "nothing", "_meta": meta}))["error"]
    assert said["data"]["trace_id"] == f"req-{trace}"


@for_each_row("tool", ["quote", "fails", "slow"])
async def test_the_stateless_era_never_sees_these_codes(tool: str) -> None:
    async with raw(served(ToolError("no")), STATELESS) as peer:
        found = await peer.call(tool, {"days": 0} if tool == "quote" else {})
        said = (await peer.ask("tools/call", {"name": "nothing"}))["error"]
    assert found["isError"] is True
    assert said["code"] == -32602


async def test_a_call_that_succeeds_is_untouched() -> None:
    async with raw(served(), LATEST) as peer:
        assert "isError" not in await peer.call("fails")


@for_each_row(
    ("field", "reason", "expected"),
    [
        ("code", r"must match the pattern ^\d{4}$, got 1", ["Use digits only", "Length must be 4 characters"]),
        ("n", "must match the pattern ^[a-z_]{2,}$", ["Use lowercase letters, _ only", LONG]),
        ("name", "must match the pattern ^[a-z]+$", ["Use lowercase letters only"]),
        ("date", "must match the pattern ^(a|b)+c$", ["Match the pattern ^(a|b)+c$"]),
        ("tags", "must have at most 3 items, got 4", ["Use at most 3 items"]),
        ("tags", "must have no item twice, got [1,1]", ["Use every item once"]),
        ("n", "must be a multiple of 5, got 3", ["Use a multiple of 5"]),
        ("n", "expected 1 or 2, got 3", ["Use 1 or 2"]),
        ("a.b", "unknown field", ["Leave out a.b"]),
        ("a.b", 'unknown field; did you mean "c"?', ['Use "c"']),
        ("", 'unknown argument "x"; there are none', ['Leave out "x"']),
        ("", 'unknown argument "zzz"; known: a, b', ["Use one of: a, b"]),
        ("day", "is a Sunday", ["Change day: is a Sunday"]),
        ("", "and perhaps more", []),
    ],
)  # fmt: skip
def test_every_constraint_has_a_suggestion(field: str, reason: str, expected: list[str]) -> None:
    assert numbered_errors.suggest_for_problems([Problem(field, reason)]) == expected


def test_what_was_given_is_no_part_of_a_suggestion() -> None:
    told = numbered_errors.suggest_for_problems([Problem("n", 'expected integer, got "a, got b"')])
    assert told == ["Use a value of type integer"]


def test_suggestions_are_few_and_distinct() -> None:
    many: list[Any] = [Problem(f"f{n % 20}", "missing") for n in range(40)]
    assert numbered_errors.suggest_for_problems(many) == [f"Provide f{n}" for n in range(10)]
