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
    from defserve.host.links import Link, Lost
    from defserve.host.mgp import Mgp
    from defserve.host.mgp_peer import MgpPeer
    from defserve.host.stdio import ProcessLink
    from defserve.host.streaming import Stream
    from defserve.host.websocket import WebSocketLink

__all__ = [
    "Accept",
    "Answers",
    "AuditServer",
    "Cancel",
    "Change",
    "Client",
    "Decision",
    "Decline",
    "Drain",
    "Event",
    "EventStream",
    "Grant",
    "Health",
    "HttpLink",
    "Link",
    "Lost",
    "Mgp",
    "MgpPeer",
    "Pong",
    "ProcessLink",
    "Remote",
    "Stream",
    "WebSocketLink",
    "connect_url",
]

_HOMES = {
    "Accept": "defserve.host.answers",
    "Answers": "defserve.host.answers",
    "AuditServer": "defserve.host.audit_server",
    "Cancel": "defserve.host.answers",
    "Change": "defserve.host.health",
    "Client": "defserve.host.client",
    "Decision": "defserve.host.answers",
    "Decline": "defserve.host.answers",
    "Drain": "defserve.host.health",
    "Event": "defserve.host.events",
    "EventStream": "defserve.host.events",
    "Grant": "defserve.host.approval",
    "Health": "defserve.host.health",
    "HttpLink": "defserve.host.http",
    "Link": "defserve.host.links",
    "Lost": "defserve.host.links",
    "Mgp": "defserve.host.mgp",
    "MgpPeer": "defserve.host.mgp_peer",
    "Pong": "defserve.host.health",
    "ProcessLink": "defserve.host.stdio",
    "Remote": "defserve.host.addresses",
    "Stream": "defserve.host.streaming",
    "WebSocketLink": "defserve.host.websocket",
    "connect_url": "defserve.host.addresses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
