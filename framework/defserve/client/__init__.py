"""The other side of the conversation: a client for any server, for tests, the command line and hosts.

`Client` works in both eras and over every transport. MGP and MCPL are opt-in (`mgp=`, `mcpl=`) and are not imported
otherwise. The names here are imported when they are first used: finding a server to run (`client.targets`) needs no
client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.client.answers import Accept, Answers, Cancel, Decision, Decline
    from defserve.client.apps import RenderedApp
    from defserve.client.audit import AuditServer
    from defserve.client.client import Client
    from defserve.client.events import ClientEvents, EventListener, ServerOccurrence, WebhookSubscription
    from defserve.client.extension import ClientExtension
    from defserve.client.link import ClientLink, LostRequest
    from defserve.client.links.http import HttpLink
    from defserve.client.links.stdio import ProcessLink
    from defserve.client.links.websocket import WebSocketLink
    from defserve.client.mcpl.channels import (
        Acknowledgement,
        ChannelMessage,
        Delivery,
        LiveChannels,
        MessageAnswer,
        OpenedChannel,
        OutgoingChannelMessage,
    )
    from defserve.client.mcpl.feature_sets import DeclaredFeatureSet, FeatureSets
    from defserve.client.mcpl.hooks import HookRunner, ReviewedAnswer, RewrittenAnswer, ServerInjection
    from defserve.client.mcpl.inference import InferenceRequest, Router, ScriptedModel
    from defserve.client.mcpl.options import Elevation, Mcpl
    from defserve.client.mcpl.peer import McplPeer, PolicyReceipt
    from defserve.client.mcpl.push import AnswerWindow, EventAnswer, Inbox, PushedEvent
    from defserve.client.mcpl.state import HostState, RolledBack, StateChange
    from defserve.client.mgp.events import EventStream, Health, HealthPong, LifecycleChange, ServerEvent, ShutdownAnswer
    from defserve.client.mgp.peer import Mgp, MgpPeer
    from defserve.client.mgp.server_claims import Grant
    from defserve.client.mgp.streaming import Stream
    from defserve.client.signin.authorizer import (
        ClientCredentials,
        CrossAppAccess,
        SignIn,
        StoredSignIn,
        WorkloadIdentity,
    )
    from defserve.client.skills import LoadedSkill, UnverifiedSkill, skill_fingerprint
    from defserve.client.targets import RemoteServer, connect_url
    from defserve.client.tasks import StartedCall
    from defserve.client.topic_client import TopicClient, join_topic
    from defserve.serve.address import SignInError
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.client.targets": "RemoteServer connect_url",
            "defserve.client.answers": "Accept Answers Cancel Decision Decline",
            "defserve.client.apps": "RenderedApp",
            "defserve.client.client": "Client",
            "defserve.client.events": "ClientEvents EventListener ServerOccurrence WebhookSubscription",
            "defserve.client.extension": "ClientExtension",
            "defserve.client.link": "ClientLink LostRequest",
            "defserve.client.links.http": "HttpLink",
            "defserve.client.links.stdio": "ProcessLink",
            "defserve.client.links.websocket": "WebSocketLink",
            "defserve.client.mcpl.channels": (
                "LiveChannels Acknowledgement ChannelMessage Delivery MessageAnswer OpenedChannel "
                "OutgoingChannelMessage"
            ),
            "defserve.client.mcpl.feature_sets": "DeclaredFeatureSet FeatureSets",
            "defserve.client.mcpl.hooks": "HookRunner ServerInjection ReviewedAnswer RewrittenAnswer",
            "defserve.client.mcpl.push": "Inbox AnswerWindow EventAnswer PushedEvent",
            "defserve.client.mcpl.inference": "InferenceRequest Router ScriptedModel",
            "defserve.client.mcpl.options": "Mcpl Elevation",
            "defserve.client.mcpl.peer": "McplPeer PolicyReceipt",
            "defserve.client.mcpl.state": "HostState RolledBack StateChange",
            "defserve.client.topic_client": "TopicClient join_topic",
            "defserve.client.audit": "AuditServer",
            "defserve.client.mgp.events": "ServerEvent EventStream LifecycleChange ShutdownAnswer Health HealthPong",
            "defserve.client.mgp.peer": "Mgp MgpPeer",
            "defserve.client.mgp.server_claims": "Grant",
            "defserve.client.mgp.streaming": "Stream",
            "defserve.client.signin.authorizer": (
                "ClientCredentials CrossAppAccess SignIn StoredSignIn WorkloadIdentity"
            ),
            "defserve.client.skills": "UnverifiedSkill skill_fingerprint LoadedSkill",
            "defserve.client.tasks": "StartedCall",
            "defserve.serve.address": "SignInError",
        },
    )

__all__ = [
    "Accept",
    "Acknowledgement",
    "Answers",
    "AuditServer",
    "Cancel",
    "LifecycleChange",
    "ChannelMessage",
    "Client",
    "ClientCredentials",
    "ClientEvents",
    "ClientExtension",
    "CrossAppAccess",
    "Decision",
    "DeclaredFeatureSet",
    "Decline",
    "Delivery",
    "ShutdownAnswer",
    "Elevation",
    "ServerEvent",
    "ServerOccurrence",
    "EventAnswer",
    "EventListener",
    "EventStream",
    "FeatureSets",
    "Grant",
    "Health",
    "HookRunner",
    "HostState",
    "HttpLink",
    "Inbox",
    "InferenceRequest",
    "ServerInjection",
    "ClientLink",
    "LiveChannels",
    "LoadedSkill",
    "LostRequest",
    "Mcpl",
    "McplPeer",
    "MessageAnswer",
    "Mgp",
    "MgpPeer",
    "AnswerWindow",
    "OpenedChannel",
    "OutgoingChannelMessage",
    "PolicyReceipt",
    "HealthPong",
    "ProcessLink",
    "PushedEvent",
    "RemoteServer",
    "RenderedApp",
    "ReviewedAnswer",
    "RewrittenAnswer",
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
    "WebhookSubscription",
    "WorkloadIdentity",
    "connect_url",
    "join_topic",
    "skill_fingerprint",
]
