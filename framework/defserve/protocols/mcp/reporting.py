"""MCP logging and progress (server utilities): what a running call tells the client about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from defserve.core.call import Call, InnerCall
from defserve.core.extension import Extension, Handler, Listener
from defserve.core.json_values import is_mapping
from defserve.core.messages import Params, is_request_id
from defserve.core.peer import CURRENT_SENDER
from defserve.errors import InvalidParams
from defserve.protocols.mcp.errors import read_meta
from defserve.protocols.mcp.lifecycle import LOG_LEVEL_META_KEY, LOG_LEVELS, Dialect, get_dialect, require_handshake

if TYPE_CHECKING:
    from defserve.core.session import Session

LOG_LEVEL_RANKS = {level: rank for rank, level in enumerate(LOG_LEVELS)}
DEFAULT_LEVEL = "info"


class LogLevel:
    """The least severe level a session's client wants."""

    level: str = DEFAULT_LEVEL


class Reporting(Extension):
    """What clients say about logs, and about calls that they no longer need."""

    def methods(self) -> Mapping[str, Handler]:
        return {"logging/setLevel": set_level}

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/cancelled": on_cancelled}

    def export_state(self, session: Session) -> Params:
        level = session.peek(LogLevel)
        return {"level": level.level} if level is not None else {}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        if "level" in kept:
            session.local(LogLevel).level = kept["level"]


class CallReports:
    """How far a call's progress has come, and how much it has logged. `also` is called with every progress."""

    __slots__ = ("progress", "messages", "also")

    def __init__(self) -> None:
        self.progress: float | None = None
        self.messages = 0
        self.also: Callable[[float, float | None, str | None], None] | None = None


def set_level(call: Call, params: Params) -> Params:
    """`logging/setLevel`."""
    require_handshake(call)
    level = params.get("level")
    if level not in LOG_LEVELS:
        raise InvalidParams(f"Invalid params: level must be one of {', '.join(LOG_LEVELS)}")
    call.session.local(LogLevel).level = str(level)
    call.session.mark_dirty()
    return {}


def send_log_message(call: Call, level: str, message: str, fields: Params, args: tuple[Any, ...] = ()) -> None:
    """Send a log message that belongs to this call, secrets masked, if the client wants its level. From any thread."""
    threshold = get_log_threshold(call)
    if threshold is None or LOG_LEVEL_RANKS[level] < LOG_LEVEL_RANKS[threshold]:
        return
    reported, limit = call.root.local(CallReports), call.session.composition.limits.log_messages_per_call
    reported.messages += 1
    if reported.messages > limit:
        return
    if reported.messages == limit:
        message, fields, args = f"further messages of this call are dropped after {limit}", {}, ()
    from defserve.base.redaction import redact, redact_text

    name, message = call.subject_name, _format_message(message, args)
    message = redact_text(message, limit=len(message), multiline=True)
    data = {"message": message, **redact(_jsonable(fields))} if fields else message
    logger = {"logger": name} if name else {}
    call.notify("notifications/message", {"level": level, "data": data, **logger})


def relay_log_message(call: Call, params: Params) -> None:
    """Send a log message of another server that works for this call, if the client wants its level."""
    threshold, rank = get_log_threshold(call), LOG_LEVEL_RANKS.get(str(params.get("level")))
    if threshold is None or rank is None or rank < LOG_LEVEL_RANKS[threshold]:
        return
    reported = call.local(CallReports)
    reported.messages += 1
    if reported.messages <= call.session.composition.limits.log_messages_per_call:
        call.notify("notifications/message", params)


def send_progress(call: Call, value: float, total: float | None, message: str | None) -> None:
    """Report progress to a client that asked for it; values that do not grow are left out. From any thread."""
    if isinstance(call, InnerCall):
        if call.nth is not None:  # one of several calls: each is one step of the call that makes them
            share = value / total if total else value
            value, total = call.nth + (share if 0 <= share < 1 else 0), None
        send_progress(call.outer, value, total, message)
        return
    token, reported = read_progress_token(call), call.local(CallReports)
    if token is None and reported.also is None:
        return
    if not isfinite(value) or (reported.progress is not None and value <= reported.progress):
        return
    reported.progress = value
    if reported.also is not None:
        reported.also(value, total, message)
    if token is None:
        return
    params: Params = {"progressToken": token, "progress": value}
    if total is not None and isfinite(total):
        params["total"] = total
    if message and "progress_message" in get_dialect(call).has:
        params["message"] = message
    call.notify("notifications/progress", params, replaces=("progress", token))


def read_progress_token(call: Call) -> int | str | None:
    """The token of a client that wants progress of this call."""
    token = read_meta(call.params).get("progressToken")
    return token if isinstance(token, int | str) and not isinstance(token, bool) else None


def get_log_threshold(call: Call) -> str | None:
    """The least severe level that the client wants to hear of; None if it wants no logs."""
    profile = call.terms.profile
    if isinstance(profile, Dialect) and profile.stateless:
        return read_meta(call.params).get(LOG_LEVEL_META_KEY)
    level = call.session.peek(LogLevel)
    return level.level if level is not None else DEFAULT_LEVEL


def _jsonable(fields: Params) -> Params:
    """Fields of any type: a value without a JSON form is shown as text, because a log line must never fail a call."""
    try:
        return to_jsonable_python(fields, fallback=_text, inf_nan_mode="null", serialize_unknown=True)
    except Exception:  # bytes that are not text, a value that contains itself, an author's own serializer
        return {name: _text(value) for name, value in fields.items()}


def _format_message(message: object, args: tuple[Any, ...]) -> str:
    """The message with its `%s` filled, as `logging` does it. Arguments that do not fit stand behind it."""
    text = _text(message)
    if not args:
        return text
    try:
        return text % (args[0] if len(args) == 1 and is_mapping(args[0]) else args)
    except Exception:  # a log line must never fail a call
        return f"{text} {_text(args)}"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def on_cancelled(session: Session, params: Params) -> None:
    """`notifications/cancelled`: stop a call. An id that names no running call is ignored."""
    id = params.get("requestId")
    if is_request_id(id):
        session.cancel(id, CURRENT_SENDER.get())
