"""Helps to test a server: the pytest fixtures of `defserve.testing.plugin`, and what they are made of.

A test can run over every transport and in both eras, without set-up. A question without a prepared answer fails the
test. Names are loaded when they are first used, because pytest imports this package at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.client.answers import Accept, Cancel, Decline
    from defserve.testing.client import SyncClient, UnansweredQuestion, UnusedAnswer, assert_schemas
    from defserve.testing.evals import Absent, Contains, EvalAnswer, EvalModel, Like, OneOf
    from defserve.testing.webhooks import ReceivedEvent, WebhookReceiver
    from defserve.tooling.lint.definitions import problems
    from defserve.tooling.listing import catalogue, server_listing
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.client.answers": "Accept Cancel Decline",
            "defserve.testing.client": "SyncClient UnansweredQuestion UnusedAnswer assert_schemas",
            "defserve.testing.evals": "Absent Contains EvalAnswer EvalModel Like OneOf",
            "defserve.testing.webhooks": "ReceivedEvent WebhookReceiver",
            "defserve.tooling.lint.definitions": "problems",
            "defserve.tooling.listing": "catalogue server_listing",
        },
    )

__all__ = [
    "Absent",
    "Accept",
    "Cancel",
    "Contains",
    "Decline",
    "EvalAnswer",
    "EvalModel",
    "Like",
    "OneOf",
    "ReceivedEvent",
    "SyncClient",
    "UnansweredQuestion",
    "UnusedAnswer",
    "WebhookReceiver",
    "assert_schemas",
    "catalogue",
    "server_listing",
    "problems",
]
