"""Puts our classes into uvicorn: checks which ones fit the installed version, and makes the protocol classes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from defserve.limits import Limits
from defserve.serve.fastpath.crowding import OpenConnections
from defserve.serve.fastpath.cycle import BufferedRequestCycle, KnownHeadCycle
from defserve.serve.fastpath.deadlines import RequestHeadDeadline
from defserve.serve.fastpath.holding import PausableFlowControl
from defserve.serve.fastpath.httptools import BoundedHttptoolsProtocol
from defserve.serve.fastpath.known_heads import RequestHeadCache
from defserve.serve.fastpath.protocol import FastHttptoolsProtocol
from defserve.serve.fastpath.websockets import BoundedWebSocket

# Undocumented parts of uvicorn that are used by the deadlines, and those that only the fast path uses.
_FOR_DEADLINES = tuple(
    (
        "connection_made connection_lost data_received eof_received pause_writing resume_writing shutdown "
        "handle_websocket_upgrade on_response_complete _unset_keepalive_if_required"
    ).split()
)
_SET_FOR_DEADLINES = ("transport", "scope", "headers", "cycle", "client", "connections", "flow")
_SET_IN_CYCLE_FOR_DEADLINES = frozenset(
    "response_started response_complete keep_alive body more_body disconnected message_event".split()
)
# Whether the parser is httptools → methods and attributes.
_OF_PARSER = {
    True: (("on_message_begin", "on_headers_complete", "on_message_complete"), ("pipeline", "parser")),
    False: ((), ("conn",)),
}
_OF_FLOW = (("resume_reading",), ("_transport", "read_paused"))
_FOR_FAST_PATH = tuple("_start_asgi_task _unsupported_upgrade_warning timeout_keep_alive_handler".split())
_SET_FOR_FAST_PATH = tuple(
    (
        "app client server scheme tasks limit_concurrency loop app_state server_state "
        "timeout_keep_alive timeout_keep_alive_task"
    ).split()
)
# Every attribute that uvicorn's cycle sets. If it sets more, `KnownHeadCycle` may lack something.
_SET_IN_CYCLE = frozenset(
    (
        "scope transport flow logger access_logger access_log default_headers message_event on_response "
        "disconnected keep_alive waiting_for_100_continue body more_body response_started response_complete "
        "chunked_encoding expected_content_length"
    ).split()
)
_FOR_WEBSOCKETS = tuple(
    (
        "connection_lost data_received pause_writing resume_writing send receive shutdown handle_cont handle_ping "
        "send_receive_event_to_app handle_parser_exception"
    ).split()
)
_SET_FOR_WEBSOCKETS = tuple(
    "transport handshake_complete close_sent read_paused writable conn queue client connections".split()
)

FAST = "HttpToolsProtocol"


class UvicornCompatReport(NamedTuple):
    """For each part of ours, why it does not fit; empty if it fits."""

    fast_path: str
    deadlines: str = ""
    websockets: str = ""


def check_uvicorn_compat(http: Any, websocket: Any = None) -> UvicornCompatReport:
    """What fits uvicorn's class for an HTTP parser, and its class for WebSockets."""
    module = sys.modules[http.__module__]
    cycle_sets = _names_in(getattr(module, "RequestResponseCycle", None))
    missing = _missing(http, _FOR_DEADLINES, _SET_FOR_DEADLINES)
    missing += _missing(http, *_OF_PARSER[_is_fast(http)])
    missing += [f"cycle.{name}" for name in sorted(_SET_IN_CYCLE_FOR_DEADLINES - cycle_sets)]
    missing += [f"flow.{name}" for name in _missing(getattr(module, "FlowControl", None), *_OF_FLOW)]
    websockets = (
        _format_missing(_missing(websocket, _FOR_WEBSOCKETS, _SET_FOR_WEBSOCKETS)) if websocket is not None else ""
    )
    if missing:
        return UvicornCompatReport("the deadlines do not fit", _format_missing(missing), websockets)
    if not _is_fast(http):
        return UvicornCompatReport(f"it needs httptools, and the parser is {http.__name__}", "", websockets)
    missing = _missing(http, _FOR_FAST_PATH, _SET_FOR_FAST_PATH)
    missing += [f"cycle.{name}" for name in sorted(_SET_IN_CYCLE - cycle_sets)]
    if missing:
        return UvicornCompatReport(_format_missing(missing), "", websockets)
    more = sorted(cycle_sets - _SET_IN_CYCLE - {"bytearray"})
    return UvicornCompatReport(
        f"uvicorn's requests hold more than is known: {', '.join(more)}" if more else "", "", websockets
    )


def install_fast_path(config: Any, limits: Limits) -> UvicornCompatReport:
    """Put our classes into a loaded `uvicorn.Config`, as far as they fit. The caller should log what does not fit."""
    http, websocket = config.http_protocol_class, config.ws_protocol_class
    fit = check_uvicorn_compat(http, websocket)
    if fit.deadlines and _is_fast(http):
        # httptools takes trailers for headers, and bounds nothing. h11 does neither.
        from uvicorn.protocols.http.h11_impl import H11Protocol as http

        config.http_protocol_class, fit = http, fit._replace(deadlines=check_uvicorn_compat(http).deadlines)
    shared: dict[str, Any] = {"limits": limits, "crowd": OpenConnections()}
    if not fit.deadlines:
        shared["flow_kind"] = type("HoldingFlow", (PausableFlowControl, sys.modules[http.__module__].FlowControl), {})
    if not fit.fast_path:
        cycle = sys.modules[http.__module__].RequestResponseCycle
        config.http_protocol_class = type(
            f"Fast{http.__name__}",
            (FastHttptoolsProtocol, http),
            {
                **shared,
                "heads": RequestHeadCache(),
                "fast_cycle": type("FastCycle", (KnownHeadCycle, cycle), {}),
                "parsed_cycle": type("ParsedCycle", (BufferedRequestCycle, cycle), {}),
            },
        )
    elif not fit.deadlines:
        config.http_protocol_class = type(f"Timed{http.__name__}", (_bounds(http), http), shared)
    if websocket is not None and not fit.websockets:
        kinds = (BoundedWebSocket, websocket)
        config.ws_protocol_class = type(f"Patient{websocket.__name__}", kinds, {"crowd": shared["crowd"]})
    return fit


def _bounds(http: Any) -> type[RequestHeadDeadline]:
    if _is_fast(http):
        return BoundedHttptoolsProtocol
    from defserve.serve.fastpath.h11 import BoundedH11Protocol  # who has httptools may do without h11

    return BoundedH11Protocol


def _is_fast(http: Any) -> bool:
    return http.__name__ == FAST


def _missing(kind: Any, methods: Iterable[str], attributes: Iterable[str]) -> list[str]:
    """Methods that a class lacks, and attributes that its `__init__` does not set."""
    known = _names_in(kind)
    return [name for name in methods if not hasattr(kind, name)] + [name for name in attributes if name not in known]


def _names_in(kind: Any) -> frozenset[str]:
    return frozenset(getattr(getattr(getattr(kind, "__init__", None), "__code__", None), "co_names", ()))


def _format_missing(missing: list[str]) -> str:
    return f"uvicorn has no {', '.join(missing)}" if missing else ""
