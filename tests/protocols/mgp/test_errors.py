"""MGP §14: every code has its exception, and every error says what a client may do about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Server, ToolError
from defserve.errors import Declined, Draining, LimitExceeded, Refused, Rejected, TimedOut
from defserve.extending import Extension
from defserve.protocols.mcp.errors import ERROR_META_KEY
from defserve.protocols.mgp import errors
from defserve.protocols.mgp import errors as failures
from tests.raw import ERAS, PREFIX, STATELESS, VERSIONS, Json, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BLOCKED = Rejected("shell command refused", ["rm deletes"], {"programs": ["ls"]}, guard="sandbox")


class Speaks(Extension):
    """Stands in for a peer that speaks MGP."""

    name = "speaks"

    def negotiate(self, offer: Any) -> object:
        return self

    def failure(self, call: Any, error: BaseException) -> Any:
        return failures.build_mgp_error_reply(call, error)


def failing(error: Exception, **options: Any) -> Server:
    server = Server("failing", "1", extensions=[Speaks()])

    @server.tool(**options)
    async def fails() -> str:
        raise error

    @server.resource("x://fails")
    def resource() -> str:
        raise error

    return server


async def refusal(error: Exception, version: str = STATELESS) -> Json:
    async with raw(failing(error), version) as peer:
        return (await peer.ask("tools/call", {"name": "fails"}))["error"]


async def result(error: Exception, version: str = STATELESS, **options: Any) -> Json:
    async with raw(failing(error, **options), version) as peer:
        return await peer.call("fails")


@pytest.mark.req("MGP-14.2", "MGP-14.3")
def test_the_nineteen_codes_and_two_later_ones_lie_in_the_ranges_of_their_categories() -> None:
    named = {kind.name: (code, kind.category) for code, kind in errors.ERROR_KINDS_BY_CODE.items()}
    assert named == {
        "PERMISSION_DENIED": (1000, "security"),
        "ACCESS_DENIED": (1001, "security"),
        "AUTH_REQUIRED": (1002, "security"),
        "AUTH_EXPIRED": (1003, "security"),
        "VALIDATION_BLOCKED": (1010, "security"),
        "CODE_SAFETY_VIOLATION": (1011, "security"),
        "SERVER_NOT_READY": (2000, "lifecycle"),
        "SERVER_DRAINING": (2001, "lifecycle"),
        "SERVER_RESTARTING": (2002, "lifecycle"),
        "RATE_LIMITED": (3000, "resource"),
        "RESOURCE_EXHAUSTED": (3001, "resource"),
        "QUOTA_EXCEEDED": (3002, "resource"),
        "TIMEOUT": (3003, "resource"),
        "INVALID_TOOL_ARGS": (4000, "validation"),
        "TOOL_NOT_FOUND": (4001, "validation"),
        "TOOL_DISABLED": (4002, "validation"),
        "SERVER_NOT_FOUND": (4004, "validation"),
        "SERVER_ALREADY_REGISTERED": (4101, "validation"),
        "UPSTREAM_ERROR": (5000, "external"),
        "UPSTREAM_TIMEOUT": (5001, "external"),
        "UPSTREAM_UNAVAILABLE": (5002, "external"),
    }
    assert len(errors.ERROR_KINDS_BY_CODE) == 19 + 2


def test_what_can_be_retried_says_how() -> None:
    assert all(
        kind.retry_strategy and kind.max_retries for kind in errors.ERROR_KINDS_BY_CODE.values() if kind.retryable
    )


REFUSALS = (
    (errors.PermissionDenied("no"), 1000, False),
    (errors.AccessDenied("no"), 1001, False),
    (errors.AuthRequired("no"), 1002, False),
    (errors.AuthExpired("no"), 1003, False),
    (errors.ServerNotReady("no"), 2000, True),
    (Draining("no", data={"retry_after_ms": 1000}), 2001, True),
    (errors.ServerRestarting("no"), 2002, True),
    (errors.RateLimited("no"), 3000, True),
    (LimitExceeded("no", data={"limit": "rate", "retry_after_ms": 5}), 3000, True),
    (errors.ResourceExhausted("no"), 3001, True),
    (LimitExceeded("no", data={"limit": "in_flight", "retry_after_ms": 5}), 3001, True),
    (LimitExceeded("no", data={"limit": "response"}), 3001, False),
    (errors.QuotaExceeded("no"), 3002, False),
    (errors.ToolDisabled("no"), 4002, False),
    (errors.ServerNotFound("no"), 4004, False),
    (errors.ServerExists("no"), 4101, False),
)


@pytest.mark.req("MGP-14.3", "MGP-14.4")
@for_each_row("version", ERAS)
@for_each_row(("error", "code", "retryable"), REFUSALS)
async def test_a_refusal_is_an_error_with_its_code(error: Refused, code: int, retryable: bool, version: str) -> None:
    said = await refusal(error, version)
    kind, block = errors.ERROR_KINDS_BY_CODE[code], said["data"]["_mgp"]
    assert (said["code"], said["message"]) == (code, "no")
    assert said["data"]["error_type"] == error.error_type
    assert said["data"]["trace_id"]
    assert (block["category"], block["retryable"]) == (kind.category, retryable)
    assert ("max_retries" in block) is ("retry_strategy" in block) is retryable


@pytest.mark.req("MGP-14.5")
async def test_recovery_fields_are_those_the_author_gave() -> None:
    error = errors.RateLimited(
        "Rate limited: 10 requests per minute exceeded",
        retry_after_ms=5000,
        max_retries=7,
        retry_strategy="fixed_delay",
        fallback_tool="slow",
        details={"limit": 10, "window_secs": 60, "current": 12},
    )
    block = (await refusal(error))["data"]["_mgp"]
    assert block == {
        "code": 3000,
        "name": "RATE_LIMITED",
        "category": "resource",
        "retryable": True,
        "retry_after_ms": 5000,
        "retry_strategy": "fixed_delay",
        "max_retries": 7,
        "fallback_tool": "slow",
        "details": {"limit": 10, "window_secs": 60, "current": 12},
    }


async def test_data_and_details_are_told_as_details() -> None:
    error = errors.PermissionDenied("no", data={"missing": ["camera"]}, details={"tool": "look"})
    assert (await refusal(error))["data"]["_mgp"]["details"] == {"missing": ["camera"], "tool": "look"}


async def test_a_time_to_wait_makes_an_error_retryable() -> None:
    block = (await refusal(errors.QuotaExceeded("used up", retry_after_ms=60_000)))["data"]["_mgp"]
    assert block["retryable"] is True
    assert (block["retry_after_ms"], block["retry_strategy"], block["max_retries"]) == (60_000, "fixed_delay", 1)


async def test_what_is_not_retryable_still_names_another_tool() -> None:
    block = (await refusal(errors.ToolDisabled("off", fallback_tool="other")))["data"]["_mgp"]
    assert (block["retryable"], block["fallback_tool"]) == (False, "other")
    assert "max_retries" not in block


async def test_an_author_may_forbid_another_try() -> None:
    block = (await refusal(errors.ResourceExhausted("disk full", retryable=False)))["data"]["_mgp"]
    assert block["retryable"] is False
    assert "retry_strategy" not in block


@for_each_row("version", VERSIONS)
@for_each_row("guard", ["sandbox", "network_restricted"])
async def test_a_guards_refusal_is_an_error_that_says_what_was_found(guard: str, version: str) -> None:
    said = await refusal(Rejected("refused", ["rm deletes"], {"programs": ["ls"]}, guard=guard), version)
    assert (said["code"], said["message"]) == (1010, "refused: rm deletes")
    assert said["data"].items() >= {"status": "rejected", "violations": ["rm deletes"]}.items()
    block = said["data"]["_mgp"]
    assert (block["category"], block["retryable"], block["details"]) == ("security", False, {"validator": guard})


@for_each_row("version", VERSIONS)
async def test_refused_code_is_a_result_that_a_model_can_act_on(version: str) -> None:
    guard, code = "code_safety", 1011
    found = await result(Rejected("refused", ["eval("], {"allowed": ["math"]}, guard=guard), version)
    assert found["isError"] is True
    assert text_of(found) == "refused: eval("
    body = {
        "status": "rejected",
        "reason": "refused",
        "violations": ["eval("],
        "hints": {"allowed": ["math"]},
        "code": code,
        "name": errors.ERROR_KINDS_BY_CODE[code].name,
    }
    assert found["_mgp"]["retryable"] is False
    assert found["_mgp"]["details"] == {"validator": guard}
    assert found["_meta"][ERROR_META_KEY].items() >= {**body, "_mgp": found["_mgp"]}.items()


FAILURES = (
    (TimedOut("too slow", data={"timeout_ms": 5}), 3003, False),
    (errors.UpstreamError("API said 500"), 5000, False),
    (errors.UpstreamError("API said 503", retry_after_ms=100), 5000, True),
    (errors.UpstreamTimeout("API is slow"), 5001, True),
    (errors.UpstreamUnavailable("API is gone"), 5002, True),
)


@for_each_row("version", VERSIONS)
@for_each_row(("error", "code", "retryable"), FAILURES)
async def test_a_failure_with_a_code_is_an_error(error: ToolError, code: int, retryable: bool, version: str) -> None:
    said = await refusal(error, version)
    kind, block = errors.ERROR_KINDS_BY_CODE[code], said["data"]["_mgp"]
    assert (said["code"], said["message"], said["data"]["error_type"]) == (code, error.message, error.error_type)
    assert (block["category"], block["retryable"]) == (kind.category, retryable)


@for_each_row("hint", ["readOnlyHint", "idempotentHint"])
async def test_a_timeout_is_retried_where_that_does_no_harm(hint: str) -> None:
    async with raw(failing(TimedOut("too slow"), annotations={hint: True})) as peer:
        block = (await peer.ask("tools/call", {"name": "fails"}))["error"]["data"]["_mgp"]
    assert (block["retryable"], block["max_retries"]) == (True, 2)


async def test_a_timeout_that_was_swallowed_is_worded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("defserve.serve.asyncio_engine.STOP_GRACE_SECONDS", 0.01)
    server, released = Server("slow", "1", extensions=[Speaks()]), asyncio.Event()

    @server.tool(timeout=0.01)
    async def stubborn() -> str:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return "done"

    async with raw(server) as peer:
        said = (await peer.ask("tools/call", {"name": "stubborn"}))["error"]
        released.set()
    assert (said["code"], said["data"]["_mgp"]["category"]) == (3003, "resource")


@for_each_row("version", VERSIONS)
async def test_bad_arguments_are_an_error_that_lists_their_problems(version: str) -> None:
    server = Server("typed", "1", extensions=[Speaks()])

    @server.tool
    def double(n: int) -> int:
        return 2 * n

    async with raw(server, version) as peer:
        said = (await peer.ask("tools/call", {"name": "double", "arguments": {"n": "x"}}))["error"]
    block = said["data"]["_mgp"]
    assert (said["code"], block["category"], block["retryable"]) == (4000, "validation", False)
    assert 'expected integer, got "x"' in said["message"]
    assert block["details"]["problems"] == [{"field": "n", "reason": 'expected integer, got "x"'}]


@for_each_row("version", VERSIONS)
async def test_an_unknown_tool_has_its_code(version: str) -> None:
    async with raw(failing(ToolError("no")), version) as peer:
        said = (await peer.ask("tools/call", {"name": "nothing"}))["error"]
    assert said["code"] == 4001
    assert (said["data"]["_mgp"]["code"], said["data"]["_mgp"]["details"]) == (4001, {"tool": "nothing"})
    assert said["data"]["error_type"] == "tool_not_found"


@for_each_row("params", [{}, {"name": 1}, {"name": "fails", "arguments": []}])
async def test_other_broken_params_are_no_unknown_tool(params: Json) -> None:
    async with raw(failing(ToolError("no"))) as peer:
        said = (await peer.ask("tools/call", params))["error"]
    assert said["code"] == -32602
    assert "_mgp" not in said["data"]


@for_each_row("error", [ToolError("no"), Declined("no"), Refused("no"), ValueError("no")])
async def test_mgp_has_no_word_for_other_errors(error: Exception) -> None:
    found = await result(error)
    assert found["isError"] is True
    assert "_mgp" not in found


@for_each_row(("error", "code"), [(BLOCKED, 1010), (TimedOut("slow"), 3003), (errors.AccessDenied("no"), 1001)])
async def test_outside_tools_everything_is_an_error(error: Exception, code: int) -> None:
    async with raw(failing(error)) as peer:
        said = (await peer.ask("resources/read", {"uri": "x://fails"}))["error"]
    assert (said["code"], said["data"]["_mgp"]["code"]) == (code, code)


async def test_a_lone_refusal_in_a_task_group_is_worded_as_itself() -> None:
    assert (await refusal(ExceptionGroup("tasks", [errors.AccessDenied("no")])))["code"] == 1001


async def test_a_wrapper_sees_the_result_that_is_sent() -> None:
    server, seen = failing(Rejected("refused", ["eval("], guard="code_safety")), list[Any]()

    @server.around("tools/call")
    async def watch(call: Any, params: Any, next: Any) -> Any:
        seen.append(await next(call, params))
        return seen[-1]

    async with raw(server) as peer:
        await peer.call("fails")
    assert [found["_mgp"]["code"] for found in seen] == [1011]


async def test_without_mgp_the_same_refusal_is_a_result() -> None:
    server = Server("plain", "1")

    @server.tool
    def fails() -> str:
        raise errors.PermissionDenied("needs camera", details={"missing": ["camera"]})

    async with raw(server) as peer:
        found = await peer.call("fails")
    assert (found["isError"], text_of(found)) == (True, "needs camera")
    detail = found["_meta"][ERROR_META_KEY]
    assert (detail["error_type"], detail["missing"]) == ("permission_denied", ["camera"])


async def test_the_trace_id_is_the_callers() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with raw(failing(errors.AuthRequired("who?"))) as peer:
        meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        said = (await peer.ask("tools/call", {"name": "fails", "_meta": meta}))["error"]
    assert said["data"]["trace_id"] == trace


async def test_results_keep_the_envelope_of_their_era() -> None:
    found = await result(Rejected("refused", ["eval("], guard="code_safety"))
    assert found["resultType"] == "complete"
    assert PREFIX + "serverInfo" in found["_meta"]
