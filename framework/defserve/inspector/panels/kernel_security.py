"""The Kernel and Security panels: servers behind a kernel; what a server may use, who may use it, its audit trail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from defserve.client.client import Client
from defserve.client.mgp.server_claims import get_permission_risk, parse_tool_security
from defserve.client.server_requests import ToolAccessEntry
from defserve.core.json_values import is_object
from defserve.errors import DefserveError, PeerError
from defserve.inspector.inspection import Inspection, PageRequestHandler, get_request_era, use_era_client
from defserve.inspector.kernels import InspectedKernel, KernelOverClient, list_verb_buttons
from defserve.inspector.protocol import BadMessage, Json, PageRequest, describe_error_for_page
from defserve.inspector.target_process import explain_target_call
from defserve.kernel.control import KERNEL_VERBS, parse_verb_request

SAID: Final[Mapping[str, bool | None]] = {"grant": True, "deny": False, "ask": None}
DECISIONS: Final = {True: "approved", False: "denied", None: "deferred"}
MAX_NAMES: Final = 1_000
MAX_SHOWN_EVENTS: Final = 500
EVERY_SECONDS: Final = 1.0
MAX_GRANT_SECONDS: Final = 10 * 365 * 86_400


async def describe_permissions(inspection: Inspection, request: PageRequest) -> Any:
    """What the server speaks of MGP, and every permission: what needs it, what the person says, what follows."""
    async with use_era_client(inspection, request) as client:
        needed = await _find_needed_permissions(client)
    mgp = client.mgp
    assert mgp is not None
    held = mgp.grants
    permissions = [
        {
            "name": name,
            "risk": get_permission_risk(name),
            "tools": needed.get(name, []),
            "say": next(word for word, said in SAID.items() if said is inspection.granted.get(name)),
            "decision": held.get(name, "deferred"),
        }
        for name in sorted(dict.fromkeys((*needed, *inspection.granted)))[:MAX_NAMES]
    ]
    return {
        "version": mgp.version,
        "server": mgp.server_id,
        "trust": mgp.trust_level,
        "sections": sorted(mgp.sections),
        "explains": inspection.target.server is not None or inspection.target.process is not None,
        "permissions": permissions,
        "lifecycle": list(inspection.lifecycle)[::-1],
    }


async def set_permission(inspection: Inspection, request: PageRequest) -> Any:
    """Grant a permission, deny it, or have it asked for with the next call. It counts at once, in every era."""
    name, said = request.get_text("permission"), request.get_text("say")
    if said not in SAID:
        raise BadMessage(f"'say' is one of {', '.join(SAID)}")
    await _decide(inspection, name, SAID[said])
    return await describe_permissions(inspection, request)


async def reset_permissions(inspection: Inspection, request: PageRequest) -> Any:
    """Take back whatever was said about permissions."""
    for name in tuple(inspection.granted):
        await _decide(inspection, name, None)
    return await describe_permissions(inspection, request)


async def _decide(inspection: Inspection, name: str, said: bool | None) -> None:
    if said is None:
        inspection.granted.pop(name, None)
    elif name in inspection.granted or len(inspection.granted) < MAX_NAMES:
        inspection.granted[name] = said
    decision = cast("Literal['approved', 'denied', 'deferred']", DECISIONS[said])
    for client in inspection.connected_clients:
        if client.mgp is not None:
            await client.mgp.decide(name, decision)
    # A call that waits for exactly this need not ask any more.
    for question in inspection.questions.waiting:
        if said is not None and question["kind"] == "permission" and question["permission"] == name:
            inspection.questions.answer_question(question["id"], {"decision": decision})
    inspection.push("permissions", {"permission": name})


# -- who may use what ------------------------------------------------------------------------------------
async def query_access(inspection: Inspection, request: PageRequest) -> Any:
    """Whether an agent may use a tool, or the server if no tool is named."""
    async with use_era_client(inspection, request) as client:
        return await client.access_query(_agent(request), _tool(request))


async def grant_access(inspection: Inspection, request: PageRequest) -> Any:
    """Set an entry that allows or denies, for so many `seconds`, or for ever."""
    permission = request.get_text("permission", "allow")
    if permission not in ("allow", "deny"):
        raise BadMessage("'permission' is allow or deny")
    more: ToolAccessEntry = {"permission": permission}
    if (seconds := request.get_number("seconds")) is not None:
        if not 1 <= seconds <= MAX_GRANT_SECONDS:
            raise BadMessage(
                f"an entry holds from 1 to {MAX_GRANT_SECONDS} seconds", fix="leave 'seconds' out for ever"
            )
        more["expires_at"] = datetime.now(UTC) + timedelta(seconds=seconds)
    async with use_era_client(inspection, request) as client:
        return await client.access_grant(_agent(request), _tool(request), **more)


async def revoke_access(inspection: Inspection, request: PageRequest) -> Any:
    """Remove an entry."""
    async with use_era_client(inspection, request) as client:
        return await client.access_revoke(_agent(request), _tool(request))


def _agent(request: PageRequest) -> str:
    if not (agent := request.get_text("agent", "").strip()):
        raise BadMessage("an entry is about an agent", fix="give the id of one, such as agent.helper")
    return agent


def _tool(request: PageRequest) -> str | None:
    return request.get_text("tool", "").strip() or None


async def explain_call_decision(inspection: Inspection, request: PageRequest) -> Any:
    """Whether a caller may call a tool, step by step, as `defserve why` says it."""
    target = inspection.target
    asked = request.get_text("caller").strip(), request.get_text("tool").strip(), request.get_text("scopes", "").split()
    if target.process is not None:
        return await target.process.ask("why", list(asked))
    if target.server is None:
        raise BadMessage("only a server that the inspector runs says why", fix="defserve inspect server.py --web")
    return await explain_target_call(target.server, *asked)


# -- what was written down -------------------------------------------------------------------------------
async def list_audit_lines(inspection: Inspection, request: PageRequest) -> Any:
    """`log`: the newest lines of the server's log, if it can be read. `seen`: what our own side wrote down."""
    seen = list(inspection.audit.events)[-MAX_SHOWN_EVENTS:]
    found: Json = {"seen": seen[::-1], "log": None, "remote": inspection.server_log.is_elsewhere}
    try:
        found["log"] = await inspection.server_log.fetch_lines()
    except DefserveError as error:
        found["error"] = describe_error_for_page(error)
    return found


async def verify_audit_log(inspection: Inspection, request: PageRequest) -> Any:
    """Check the chain of the server's log."""
    return await inspection.server_log.check_chain()


# -- how it does -----------------------------------------------------------------------------------------
async def query_health(inspection: Inspection, request: PageRequest) -> Any:
    """The health of the server, with its checks."""
    async with use_era_client(inspection, request) as client:
        return asdict(await client.health())


async def follow_mgp_events(inspection: Inspection, request: PageRequest) -> Any:
    """The events of the channels that fit a pattern, as parts until it is cancelled. The first names the channels."""
    async with use_era_client(inspection, request) as client:
        if client.mgp is None or "events" not in client.mgp.sections:
            raise PeerError("this server offers no event channels to this client")
        async with client.subscribe_events([request.get_text("pattern", "*")], every=EVERY_SECONDS) as stream:
            request.part({"channels": list(stream.subscribed), "unknown": list(stream.unsupported)})
            async for event in stream:
                told = {"channel": event.channel, "data": event.data, "severity": event.severity}
                about = {"missed": event.missed, "sequence": event.sequence, "at": time.time()}
                request.part({"event": {**told, **about}})


async def _find_needed_permissions(client: Client) -> dict[str, list[str]]:
    """Permission to the tools that need it. What the server itself needs is there, too."""
    found: dict[str, list[str]] = {name: [] for name in (client.mgp.permissions_required if client.mgp else ())}
    listed = await client.tools() if "tools" in client.capabilities else []
    for tool in listed:
        if is_object(tool) and isinstance(name := tool.get("name"), str):
            for permission in parse_tool_security(name, tool).permissions or ():
                found.setdefault(permission, []).append(name)
    return found


# -- The Kernel panel: the servers behind a kernel, what they do, and what an operator does with them.


async def follow_kernel_servers(inspection: Inspection, request: PageRequest) -> Any:
    """The servers as parts, whenever something has changed, until it is cancelled.

    Each part has the `way` to the kernel (None: the server is none), its `status` and its `servers`.
    """
    while (way := await _way(inspection, request)) is not None:
        try:
            request.send_part_if_changed({"way": way.name, "verbs": list(way.verbs), **await way.read_status()})
        except PeerError as error:
            _on_kernel_error(inspection, request, way, error)
            raise
        await asyncio.sleep(way.pause)
    request.send_part_if_changed({"way": None})


async def follow_server_output(inspection: Inspection, request: PageRequest) -> Any:
    """The lines of a server as parts, until it is cancelled."""
    way = await _kernel(inspection, request)
    async with aclosing(way.logs(request.get_text("server"))) as lines:
        async for line in lines:
            request.part(line)


async def list_held_tools(inspection: Inspection, request: PageRequest) -> Any:
    """The definitions of a server that are held, each with what has changed."""
    return await (await _kernel(inspection, request)).list_held_tools(request.get_text("server"))


async def run_kernel_verb(inspection: Inspection, request: PageRequest) -> Any:
    """Do what a button of the page stands for: a verb of the kernel, with its fields. Its server is `server`."""
    name = request.get_text("verb")
    if name not in (buttons := list_verb_buttons()):
        raise BadMessage(f"a kernel cannot {name[:60]!r}", fix=f"use one of {', '.join(buttons)}")
    given = {**request.arguments, "id": request.arguments.get("server")}
    known = (parameter.name for parameter in KERNEL_VERBS[name].parameters)
    verb, fields = parse_verb_request({"verb": name} | {field: given[field] for field in known if given.get(field)})
    way = await _kernel(inspection, request)
    try:
        return await way.run_verb(verb, fields)
    except PeerError as error:
        _on_kernel_error(inspection, request, way, error)
        raise


async def _way(inspection: Inspection, request: PageRequest) -> InspectedKernel | None:
    if (control := inspection.target.kernel) is not None:
        # Its socket is there as soon as the first conversation is.
        await inspection.client()
        return control
    client = await inspection.client(get_request_era(request))
    return KernelOverClient(client) if KernelOverClient.is_kernel(client) else None


async def _kernel(inspection: Inspection, request: PageRequest) -> InspectedKernel:
    if (way := await _way(inspection, request)) is None:
        raise BadMessage("this server is no kernel", fix="start one: defserve kernel --config mgp.toml")
    return way


def _on_kernel_error(inspection: Inspection, request: PageRequest, way: InspectedKernel, error: PeerError) -> None:
    if isinstance(way, KernelOverClient):
        inspection.on_request_failed(get_request_era(request), error)


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "security.overview": describe_permissions,
    "security.permit": set_permission,
    "security.reset": reset_permissions,
    "security.access": query_access,
    "security.grant": grant_access,
    "security.revoke": revoke_access,
    "security.why": explain_call_decision,
    "security.audit": list_audit_lines,
    "security.verify": verify_audit_log,
    "security.health": query_health,
    "security.events": follow_mgp_events,
    "kernel.follow": follow_kernel_servers,
    "kernel.logs": follow_server_output,
    "kernel.held": list_held_tools,
    "kernel.do": run_kernel_verb,
}
