"""The other side of the conversation: a client for any server, for tests, the command line and hosts.

`Client` works in both eras and over every transport. MGP and MCPL are opt-in (`mgp=`, `mcpl=`) and are not imported
otherwise. The names here are imported when they are first used: finding a server to run (`host.targets`) needs no
client.

May import: `protocols.mcp.apps.offer`, `protocols.mcp.versions`, `protocols.mgp.audit`, `transports.client_errors`,
`wire`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy

if TYPE_CHECKING:
    from defserve.host.addresses import Remote, connect_url
    from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline
    from defserve.host.apps.view import RenderedApp
    from defserve.host.client import Client
    from defserve.host.link import Link, Lost
    from defserve.host.links.http import HttpLink
    from defserve.host.links.stdio import ProcessLink
    from defserve.host.links.websocket import WebSocketLink
    from defserve.host.mcpl.channels.channels import LiveChannels
    from defserve.host.mcpl.channels.messages import (
        Acknowledgement,
        ChannelMessage,
        Delivery,
        MessageAnswer,
        OpenedChannel,
        Outgoing,
    )
    from defserve.host.mcpl.feature_sets import Declared, FeatureSets
    from defserve.host.mcpl.hooks import HookRunner, Injected, Reviewed, Rewritten
    from defserve.host.mcpl.inbox import Inbox
    from defserve.host.mcpl.inference.routing import InferenceRequest, Router
    from defserve.host.mcpl.inference.scripted_model import ScriptedModel
    from defserve.host.mcpl.mcpl import Mcpl
    from defserve.host.mcpl.once import Once
    from defserve.host.mcpl.peer import McplPeer
    from defserve.host.mcpl.push.receiver import EventAnswer, PushedEvent
    from defserve.host.mcpl.receipts import PolicyReceipt
    from defserve.host.mcpl.scopes import Elevation
    from defserve.host.mcpl.state import HostState, RolledBack, StateChange
    from defserve.host.mcpx.participant import TopicClient, join_topic
    from defserve.host.mgp.audit.server import AuditServer
    from defserve.host.mgp.events import Event, EventStream
    from defserve.host.mgp.health import Change, Drain, Health, Pong
    from defserve.host.mgp.mgp import Mgp
    from defserve.host.mgp.peer import MgpPeer
    from defserve.host.mgp.permissions.approval import Grant
    from defserve.host.mgp.streaming.stream import Stream
    from defserve.host.signin.options import (
        ClientCredentials,
        CrossAppAccess,
        SignIn,
        StoredSignIn,
        WorkloadIdentity,
    )
    from defserve.host.skills.entry import UnverifiedSkill, skill_fingerprint
    from defserve.host.skills.loading import LoadedSkill
    from defserve.host.tasks import StartedCall
    from defserve.transports.client_errors import SignInError
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.host.addresses": "Remote connect_url",
            "defserve.host.answers": "Accept Answers Cancel Decision Decline",
            "defserve.host.apps.view": "RenderedApp",
            "defserve.host.client": "Client",
            "defserve.host.link": "Link Lost",
            "defserve.host.links.http": "HttpLink",
            "defserve.host.links.stdio": "ProcessLink",
            "defserve.host.links.websocket": "WebSocketLink",
            "defserve.host.mcpl.channels.channels": "LiveChannels",
            "defserve.host.mcpl.channels.messages": (
                "Acknowledgement ChannelMessage Delivery MessageAnswer OpenedChannel Outgoing"
            ),
            "defserve.host.mcpl.feature_sets": "Declared FeatureSets",
            "defserve.host.mcpl.hooks": "HookRunner Injected Reviewed Rewritten",
            "defserve.host.mcpl.inbox": "Inbox",
            "defserve.host.mcpl.inference.routing": "InferenceRequest Router",
            "defserve.host.mcpl.inference.scripted_model": "ScriptedModel",
            "defserve.host.mcpl.mcpl": "Mcpl",
            "defserve.host.mcpl.once": "Once",
            "defserve.host.mcpl.peer": "McplPeer",
            "defserve.host.mcpl.push.receiver": "EventAnswer PushedEvent",
            "defserve.host.mcpl.receipts": "PolicyReceipt",
            "defserve.host.mcpl.scopes": "Elevation",
            "defserve.host.mcpl.state": "HostState RolledBack StateChange",
            "defserve.host.mcpx.participant": "TopicClient join_topic",
            "defserve.host.mgp.audit.server": "AuditServer",
            "defserve.host.mgp.events": "Event EventStream",
            "defserve.host.mgp.health": "Change Drain Health Pong",
            "defserve.host.mgp.mgp": "Mgp",
            "defserve.host.mgp.peer": "MgpPeer",
            "defserve.host.mgp.permissions.approval": "Grant",
            "defserve.host.mgp.streaming.stream": "Stream",
            "defserve.host.signin.options": "ClientCredentials CrossAppAccess SignIn StoredSignIn WorkloadIdentity",
            "defserve.host.skills.entry": "UnverifiedSkill skill_fingerprint",
            "defserve.host.skills.loading": "LoadedSkill",
            "defserve.host.tasks": "StartedCall",
            "defserve.transports.client_errors": "SignInError",
        },
    )

__all__ = [
    "Accept",
    "Acknowledgement",
    "Answers",
    "AuditServer",
    "Cancel",
    "Change",
    "ChannelMessage",
    "Client",
    "ClientCredentials",
    "CrossAppAccess",
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
    "LoadedSkill",
    "Lost",
    "Mcpl",
    "McplPeer",
    "MessageAnswer",
    "Mgp",
    "MgpPeer",
    "Once",
    "OpenedChannel",
    "Outgoing",
    "PolicyReceipt",
    "Pong",
    "ProcessLink",
    "PushedEvent",
    "Remote",
    "RenderedApp",
    "Reviewed",
    "Rewritten",
    "RolledBack",
    "Router",
    "ScriptedModel",
    "SignIn",
    "SignInError",
    "StartedCall",
    "StateChange",
    "StoredSignIn",
    "Stream",
    "TopicClient",
    "UnverifiedSkill",
    "WebSocketLink",
    "WorkloadIdentity",
    "connect_url",
    "join_topic",
    "skill_fingerprint",
]
