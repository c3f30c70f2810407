"""Every road on which a peer could say yes. Each tells whether its yes had an effect."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.protocols.mgp.callers import offer
from tests.raw import STATELESS
from tests.server.authority.talking import SESSION, Talk

Json = dict[str, Any]
Open = Callable[..., Awaitable[Talk]]
Road = Callable[[Open], Awaitable[bool]]

ASKS: Json = {"elicitation": {}}
GRANTS = "dev.cloto/mgp/grants"
SETS = "dev.defserve/featureSets"
LIVE: Json = {"experimental": {"mcpl": {"version": "0.4", "scopes": True}}}
LIVE_05: Json = {"experimental": {"mcpl": {"version": "0.5"}}}
ENABLED: Json = {"enabled": ["*"]}
GRANTED: Json = {"effectiveCapabilities": ["tools"]}
WHITELISTED: Json = {"enabled": ["*"], "scopes": {"files.edit": {"whitelist": ["**"]}}}
BOTH_ERAS = (SESSION, STATELESS)


def json_of(message: bytes) -> Json:
    return json.loads(message)


async def ran(talk: Talk, tool: str, arguments: Json | None = None, **more: Any) -> bool:
    reply = await talk.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})
    result = reply.get("result", {})
    return not result.get("isError") and [block["text"] for block in result.get("content", ())] == ["ran"]


def calling(tool: str, capabilities: Callable[[str], Json], version: str) -> Road:
    async def road(open: Open) -> bool:
        return await ran(await open(version, capabilities(version)), tool)

    return road


def granting(method: str) -> Road:
    async def road(open: Open) -> bool:
        talk = await open(SESSION, offer(SESSION, "security"))
        await talk.ask(f"mgp/permission/{method}", {"request_id": "1", "grants": {"shell.execute": "approved"}})
        return await ran(talk, "execute")

    return road


async def granting_a_family(open: Open) -> bool:
    talk = await open(SESSION, offer(SESSION, "security"))
    await talk.ask("mgp/permission/grant", {"grants": {"shell": "approved", "shell.*": "approved"}})
    await talk.ask("mgp/permission/grant", {"grants": {"shell.execute": {"granted": True}}})
    return await ran(talk, "execute")


async def granting_along(open: Open) -> bool:
    talk = await open(STATELESS, offer(STATELESS, "security"))
    return await ran(talk, "execute", _meta={GRANTS: {"shell.execute": "approved"}})


async def granting_in_a_batch(open: Open) -> bool:
    talk = await open("2025-03-26", offer(SESSION, "security"))
    grant = ("mgp/permission/grant", {"grants": {"shell.execute": "approved"}})
    await talk.batch(grant, ("ping", {}))
    _, called = await talk.batch(("ping", {}), ("tools/call", {"name": "execute", "arguments": {}}))
    return "result" in called and not called["result"].get("isError")


async def confirming_in_a_batch(open: Open) -> bool:
    talk = await open("2025-03-26", offer(SESSION, "security"))
    called, _ = await talk.batch(("tools/call", {"name": "erase", "arguments": {}}), ("ping", {}))
    return "result" in called and not called["result"].get("isError")


async def answering_before_the_question(open: Open) -> bool:
    talk = await open(STATELESS, {})
    answer = {"action": "accept", "content": {"value": True}}
    keys = ("confirm:erase", "erase", "elicitation-000000000000")
    return await ran(talk, "erase", inputResponses=dict.fromkeys(keys, answer))


async def approving_a_scope(open: Open) -> bool:
    talk = await open(SESSION, LIVE)
    await talk.tell("featureSets/update", ENABLED)
    return await ran(talk, "edit", {"path": "/etc/passwd"})


async def listing_a_scope(open: Open) -> bool:
    talk = await open(SESSION, LIVE)
    await talk.ask("featureSets/update", WHITELISTED)
    return await ran(talk, "edit", {"path": "/etc/passwd"}, scope={"label": "/etc/passwd"})


async def listing_a_scope_along(open: Open) -> bool:
    talk = await open(STATELESS, LIVE)
    return await ran(talk, "edit", {"path": "/etc/passwd"}, _meta={SETS: WHITELISTED})


async def approving_a_scope_along(open: Open) -> bool:
    talk = await open(STATELESS, {**LIVE, **ASKS})
    return await ran(talk, "edit", {"path": "/etc/passwd"}, _meta={SETS: ENABLED})


async def skipping_a_scope(open: Open) -> bool:
    return await ran(await open(SESSION, {}), "edit", {"path": "/etc/passwd"})


def enabling(method: str) -> Road:
    async def road(open: Open) -> bool:
        talk = await open(SESSION, LIVE)
        await getattr(talk, method)("featureSets/update", ENABLED)
        return await ran(talk, "send")

    return road


async def enabling_along(open: Open) -> bool:
    talk = await open(STATELESS, LIVE)
    return await ran(talk, "send", _meta={SETS: ENABLED})


def granting_capabilities(capabilities: Json) -> Road:
    async def road(open: Open) -> bool:
        talk = await open(SESSION, capabilities)
        await talk.ask("featureSets/update", GRANTED)
        return await ran(talk, "send")

    return road


async def granting_capabilities_along(open: Open) -> bool:
    talk = await open(STATELESS, LIVE_05)
    return await ran(talk, "send", _meta={SETS: GRANTED})


async def skipping_a_scope_by_0_5(open: Open) -> bool:
    talk = await open(SESSION, LIVE_05)
    await talk.ask("featureSets/update", GRANTED)
    return await ran(talk, "edit", {"path": "/etc/passwd"})


async def giving_access(open: Open) -> bool:
    talk = await open(SESSION, offer(SESSION, "access_control"))
    entry = {"entry_type": "tool_grant", "agent_id": "eve", "tool_name": "erase", "permission": "allow"}
    reply = await talk.ask("mgp/access/grant", {"server_id": "vault", **entry})
    return "result" in reply


async def seeing_details(open: Open) -> bool:
    talk = await open(SESSION, offer(SESSION, "lifecycle"))
    return "resources" in (await talk.ask("mgp/health/status"))["result"]


async def shutting_down(open: Open) -> bool:
    talk = await open(SESSION, offer(SESSION, "lifecycle"))
    reply = await talk.ask("mgp/lifecycle/shutdown", {"reason": "operator_request", "timeout_ms": 1})
    return reply.get("result", {}).get("accepted") is True


# -- at a kernel -------------------------------------------------------------------------------------------

ENTRY: Json = {"entry_type": "server_grant", "agent_id": "eve", "server_id": "off", "permission": "allow"}
REFUSALS = (1000, 1001, "permission_denied", "access_denied")


def operating(extension: str, method: str, params: Json) -> Road:
    """Ask a kernel for something that only its operators get. Whatever is not refused counts."""

    async def road(open: Open) -> bool:
        reply = await (await open(SESSION, offer(SESSION, extension))).ask(method, params)
        return reply.get("error", {}).get("code") not in REFUSALS

    return road


def operating_by_tool(tool: str, arguments: Json, version: str) -> Road:
    async def road(open: Open) -> bool:
        talk = await open(version, {})
        reply = await talk.ask("tools/call", {"name": tool, "arguments": arguments})
        detail = reply["result"].get("_meta", {}).get("dev.defserve/error", {})
        return detail.get("error_type") not in REFUSALS

    return road


_TOOLS: Mapping[str, Json] = {
    "mgp_access_grant": ENTRY,
    "mgp_access_query": {"agent_id": "eve", "server_id": "off"},
    "mgp_access_revoke": {name: value for name, value in ENTRY.items() if name != "permission"},
    "mgp_health": {},
    "mgp_audit": {},
    "mgp_server_restart": {"server_id": "off"},
}
# A stranger can take none of these at a kernel.
YES_AT_A_KERNEL: Mapping[str, Road] = {
    "give access": operating("access_control", "mgp/access/grant", ENTRY),
    "ask for access": operating("access_control", "mgp/access/query", _TOOLS["mgp_access_query"]),
    "read the audit log": operating("audit", "mgp/audit/replay", {}),
    "ask for the health of a server": operating("lifecycle", "mgp/health/status", {"server_id": "off"}),
    "restart a server": operating("lifecycle", "mgp/lifecycle/restart", {"server_id": "off"}),
    "shut a server down": operating("lifecycle", "mgp/lifecycle/shutdown", {"server_id": "off"}),
    "remove a server": operating("discovery", "mgp/discovery/deregister", {"id": "gone"}),
    **{
        f"{tool}, {version}": operating_by_tool(tool, arguments, version)
        for tool, arguments in _TOOLS.items()
        for version in BOTH_ERAS
    },
    "use a tool through the caller": operating_by_tool(
        "mgp_tools_call", {"name": "mgp_audit", "arguments": {}}, STATELESS
    ),
}


def _security(version: str) -> Json:
    return offer(version, "security")


def _security_and_questions(version: str) -> Json:
    return {**offer(version, "security", "callbacks"), **ASKS}


def _questions(version: str) -> Json:
    return ASKS


def _nothing(version: str) -> Json:
    return {}


def _in_both_eras(what: str, tool: str, capabilities: Callable[[str], Json]) -> dict[str, Road]:
    return {f"{what}, {version}": calling(tool, capabilities, version) for version in BOTH_ERAS}


# A stranger can take none of these.
YES: Mapping[str, Road] = {
    **_in_both_eras("skip the question by speaking MGP", "erase", _security),
    **_in_both_eras("confirm by speaking MGP and by an answer", "erase", _security_and_questions),
    **_in_both_eras("confirm by an answer", "erase", _questions),
    **_in_both_eras("confirm a mounted tool by speaking MGP", "child_erase_too", _security),
    **_in_both_eras("confirm a mounted tool by an answer", "child_erase_too", _questions),
    **_in_both_eras("answer ctx.confirm", "confirms", _questions),
    "confirm by a callback": calling("erase", lambda version: offer(version, "callbacks"), SESSION),
    "answer ctx.confirm by a callback": calling("confirms", lambda version: offer(version, "callbacks"), SESSION),
    "confirm in a batch": confirming_in_a_batch,
    "grant": granting("grant"),
    "grant by a response": granting("response"),
    "grant a family": granting_a_family,
    "grant along with the call": granting_along,
    "grant in a batch": granting_in_a_batch,
    "approve a scope": approving_a_scope,
    "approve a scope in a stateless call": approving_a_scope_along,
    "whitelist a scope": listing_a_scope,
    "whitelist a scope along with the call": listing_a_scope_along,
    "skip a scope by speaking less": skipping_a_scope,
    "skip a scope by speaking MCPL 0.5": skipping_a_scope_by_0_5,
    "give access": giving_access,
    "see details of the health": seeing_details,
}
# Only the local user can take these: a caller on a network that cannot be asked has not asked its user either.
ASSUMED_YES: Mapping[str, Road] = {
    **_in_both_eras("skip the question by being mute", "erase", _nothing),
    "answer before the question": answering_before_the_question,
}
# The same as YES, on a server with `feature_sets="strict"`.
YES_IF_STRICT: Mapping[str, Road] = {
    "switch a set on": enabling("ask"),
    "switch a set on by a notification": enabling("tell"),
    "switch a set on along with the call": enabling_along,
    "grant a capability": granting_capabilities(LIVE_05),
    "grant a capability, speaking MCPL 0.4": granting_capabilities(LIVE),
    "grant a capability along with the call": granting_capabilities_along,
    "skip the switch by speaking less": calling("send", _nothing, SESSION),
    "skip the switch by speaking less, without a session": calling("send", _nothing, STATELESS),
}


async def denying(open: Open) -> bool:
    talk = await open(SESSION, offer(SESSION, "security"))
    assert await ran(talk, "note")
    await talk.ask("mgp/permission/grant", {"grants": {"memory.write": "denied"}})
    return not await ran(talk, "note")


async def denying_along(open: Open) -> bool:
    talk = await open(STATELESS, offer(STATELESS, "security"))
    return not await ran(talk, "note", _meta={GRANTS: {"memory.write": "denied"}})


# Everybody who is let in can do these: answers that nothing depends on, and giving up.
OPEN_TO_ALL: Mapping[str, Road] = {
    **_in_both_eras("answer ctx.ask", "asks", _questions),
    "give a permission up": denying,
    "give a permission up along with the call": denying_along,
}
