"""The other side of the conversation: a client that speaks to any server, for tests, the command line and hosts.

Names are looked up when they are first used: finding a server to run (`host.targets`) needs no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.host.addresses import Remote, connect_url
    from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline
    from defserve.host.approval import Grant
    from defserve.host.audit_server import AuditServer
    from defserve.host.client import Client
    from defserve.host.events import Event, EventStream
    from defserve.host.health import Change, Drain, Health, Pong
    from defserve.host.http import HttpLink
    from defserve.host.inbox import Inbox
    from defserve.host.links import Link, Lost
    from defserve.host.live_channels import LiveChannels
    from defserve.host.live_events import EventAnswer, PushedEvent
    from defserve.host.live_hooks import HookRunner, Injected, Reviewed, Rewritten
    from defserve.host.live_messages import ChannelMessage, Delivery, MessageAnswer, Outgoing
    from defserve.host.live_routing import InferenceRequest, Router
    from defserve.host.live_scopes import Elevation
    from defserve.host.live_sets import Declared, FeatureSets
    from defserve.host.live_state import HostState, RolledBack
    from defserve.host.mcpl import Mcpl
    from defserve.host.mcpl_peer import McplPeer
    from defserve.host.mgp import Mgp
    from defserve.host.mgp_peer import MgpPeer
    from defserve.host.once import Once
    from defserve.host.participant import TopicClient, join_topic
    from defserve.host.scripted_model import ScriptedModel
    from defserve.host.stdio import ProcessLink
    from defserve.host.streaming import Stream
    from defserve.host.websocket import WebSocketLink

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
    "AuditServer": "defserve.host.audit_server",
    "Cancel": "defserve.host.answers",
    "Change": "defserve.host.health",
    "ChannelMessage": "defserve.host.live_messages",
    "Client": "defserve.host.client",
    "Decision": "defserve.host.answers",
    "Declared": "defserve.host.live_sets",
    "Decline": "defserve.host.answers",
    "Delivery": "defserve.host.live_messages",
    "Drain": "defserve.host.health",
    "Elevation": "defserve.host.live_scopes",
    "Event": "defserve.host.events",
    "EventAnswer": "defserve.host.live_events",
    "EventStream": "defserve.host.events",
    "FeatureSets": "defserve.host.live_sets",
    "Grant": "defserve.host.approval",
    "Health": "defserve.host.health",
    "HookRunner": "defserve.host.live_hooks",
    "HostState": "defserve.host.live_state",
    "HttpLink": "defserve.host.http",
    "Inbox": "defserve.host.inbox",
    "InferenceRequest": "defserve.host.live_routing",
    "Injected": "defserve.host.live_hooks",
    "Link": "defserve.host.links",
    "LiveChannels": "defserve.host.live_channels",
    "Lost": "defserve.host.links",
    "Mcpl": "defserve.host.mcpl",
    "McplPeer": "defserve.host.mcpl_peer",
    "MessageAnswer": "defserve.host.live_messages",
    "Mgp": "defserve.host.mgp",
    "MgpPeer": "defserve.host.mgp_peer",
    "Once": "defserve.host.once",
    "Outgoing": "defserve.host.live_messages",
    "Pong": "defserve.host.health",
    "ProcessLink": "defserve.host.stdio",
    "PushedEvent": "defserve.host.live_events",
    "Remote": "defserve.host.addresses",
    "Reviewed": "defserve.host.live_hooks",
    "Rewritten": "defserve.host.live_hooks",
    "RolledBack": "defserve.host.live_state",
    "Router": "defserve.host.live_routing",
    "ScriptedModel": "defserve.host.scripted_model",
    "Stream": "defserve.host.streaming",
    "TopicClient": "defserve.host.participant",
    "WebSocketLink": "defserve.host.websocket",
    "connect_url": "defserve.host.addresses",
    "join_topic": "defserve.host.participant",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
