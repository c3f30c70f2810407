"""Puts our classes into uvicorn: checks which ones fit the installed version, and makes the protocol classes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from defserve.limits import Limits
from defserve.runner.fastpath.cycle import FastCycle, WholeCycle
from defserve.runner.fastpath.deadlines import HeadDeadline, PatientWebSocket
from defserve.runner.fastpath.known_heads import KnownHeads
from defserve.runner.fastpath.protocol import FastProtocol

# Undocumented parts of uvicorn that are used by the deadlines, and those that only the fast path uses.
_FOR_DEADLINES = ("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing", "shutdown")
_SET_FOR_DEADLINES = ("transport", "scope", "cycle", "connections")
_FOR_FAST_PATH = tuple(
    (
        "on_message_begin on_headers_complete on_message_complete _start_asgi_task _unsupported_upgrade_warning "
        "on_response_complete timeout_keep_alive_handler _unset_keepalive_if_required"
    ).split()
)
_SET_FOR_FAST_PATH = tuple(
    (
        "app client server scheme tasks limit_concurrency loop app_state flow pipeline server_state "
        "timeout_keep_alive timeout_keep_alive_task"
    ).split()
)
# Every attribute that uvicorn's cycle sets. If it sets more, `FastCycle` may lack something.
_SET_IN_CYCLE = frozenset(
    (
        "scope transport flow logger access_logger access_log default_headers message_event on_response "
        "disconnected keep_alive waiting_for_100_continue body more_body response_started response_complete "
        "chunked_encoding expected_content_length"
    ).split()
)
_FOR_WEBSOCKETS = ("connection_lost", "pause_writing", "resume_writing", "send", "shutdown")
_SET_FOR_WEBSOCKETS = ("transport", "handshake_complete", "close_sent")

FAST = "HttpToolsProtocol"


class Fit(NamedTuple):
    """For each part of ours, why it does not fit; empty if it fits."""

    fast_path: str
    deadlines: str = ""
    websockets: str = ""


def fits(http: Any, websocket: Any = None) -> Fit:
    """What fits uvicorn's class for an HTTP parser, and its class for WebSockets."""
    module = sys.modules[http.__module__]
    cycle_sets = _names_in(getattr(module, "RequestResponseCycle", None))
    missing = _missing(http, (*_FOR_DEADLINES, "handle_websocket_upgrade"), _SET_FOR_DEADLINES)
    missing += [f"cycle.{name}" for name in ("response_complete", "keep_alive") if name not in cycle_sets]
    websockets = _worded(_missing(websocket, _FOR_WEBSOCKETS, _SET_FOR_WEBSOCKETS)) if websocket is not None else ""
    if missing:
        return Fit("the deadlines do not fit", _worded(missing), websockets)
    if http.__name__ != FAST:
        return Fit(f"it needs httptools, and the parser is {http.__name__}", "", websockets)
    missing = _missing(http, _FOR_FAST_PATH, _SET_FOR_FAST_PATH)
    missing += [f"cycle.{name}" for name in sorted(_SET_IN_CYCLE - cycle_sets)]
    if missing:
        return Fit(_worded(missing), "", websockets)
    more = sorted(cycle_sets - _SET_IN_CYCLE - {"bytearray"})
    return Fit(f"uvicorn's requests hold more than is known: {', '.join(more)}" if more else "", "", websockets)


def install(config: Any, limits: Limits) -> Fit:
    """Put our classes into a loaded `uvicorn.Config`, as far as they fit. The caller should log what does not fit."""
    http, websocket = config.http_protocol_class, config.ws_protocol_class
    fit = fits(http, websocket)
    if not fit.fast_path:
        cycle = sys.modules[http.__module__].RequestResponseCycle
        config.http_protocol_class = type(
            f"Fast{http.__name__}",
            (FastProtocol, http),
            {
                "limits": limits,
                "heads": KnownHeads(),
                "fast_cycle": type("FastCycle", (FastCycle, cycle), {}),
                "parsed_cycle": type("ParsedCycle", (WholeCycle, cycle), {}),
            },
        )
    elif not fit.deadlines:
        config.http_protocol_class = type(f"Timed{http.__name__}", (HeadDeadline, http), {"limits": limits})
    if websocket is not None and not fit.websockets:
        config.ws_protocol_class = type(f"Patient{websocket.__name__}", (PatientWebSocket, websocket), {})
    return fit


def _missing(kind: Any, methods: Iterable[str], attributes: Iterable[str]) -> list[str]:
    """Methods that a class lacks, and attributes that its `__init__` does not set."""
    known = _names_in(kind)
    return [name for name in methods if not hasattr(kind, name)] + [name for name in attributes if name not in known]


def _names_in(kind: Any) -> frozenset[str]:
    return frozenset(getattr(getattr(getattr(kind, "__init__", None), "__code__", None), "co_names", ()))


def _worded(missing: list[str]) -> str:
    return f"uvicorn has no {', '.join(missing)}" if missing else ""
