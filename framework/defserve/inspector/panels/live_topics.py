"""The Live, Events and Topics panels: what a server does on its own, and a seat in a topic of a gateway."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from defserve.client.mcpl.hooks import AFTER_INFERENCE, BEFORE_INFERENCE
from defserve.client.mcpl.peer import McplPeer
from defserve.client.replies import object_or_empty, string_or_none
from defserve.client.topic_client import join_topic, make_topic_address
from defserve.core.json_values import is_array
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.inspector.era_connection import get_client_era
from defserve.inspector.inspection import (
    Inspection,
    PageRequestHandler,
    get_request_era,
    use_era_client,
)
from defserve.inspector.joined_topic import JoinedTopic
from defserve.inspector.protocol import BadMessage, Json, PageRequest
from defserve.protocols.mcp.events.draft import EVENTS_EXTENSION_ID
from defserve.protocols.mcpl.channels.messages import Channel
from defserve.protocols.mcpl.vocabulary import AFTER_INFERENCE_USE as AFTER_USE
from defserve.protocols.mcpl.vocabulary import McplRefusal

MAX_PATTERNS: Final = 100
MAX_CHANNELS: Final = 200
LIFECYCLE: Final = "channels.lifecycle"


async def describe_mcpl(inspection: Inspection, request: PageRequest) -> Any:
    """Feature sets, scopes that are asked for, events, channels and messages. `version` is None without MCPL."""
    client = await inspection.client(get_request_era(request))
    mcpl, feed = client.mcpl, inspection.live
    if mcpl is None or mcpl.version is None:
        return {"version": None}
    return {
        "version": mcpl.version,
        **_describe_terms(mcpl),
        "offered": feed.offered,
        "opens": _opens(mcpl) and not client.stateless,
        "sets": [_set(mcpl, name) for name in [one.name for one in mcpl.feature_sets]],
        "asked": list(feed.asked.values()),
        "mode": feed.mode,
        "events": list(feed.events)[::-1],
        "channels": [_channel(one) for one in mcpl.channels][:MAX_CHANNELS],
        "messages": list(feed.messages),
        "polls": client.stateless,
    }


def _describe_terms(mcpl: McplPeer) -> Json:
    """What differs with the version: hooks after an inference, and what was granted of what the server claims."""
    grants, receipt = mcpl.feature_sets.grants, mcpl.receipt
    told: Json = {"after": AFTER_USE not in mcpl.rules.lost, "granted": None, "denied": None, "receipt": None}
    if not grants.by_grant:
        return told
    if receipt is not None:
        told["receipt"] = {"accepted": receipt.accepted, "reason": receipt.reason, "notes": list(receipt.notes)}
    return {**told, "granted": sorted(grants.active), "denied": sorted(grants.claimed - grants.active)}


def _opens(mcpl: McplPeer) -> bool:
    """Whether the server opens channels for its host. Without a session it cannot keep one open."""
    offer = mcpl.feature_sets.advertised.get("channels")
    is_offered = offer is True or object_or_empty(offer).get("lifecycle") is True
    return is_offered and mcpl.feature_sets.grants.permits(LIFECYCLE)


def _has_channels(mcpl: McplPeer) -> bool:
    """Whether the server says that it has channels, in its capabilities or in a feature set."""
    uses = (use for one in mcpl.feature_sets for use in one.uses)
    return bool(mcpl.feature_sets.advertised.get("channels")) or any(use.startswith("channels") for use in uses)


def _set(mcpl: McplPeer, name: str) -> Json:
    one, lists = mcpl.feature_sets[name], mcpl.feature_sets.get_scope_lists(name)
    grants = mcpl.feature_sets.grants
    return {
        "missing": sorted({*one.uses} - grants.active) if grants.by_grant else [],
        "name": name,
        "about": one.description,
        "uses": list(one.uses),
        "scoped": one.scoped,
        "rollback": one.rollback,
        "enabled": mcpl.feature_sets.is_enabled(name),
        "allow": list(lists.whitelist),
        "block": list(lists.blacklist),
    }


def _channel(one: Channel) -> Json:
    return {"id": one.id, "label": one.label or one.id, "direction": one.direction, "type": one.type}


async def switch_feature_sets(inspection: Inspection, request: PageRequest) -> Any:
    """Switch feature sets on or off, at once and in every era."""
    names, is_on = request.arguments.get("sets"), request.arguments.get("on") is True
    if not is_array(names) or not all(isinstance(name, str) for name in names):
        raise BadMessage("'sets' is a list of names")
    wanted = [str(name) for name in names]
    inspection.live.off = inspection.live.off - set(wanted) if is_on else inspection.live.off | set(wanted)
    for mcpl in _peers(inspection):
        known = [name for name in wanted if name in mcpl.feature_sets]
        await mcpl.update(enabled=known if is_on else (), disabled=() if is_on else known)
    for era in inspection.connections:
        inspection.push("changed", {"era": era, "kind": "tools"})
    return await describe_mcpl(inspection, request)


async def set_scope_patterns(inspection: Inspection, request: PageRequest) -> Any:
    """Where a scoped set may act: patterns that allow and patterns that block."""
    name, lists = request.get_text("set"), dict[str, list[str]]()
    for word, member in (("allow", "whitelist"), ("block", "blacklist")):
        given = request.arguments.get(word, [])
        if not is_array(given) or len(given) > MAX_PATTERNS:
            raise BadMessage(f"{word!r} is a list of up to {MAX_PATTERNS} patterns")
        lists[member] = [str(pattern) for pattern in given]
    for mcpl in _peers(inspection):
        if name in mcpl.feature_sets:
            await mcpl.update(scopes={name: lists})
    inspection.live.scopes[name] = lists
    return await describe_mcpl(inspection, request)


async def offer(inspection: Inspection, request: PageRequest) -> Any:
    """Offer another version of MCPL. The conversations are reopened."""
    inspection.live.set_offered_version(request.get_text("version"))
    inspection.reopen()
    return await describe_mcpl(inspection, request)


async def answer_pending(inspection: Inspection, request: PageRequest) -> Any:
    """Answer an event or a scope that waits."""
    return {
        "answered": inspection.live.decide_pending(
            request.get_integer("number"), request.arguments.get("allow") is True
        )
    }


async def set_event_mode(inspection: Inspection, request: PageRequest) -> Any:
    inspection.live.set_event_mode(request.get_text("mode"))
    return {"mode": inspection.live.mode}


# -- the playground --------------------------------------------------------------------------------------
async def run_hooks_before_inference(inspection: Inspection, request: PageRequest) -> Any:
    """Run the hooks before an inference on a message. No model is called."""
    began = inspection.recorder.count
    async with _live(inspection, request) as mcpl:
        found = await inspection.playground.begin_turn(mcpl, request.get_text("message"), inspection.audit.events)
    return {**found, "seq": _seq(inspection, began, BEFORE_INFERENCE)}


async def run_hooks_after_inference(inspection: Inspection, request: PageRequest) -> Any:
    """Run the hooks after an inference on an answer."""
    began = inspection.recorder.count
    async with _live(inspection, request) as mcpl:
        found = await inspection.playground.end_turn(mcpl, request.get_text("answer"), inspection.audit.events)
    return {**found, "seq": _seq(inspection, began, AFTER_INFERENCE)}


def _seq(inspection: Inspection, began: int, method: str) -> int | None:
    """Where the timeline has the message to a hook."""
    recorder = inspection.recorder
    found = recorder.get_messages(max(began, recorder.first), recorder.count)
    return next((entry.seq for entry in found if entry.method == method and entry.direction == "sent"), None)


# -- events and channels ---------------------------------------------------------------------------------
async def fetch_inboxes(inspection: Inspection, request: PageRequest) -> Any:
    """Fetch what waits in the inboxes of a server that cannot push."""
    async with _live(inspection, request) as mcpl:
        if _has_channels(mcpl):  # else the question would only be one more error on the wire
            with suppress(PeerError, McplRefusal):
                await mcpl.channels.refresh()
        return {"found": await mcpl.collect()}


async def open_channel(inspection: Inspection, request: PageRequest) -> Any:
    """Have the server open a channel. An address that is JSON is sent as such."""
    address: Any = request.get_text("address", "").strip() or None
    if address is not None:
        with suppress(ValueError):
            address = json.loads(address)
    async with _live(inspection, request) as mcpl:
        return _channel(await mcpl.open(request.get_text("type"), address))


async def close_channel(inspection: Inspection, request: PageRequest) -> Any:
    async with _live(inspection, request) as mcpl:
        return {"closed": await mcpl.close(request.get_text("channel"))}


async def publish_to_channel(inspection: Inspection, request: PageRequest) -> Any:
    """Write to a channel, as the host."""
    channel, text = request.get_text("channel"), request.get_text("text")
    began = time.perf_counter()
    async with _live(inspection, request) as mcpl:
        delivery = await mcpl.publish(channel, text)
    told: Json = {"delivered": delivery is not None and delivery.delivered, "ms": (time.perf_counter() - began) * 1000}
    era = inspection.connection(get_request_era(request)).era
    return inspection.live.add_message(era, channel, "inspector", text, mine=True, **told)


@asynccontextmanager
async def _live(inspection: Inspection, request: PageRequest) -> AsyncGenerator[McplPeer]:
    async with use_era_client(inspection, request) as client:
        if client.mcpl is None or client.mcpl.version is None:
            raise PeerError("this server does not speak MCPL")
        yield client.mcpl


def _peers(inspection: Inspection) -> list[McplPeer]:
    return [mcpl for client in inspection.connected_clients if (mcpl := client.mcpl) is not None]


# -- The Events panel: types of events (MCP Events, a draft), and following them by stream, poll and webhook.


MAX_EVENT_TYPES: Final = 1_000


async def list_events(inspection: Inspection, request: PageRequest) -> Any:
    """The `events` of the server, what is `followed`, and whether it `offered` any in this era."""
    async with use_era_client(inspection, request) as client:
        extensions = object_or_empty(client.capabilities.get("extensions"))
        if EVENTS_EXTENSION_ID not in extensions and "events" not in client.capabilities:
            return {"offered": False, "events": [], "followed": []}
        listed = await client.events.list_types()
        followed = inspection.events.list_followed(get_client_era(client))
    events = [_event_type(each) for each in listed[:MAX_EVENT_TYPES] if isinstance(each.get("name"), str)]
    return {"offered": True, "events": events, "followed": followed}


def _event_type(listed: Json) -> Json:
    ways = listed.get("delivery")
    return {
        "name": listed["name"],
        "description": string_or_none(listed.get("description")) or "",
        "delivery": [way for way in ("push", "poll", "webhook") if is_array(ways) and way in ways],
        "inputSchema": object_or_empty(listed.get("inputSchema")),
        "payloadSchema": object_or_empty(listed.get("payloadSchema")),
    }


async def follow_event(inspection: Inspection, request: PageRequest) -> Any:
    """Begin to follow an event by `way`: stream, poll or webhook."""
    name, way, arguments = request.get_text("event"), request.get_text("way"), request.get_object("arguments")
    async with use_era_client(inspection, request) as client:
        return await inspection.events.follow(client, get_client_era(client), name, arguments, way)


async def stop_event(inspection: Inspection, request: PageRequest) -> Any:
    """Follow an event no longer."""
    return {"stopped": await inspection.events.stop(request.get_integer("number"))}


# -- The Topics panel: to sit in a topic of a gateway, see who is there, and approve or reject what is proposed.


MAX_SEATS: Final = 8
MAX_TEXT_LENGTH: Final = 4_000


async def follow_topic(inspection: Inspection, request: PageRequest) -> Any:
    """Join a topic, and tell of it as parts until it is cancelled, which leaves it. The token is not kept."""
    address = make_topic_address(request.get_text("url"), request.get_text("topic", ""), "name one, such as demo")
    token = request.get_text("token", "") or None
    if len(inspection.seats) >= MAX_SEATS:
        raise UsageError(f"{MAX_SEATS} topics are open", fix="leave one of them")
    async with join_topic(address, token=token) as me:
        number = max(inspection.seats, default=0) + 1
        seat = inspection.seats[number] = JoinedTopic(me)
        listening = asyncio.create_task(seat.listen(), name="defserve.inspector topic")
        try:
            while not me.over.is_set():
                request.send_part_if_changed({"seat": number, **seat.describe_topic()})
                await seat.wait_for_change()
        finally:
            del inspection.seats[number]
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    raise PeerGone(f"the gateway has closed the connection: {me.end_reason}".rstrip(": "))


async def approve_proposal(inspection: Inspection, request: PageRequest) -> Any:
    """Have a proposal done: the `result`; or, if it must be said by whom, those who are `able`."""
    return await _seat(inspection, request).approve(request.get_text("proposal"), request.get_text("name", ""))


async def decline_proposal(inspection: Inspection, request: PageRequest) -> Any:
    seat = _seat(inspection, request)
    seat.me.decline(seat.proposal(request.get_text("proposal")), request.get_text("reason", "")[:MAX_TEXT_LENGTH])


async def send_chat(inspection: Inspection, request: PageRequest) -> Any:
    _seat(inspection, request).me.chat(request.get_text("text")[:MAX_TEXT_LENGTH])


def _seat(inspection: Inspection, request: PageRequest) -> JoinedTopic:
    if (seat := inspection.seats.get(request.get_integer("seat"))) is None:
        raise BadMessage("you are not in this topic any more", fix="join it again")
    return seat


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "live.overview": describe_mcpl,
    "live.switch": switch_feature_sets,
    "live.scopes": set_scope_patterns,
    "live.offer": offer,
    "live.decide": answer_pending,
    "live.mode": set_event_mode,
    "live.before": run_hooks_before_inference,
    "live.after": run_hooks_after_inference,
    "live.collect": fetch_inboxes,
    "live.open": open_channel,
    "live.close": close_channel,
    "live.publish": publish_to_channel,
    "events.list": list_events,
    "events.follow": follow_event,
    "events.stop": stop_event,
    "topics.follow": follow_topic,
    "topics.approve": approve_proposal,
    "topics.decline": decline_proposal,
    "topics.say": send_chat,
}
