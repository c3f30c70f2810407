"""The other side of the conversation: a client that speaks to any server, for tests, the command line and hosts.

`Client` works in both eras and over every transport. MGP and MCPL are opt-in (`mgp=`, `mcpl=`) and are not imported
otherwise. Names are looked up when they are first used: to find a server to run (`host.targets`) needs no client.

May import: `protocols.mgp.audit`, `wire`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.host.addresses import Remote, connect_url
    from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline
    from defserve.host.client import Client
    from defserve.host.link import Link, Lost
    from defserve.host.links.http import HttpLink
    from defserve.host.links.stdio import ProcessLink
    from defserve.host.links.websocket import WebSocketLink
    from defserve.host.mcpl.channels.channels import LiveChannels
    from defserve.host.mcpl.channels.messages import ChannelMessage, Delivery, MessageAnswer, Outgoing
    from defserve.host.mcpl.feature_sets import Declared, FeatureSets
    from defserve.host.mcpl.hooks import HookRunner, Injected, Reviewed, Rewritten
    from defserve.host.mcpl.inbox import Inbox
    from defserve.host.mcpl.inference.routing import InferenceRequest, Router
    from defserve.host.mcpl.inference.scripted_model import ScriptedModel
    from defserve.host.mcpl.mcpl import Mcpl
    from defserve.host.mcpl.once import Once
    from defserve.host.mcpl.peer import McplPeer
    from defserve.host.mcpl.push.events import EventAnswer, PushedEvent
    from defserve.host.mcpl.scopes import Elevation
    from defserve.host.mcpl.state import HostState, RolledBack
    from defserve.host.mcpx.participant import TopicClient, join_topic
    from defserve.host.mgp.audit.server import AuditServer
    from defserve.host.mgp.events import Event, EventStream
    from defserve.host.mgp.health import Change, Drain, Health, Pong
    from defserve.host.mgp.mgp import Mgp
    from defserve.host.mgp.peer import MgpPeer
    from defserve.host.mgp.permissions.approval import Grant
    from defserve.host.mgp.streaming.stream import Stream

__all__ = [
    "Accept",
    "Answers",
    "AuditServer",
    "Cancel",
    "Change",
    "ChannelMessage",
    "Client",
    "Decision",
    "Declared",
    "Decline",
    "Delivery",
    "Drain",
    "Elevation",
    "Event",
    "EventAnswer",
    "EventStream",
    "FeatureSets",
    "Grant",
    "Health",
    "HookRunner",
    "HostState",
    "HttpLink",
    "Inbox",
    "InferenceRequest",
    "Injected",
    "Link",
    "LiveChannels",
    "Lost",
    "Mcpl",
    "McplPeer",
    "MessageAnswer",
    "Mgp",
    "MgpPeer",
    "Once",
    "Outgoing",
    "Pong",
    "ProcessLink",
    "PushedEvent",
    "Remote",
    "Reviewed",
    "Rewritten",
    "RolledBack",
    "Router",
    "ScriptedModel",
    "Stream",
    "TopicClient",
    "WebSocketLink",
    "connect_url",
    "join_topic",
]

_HOMES = {
    "Accept": "defserve.host.answers",
    "Answers": "defserve.host.answers",
    "AuditServer": "defserve.host.mgp.audit.server",
    "Cancel": "defserve.host.answers",
    "Change": "defserve.host.mgp.health",
    "ChannelMessage": "defserve.host.mcpl.channels.messages",
    "Client": "defserve.host.client",
    "Decision": "defserve.host.answers",
    "Declared": "defserve.host.mcpl.feature_sets",
    "Decline": "defserve.host.answers",
    "Delivery": "defserve.host.mcpl.channels.messages",
    "Drain": "defserve.host.mgp.health",
    "Elevation": "defserve.host.mcpl.scopes",
    "Event": "defserve.host.mgp.events",
    "EventAnswer": "defserve.host.mcpl.push.events",
    "EventStream": "defserve.host.mgp.events",
    "FeatureSets": "defserve.host.mcpl.feature_sets",
    "Grant": "defserve.host.mgp.permissions.approval",
    "Health": "defserve.host.mgp.health",
    "HookRunner": "defserve.host.mcpl.hooks",
    "HostState": "defserve.host.mcpl.state",
    "HttpLink": "defserve.host.links.http",
    "Inbox": "defserve.host.mcpl.inbox",
    "InferenceRequest": "defserve.host.mcpl.inference.routing",
    "Injected": "defserve.host.mcpl.hooks",
    "Link": "defserve.host.link",
    "LiveChannels": "defserve.host.mcpl.channels.channels",
    "Lost": "defserve.host.link",
    "Mcpl": "defserve.host.mcpl.mcpl",
    "McplPeer": "defserve.host.mcpl.peer",
    "MessageAnswer": "defserve.host.mcpl.channels.messages",
    "Mgp": "defserve.host.mgp.mgp",
    "MgpPeer": "defserve.host.mgp.peer",
    "Once": "defserve.host.mcpl.once",
    "Outgoing": "defserve.host.mcpl.channels.messages",
    "Pong": "defserve.host.mgp.health",
    "ProcessLink": "defserve.host.links.stdio",
    "PushedEvent": "defserve.host.mcpl.push.events",
    "Remote": "defserve.host.addresses",
    "Reviewed": "defserve.host.mcpl.hooks",
    "Rewritten": "defserve.host.mcpl.hooks",
    "RolledBack": "defserve.host.mcpl.state",
    "Router": "defserve.host.mcpl.inference.routing",
    "ScriptedModel": "defserve.host.mcpl.inference.scripted_model",
    "Stream": "defserve.host.mgp.streaming.stream",
    "TopicClient": "defserve.host.mcpx.participant",
    "WebSocketLink": "defserve.host.links.websocket",
    "connect_url": "defserve.host.addresses",
    "join_topic": "defserve.host.mcpx.participant",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
