"""The waterfall of a call: the stages that it went through, each with its time, inside the time that it took in all.

The process that runs the server measures the stages (`call_timer.py`). Here is their shape, which is bounded whoever
sends it, and their place in the round trip. Of a server elsewhere, only the round trip is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from defserve.client.replies import Json, object_or_empty
from defserve.core.json_values import is_array, is_object

MAX_STAGES: Final = 200
MAX_TITLE_LENGTH: Final = 80
MAX_DEPTH: Final = 12
MAX_MS: Final = 1e9
MAX_NOTE_LENGTH: Final = 400

KINDS: Final = ("outside", "wait", "check", "around", "dependency", "function", "pack")
"""What a stage is: the way to the server and back, waiting, a check of caller or arguments, something around the rest,
a dependency, the author's function, or making the reply."""

ROUND_TRIP_ONLY_NOTE: Final = (
    "Only the round trip is known, because the inspector does not run this server's code. "
    "To see the stages inside, inspect its file: defserve inspect server.py --web"
)
NOT_MEASURED_NOTE: Final = "The server measured nothing of this call: it ended before its first stage."


class WaterfallStage(NamedTuple):
    """One stage. `start` and `ms` are milliseconds, the first since the call began. Those inside it are `depth` + 1."""

    kind: str
    title: str
    depth: int
    start: float
    ms: float
    is_failed: bool = False


class Waterfall(NamedTuple):
    """All stages of a call, in the order in which they began.

    ms        what the call took in all
    left_out  stages that there was no room for
    note      why there is no more to see
    """

    ms: float
    stages: tuple[WaterfallStage, ...]
    left_out: int = 0
    note: str = ""

    @property
    def ms_between_stages(self) -> float:
        """The time that no stage has: what happens between them."""
        covered, reached = 0.0, 0.0
        for stage in self.stages:  # those inside others add nothing
            end = stage.start + stage.ms
            covered += max(0.0, end - max(stage.start, reached))
            reached = max(reached, end)
        return max(0.0, self.ms - covered)

    def to_wire(self) -> Json:
        """For the page, for a session file, and for the pipe."""
        stages = [
            {
                "kind": each.kind,
                "title": each.title,
                "depth": each.depth,
                "start": round(each.start, 4),
                "ms": round(each.ms, 4),
                **({"failed": True} if each.is_failed else {}),
            }
            for each in self.stages
        ]
        about = {"ms": round(self.ms, 4), "between": round(self.ms_between_stages, 4), "stages": stages}
        return (
            about | ({"left_out": self.left_out} if self.left_out else {}) | ({"note": self.note} if self.note else {})
        )


def make_waterfall(ms: float, stages: Iterable[WaterfallStage], *, left_out: int = 0, note: str = "") -> Waterfall:
    """A waterfall within its bounds. Stages beyond them are left out, and titles cut."""
    kept = [
        each._replace(title=each.title[:MAX_TITLE_LENGTH], depth=min(each.depth, MAX_DEPTH))
        for each in sorted(stages, key=lambda each: each.start)
    ]
    return Waterfall(ms, tuple(kept[:MAX_STAGES]), left_out + max(0, len(kept) - MAX_STAGES), note)


def parse_waterfall(value: Any) -> Waterfall:
    """A waterfall that a process or a file gives. Raises ValueError if it is none, or not within its bounds."""
    if not is_object(value) or not is_array(stages := value.get("stages")):
        raise ValueError("a waterfall is an object with a list of stages")
    if len(stages) > MAX_STAGES:
        raise ValueError(f"a waterfall has up to {MAX_STAGES} stages")
    whole, left_out, note = _parse_ms(value, "ms"), value.get("left_out", 0), value.get("note", "")
    if type(left_out) is not int or not 0 <= left_out < 2**31:
        raise ValueError("'left_out' of a waterfall is a whole number")
    if not isinstance(note, str) or len(note) > MAX_NOTE_LENGTH:
        raise ValueError(f"the note of a waterfall has up to {MAX_NOTE_LENGTH} characters")
    return Waterfall(whole, tuple(_parse_stage(each, whole) for each in stages), left_out, note)


def _parse_stage(value: Any, whole: float) -> WaterfallStage:
    stage = object_or_empty(value)
    kind, title, depth = stage.get("kind"), stage.get("title"), stage.get("depth")
    start, ms, is_failed = _parse_ms(stage, "start"), _parse_ms(stage, "ms"), stage.get("failed", False)
    if kind not in KINDS:
        raise ValueError(f"a stage is one of {', '.join(KINDS)}")
    if not isinstance(title, str) or not 0 < len(title) <= MAX_TITLE_LENGTH:
        raise ValueError(f"the title of a stage has up to {MAX_TITLE_LENGTH} characters")
    if type(depth) is not int or not 0 <= depth <= MAX_DEPTH or not isinstance(is_failed, bool):
        raise ValueError("'depth' or 'failed' of a stage is of a wrong type")
    if start + ms > whole * 1.001 + 0.01:  # they were rounded
        raise ValueError("a stage ends after its call")
    return WaterfallStage(kind, title, depth, start, ms, is_failed)


def _parse_ms(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_MS:
        raise ValueError(f"{name!r} of a waterfall is a number of milliseconds")
    return float(value)


# -- The round trip, as the inspector measures it.


class ServerWaterfall(NamedTuple):
    """What a process of ours measured. `began` is when the request arrived there, by the clock of this machine."""

    began: float
    waterfall: Waterfall


def place_in_round_trip(measured: ServerWaterfall, sent: float, ms: float) -> Waterfall:
    """The stages of a server inside the round trip of its call, which was sent then and took so long.

    If the clocks of the two processes differ, half of what is outside the server is before it.
    """
    inner = measured.waterfall
    outside = max(0.0, ms - inner.ms)
    before = (measured.began - sent) * 1000
    if not 0 <= before <= outside:
        before = outside / 2
    whole = max(ms, inner.ms)
    stages = [
        WaterfallStage("outside", "to the server", 0, 0.0, before),
        *(stage._replace(start=stage.start + before) for stage in inner.stages),
        WaterfallStage("outside", "back from the server", 0, before + inner.ms, max(0.0, whole - before - inner.ms)),
    ]
    return make_waterfall(whole, stages, left_out=inner.left_out, note=inner.note)


def measure_round_trip(
    ms: float,
    *,
    is_failed: bool,
    note: str,
    head: float | None = None,
    first: float | None = None,
    server_timing: str = "",
) -> Waterfall:
    """What can be seen of a call from here: when the head of the response and the first part came, and the end.

    `server_timing` is that header of the response, for servers that tell something themselves.
    """
    begins = sorted(
        (at, title)
        for at, title in ((head, "receiving the response"), (first, "receiving its parts"))
        if at is not None
    )
    marks = [(0.0, "sending, and waiting for the server"), *((min(at, ms), title) for at, title in begins)]
    ends = [at for at, _ in marks[1:]] + [ms]
    stages = [
        WaterfallStage("outside", title, 0, at, end - at, is_failed and end == ms)
        for (at, title), end in zip(marks, ends, strict=True)
    ]
    return make_waterfall(ms, [*stages, *_parse_server_timing(server_timing, ms)], note=note)


MAX_HEADER_LENGTH: Final = 8_000
_TIMING: Final = re.compile(
    r'\s*+([\w!#$%&\'*+.^`|~-]{1,80}+)((?:\s*+;\s*+\w{1,20}+\s*+=\s*+(?:"[^"]{0,200}+"|[^\s;,"]{0,200}+))*+)'
)
_DURATION: Final = re.compile(r";\s*dur\s*=\s*\"?(\d{1,9}(?:\.\d{1,9})?)", re.IGNORECASE)


def _parse_server_timing(header: str, ms: float) -> list[WaterfallStage]:
    """What the header `Server-Timing` says. It has no beginnings, so each stage begins with the call."""
    found = [_TIMING.match(each) for each in header[:MAX_HEADER_LENGTH].split(",")]
    told = [(each[1], _DURATION.search(each[2])) for each in found if each is not None]
    return [
        WaterfallStage("function", f"the server says: {name}", 1, 0.0, min(float(took[1]), ms))
        for name, took in told[:MAX_DEPTH]
        if took is not None
    ]
