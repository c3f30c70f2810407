"""Requests watched from outside, and metrics of them in the Prometheus text format (0.0.4), of one process or several.

Arguments and results are never kept.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import ALL_METHODS, Extension, Next, Offer, Wrapper
from defserve.core.json_values import is_mapping
from defserve.core.messages import Params
from defserve.errors import ProtocolError
from defserve.protocols.mcp.errors import ERROR_META_KEY

# Upper bounds in seconds; the last one, +Inf, holds the rest.
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)

# Stands for all unknown tools. Callers could make up any number of names, so those are not counted.
UNKNOWN_TOOL = ""


class Durations:
    """A histogram."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BUCKETS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


# -- Watching requests from outside: when each began, how long it took, how it ended. Arguments are not kept.


Handle = TypeVar("Handle")

OK, ERROR, CANCELLED, ASKED = "ok", "error", "cancelled", "asked"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
UNNAMED = "unnamed"


class RequestOutcome(NamedTuple):
    """How a request ended, and the type of an error. ASKED: the client has to answer a question."""

    kind: str
    error_type: str = ""
    code: int | None = None
    """The error code of the reply. A failed tool has none: its reply is a result."""


class RequestWatcher(Extension, ABC, Generic[Handle]):
    """Override `begin` and `end`. If `methods_watched` is None, every request is watched except `initialize`.

    A wrapped `initialize` would run as a task, and messages right behind it would find no open session.
    """

    methods_watched: tuple[str, ...] | None = None

    def negotiate(self, offer: Offer) -> object | None:
        """Active with every peer."""
        return self

    def around(self) -> Mapping[str, Wrapper]:
        """A wrapper for each method that is watched."""
        return dict.fromkeys(
            (ALL_METHODS,) if self.methods_watched is None else self.methods_watched, self._watch_request
        )

    async def _watch_request(self, call: Call, params: Params, next: Next) -> Any:
        began, begun = perf_counter(), self.begin(call)
        try:
            result = await next(call, params)
        except BaseException as error:
            self.end(call, begun, perf_counter() - began, classify_error(call, error))
            raise
        self.end(call, begun, perf_counter() - began, classify_result(result))
        return result

    @abstractmethod
    def begin(self, call: Call) -> Handle:
        """A request comes in. `end` gets the value that this returns."""

    @abstractmethod
    def end(self, call: Call, begun: Handle, seconds: float, outcome: RequestOutcome) -> None:
        """The request was answered, or never will be."""


def classify_error(call: Call, error: BaseException) -> RequestOutcome:
    """How a call ended that raised."""
    if call.timed_out:
        return RequestOutcome(ERROR, "timeout")
    if call.suspension is not None and not call.cut_short:
        return RequestOutcome(ASKED)
    if not isinstance(error, Exception):
        return RequestOutcome(CANCELLED)
    code = error.code if isinstance(error, ProtocolError) else None
    return RequestOutcome(ERROR, _error_type(getattr(error, "error_type", None) or type(error).__name__), code)


def classify_result(result: Any) -> RequestOutcome:
    """How a call ended that gave a result: it may be an error for the model, or a question."""
    if not is_mapping(result):
        return RequestOutcome(OK)
    if result.get("resultType") == "input_required":
        return RequestOutcome(ASKED)
    if result.get("isError") is not True:
        return RequestOutcome(OK)
    meta = result.get("_meta")
    detail = meta.get(ERROR_META_KEY) if is_mapping(meta) else None
    return RequestOutcome(ERROR, _error_type(detail.get("error_type", "")) if is_mapping(detail) else "")


def _error_type(said: Any) -> str:
    """The name of a kind of error. What is not such a name may be a peer's text, and does not get into logs."""
    return said if isinstance(said, str) and (not said or _NAME.fullmatch(said)) else UNNAMED


class Metrics(RequestWatcher[None]):
    """Counts the calls of tools. It counts on the event loop only, so it needs no lock."""

    name = "metrics"
    methods_watched = ("tools/call",)

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Durations] = {}
        self.in_flight = 0

    def begin(self, call: Call) -> None:
        self.in_flight += 1

    def end(self, call: Call, begun: None, seconds: float, outcome: RequestOutcome) -> None:
        self.in_flight -= 1
        tool = call.subject_name or UNKNOWN_TOOL
        key = tool, outcome.kind
        self.calls[key] = self.calls.get(key, 0) + 1
        self.durations.setdefault(tool, Durations()).add(seconds)

    def text(self, composition: Composition) -> str:
        """The metrics as Prometheus reads them."""
        return "".join(f"{line}\n" for line in self._lines(composition))

    def _lines(self, composition: Composition) -> Iterator[str]:
        yield from format_metric_head("defserve_tool_calls_total", "counter", "Calls of tools, by how they ended.")
        for (tool, outcome), count in self.calls.items():
            yield f"defserve_tool_calls_total{format_metric_labels(tool=tool, outcome=outcome)} {count}"
        yield from format_metric_head(
            "defserve_tool_call_duration_seconds", "histogram", "How long calls of tools took."
        )
        for tool, durations in self.durations.items():
            yield from _histogram("defserve_tool_call_duration_seconds", tool, durations)
        yield from format_metric_head("defserve_tool_calls_in_flight", "gauge", "Calls of tools under way.")
        yield f"defserve_tool_calls_in_flight {self.in_flight}"
        yield from format_metric_head(
            "defserve_sessions", "gauge", "Conversations that were opened and have not ended."
        )
        yield f"defserve_sessions {len(composition.sessions)}"


def format_metric_head(name: str, kind: str, about: str) -> Iterable[str]:
    """The lines that begin a metric."""
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _histogram(name: str, tool: str, durations: Durations) -> Iterator[str]:
    bounds = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
    sums = list(accumulate(durations.counts))
    for bound, count in zip(bounds, sums, strict=True):
        yield f"{name}_bucket{format_metric_labels(tool=tool, le=bound)} {count}"
    yield f"{name}_sum{format_metric_labels(tool=tool)} {durations.sum:.6f}"
    yield f"{name}_count{format_metric_labels(tool=tool)} {sums[-1]}"


def format_metric_labels(**values: str) -> str:
    """Names and values in the text format."""
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in values.items()) + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# -- Metrics of several processes as one text: the format wants the lines of a metric side by side.


HELP, COMMENT = "# HELP ", "#"


def merge_metrics(texts: Iterable[str]) -> str:
    """Texts in the Prometheus format, of which each line is of another process. The first one's comments are kept."""
    families: dict[str, list[str]] = {}
    for text in texts:
        comments_of, lines = "", families.setdefault("", [])
        for line in text.splitlines():
            if line.startswith(HELP):
                name = line.split(" ", 3)[2]
                is_new = name not in families
                lines, comments_of = families.setdefault(name, []), name if is_new else ""
            if not line.startswith(COMMENT) or comments_of:
                lines.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def add_metric_label(text: str, label: str) -> str:
    """The text with one more label, such as `worker="1"`, on every sample."""
    return "".join(f"{_with_label(line, label)}\n" for line in text.splitlines())


def _with_label(line: str, label: str) -> str:
    if not line or line.startswith(COMMENT):
        return line
    name, brace, rest = line.partition("{")
    if not brace or " " in name:
        name, _, rest = line.partition(" ")
        return f"{name}{{{label}}} {rest}"
    return f"{name}{{{label}{',' if not rest.startswith('}') else ''}{rest}"
