"""MCPL 0.5 §14: what hosts do with the messages of a channel: read its history, acknowledge one, show typing.

The shapes are those of the hosts in use; the draft only names the capabilities.
"""

from __future__ import annotations

from typing import Any

from defserve.core.call import Call
from defserve.core.profile import mask
from defserve.errors import InvalidParams, PeerError, Refused, ToolError
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl.channels.directory import HeldChannel
from defserve.protocols.mcpl.channels.kind import MOST_HISTORY
from defserve.protocols.mcpl.channels.values import ChannelHistory, Message
from defserve.protocols.mcpl.errors import ChannelOpenFailed, LiveRefusal
from defserve.protocols.mcpl.policies import vocabulary
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

TYPING = ("start", "stop")


async def read_history(call: Call, held: HeldChannel, wanted: Any) -> Params:
    """The latest messages of a channel, if the host wants them and the author can tell. Raises ChannelOpenFailed."""
    function = held.kind.functions.get("history")
    if not is_object(wanted) or function is None:
        return {}
    limit, before = wanted.get("limit"), wanted.get("beforeMessageId")
    most = min(limit, MOST_HISTORY) if type(limit) is int and limit >= 0 else MOST_HISTORY
    values = {
        "channel": held.channel,
        "limit": most,
        "before": before if isinstance(before, str) else None,
        "since_last_seen": wanted.get("sinceLastSeen") is True,
    }
    try:
        found = await function.run(call, held.kind, values)
        told = found if isinstance(found, ChannelHistory) else ChannelHistory(found)
        messages = [_checked(message).wire(tags=vocabulary(call).tags) for message in told.messages]
    except LiveRefusal:
        raise
    except (ToolError, Refused, PeerError) as error:
        raise ChannelOpenFailed(error.message) from error
    except Exception as error:
        raise ChannelOpenFailed(mask(call, error)) from error
    is_cut = told.truncated or len(messages) > most
    return {"history": messages[len(messages) - most :] if is_cut and most else messages[:most]} | (
        {"historyTruncated": True} if is_cut else {}
    )


async def acknowledge(call: Call, held: HeldChannel, params: Params) -> Params:
    """What became of an acknowledgement."""
    values: dict[str, Any] = {
        "channel": held.channel,
        "message_id": text(params, "messageId"),
        "intent": text(params, "intent"),
        "value": params.get("value"),
    }
    if (function := held.kind.functions.get("acknowledge")) is None:
        return {"acknowledged": False, "reason": f"{held.kind.name} have no acknowledgements"}
    try:
        outcome = await function.run(call, held.kind, values)
    except (ToolError, Refused, PeerError) as error:
        return {"acknowledged": False, "reason": error.message}
    shown = {"representation": outcome} if isinstance(outcome, str) else {}
    return {"acknowledged": outcome is not False, **shown}


async def show_typing(call: Call, held: HeldChannel, params: Params) -> None:
    """Tell the author's function that the model writes, or has stopped. Raises InvalidParams."""
    op, metadata = params.get("op", "start"), params.get("metadata")
    if op not in TYPING:
        raise InvalidParams(f"Invalid params: op must be one of {', '.join(TYPING)}")
    if (function := held.kind.functions.get("typing")) is not None:
        values = {"channel": held.channel, "active": op == "start", "metadata": metadata if is_object(metadata) else {}}
        await function.run(call, held.kind, values)


def _checked(message: object) -> Message:
    if not isinstance(message, Message):
        raise TypeError(f"a history has {message!r:.80}, not a Message")
    return message
