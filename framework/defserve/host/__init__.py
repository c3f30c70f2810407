"""The other side of the conversation: a client that speaks to any server, for tests, the command line and hosts.

Names are looked up when they are first used: finding a server to run (`host.targets`) needs no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline
    from defserve.host.client import Client
    from defserve.host.links import Link
    from defserve.host.stdio import ProcessLink

__all__ = ["Accept", "Answers", "Cancel", "Client", "Decision", "Decline", "Link", "ProcessLink"]

_HOMES = {
    "Accept": "defserve.host.answers",
    "Answers": "defserve.host.answers",
    "Cancel": "defserve.host.answers",
    "Client": "defserve.host.client",
    "Decision": "defserve.host.answers",
    "Decline": "defserve.host.answers",
    "Link": "defserve.host.links",
    "ProcessLink": "defserve.host.stdio",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
