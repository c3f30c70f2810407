"""What pages see of a recorder: its rows under each filter in use, its overview, and how long calls took."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from defserve.client.replies import Json
from defserve.errors import UsageError, find_nearest_names
from defserve.inspector.recording.recorder import RecordedMessage, Recorder


class SharedTimeline:
    """The shared part of every page's timeline."""

    def __init__(self, recorder: Recorder) -> None:
        self.rows, self.overview = RecentQueryRows(recorder), Overview(recorder)
        self._recorder = recorder
        self._told: list[Callable[[], object]] = []

    def clear(self) -> None:
        """Forget every message, and tell whoever follows."""
        self._recorder.clear()
        for tell in tuple(self._told):
            tell()

    def add_clear_listener(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Have `tell` called when the timeline is cleared. Call what it returns to end that."""
        self._told.append(tell)
        return lambda: self._told.remove(tell)


# -- The rows of the timeline under a filter: which messages have a row, kept and extended as messages come.
#
# An answer is part of the row of its request. Its coming can change that row, also whether it fits the filter.


AT_ONCE: Final = 5_000
"""Messages that are looked at before others get their turn."""
MAX_FILTERS: Final = 4

MESSAGE_KIND_FILTERS: Final[Mapping[str, Callable[[RecordedMessage], bool]]] = {
    "all": lambda entry: True,
    "requests": lambda entry: entry.kind in ("request", "answer"),
    "notices": lambda entry: entry.kind == "notice",
    "errors": lambda entry: entry.error is not None,
}


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """What is to be seen: the text of a filter, one of KINDS, and whether each answer has a row of its own.

    `hides_own` leaves out what the inspector sent for itself.
    """

    text: str = ""
    kind: str = "all"
    answers: bool = False
    hides_own: bool = False


class TimelineRows:
    """The sequence numbers of the messages that fit a query, oldest first.

    version  changes when a row came or went in the middle. Otherwise rows are only added at the end.
    dropped  how many rows have left at the beginning, because their messages were forgotten
    """

    def __init__(self, recorder: Recorder, query: TimelineQuery) -> None:
        self._recorder, self._query = recorder, query
        self._filter: Filter = parse_filter(query.text)
        self._is_kind = MESSAGE_KIND_FILTERS[query.kind]
        self._seqs: array[int] = array("Q")
        self._seen = 0
        self.version = self.dropped = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def __getitem__(self, part: slice) -> list[int]:
        return list(self._seqs[part])

    async def catch_up(self) -> None:
        """Look at every message that came since the last time."""
        while self._look():  # noqa: ASYNC110 - it only gives others their turn
            await asyncio.sleep(0)

    def find_row_index(self, seq: int) -> int:
        """The index of the first row at or after a sequence number."""
        return bisect_left(self._seqs, seq)

    def has_message(self, seq: int) -> bool:
        return self.find_row_index(seq) < len(self._seqs) and self._seqs[self.find_row_index(seq)] == seq

    def _look(self) -> bool:
        """Look at some messages. Whether there are more."""
        recorder = self._recorder
        if (gone := self.find_row_index(recorder.first)) > 0:
            del self._seqs[:gone]
            self.dropped += gone
        start = max(self._seen, recorder.first)
        stop = min(start + AT_ONCE, recorder.count)
        for entry in recorder.get_messages(start, stop):
            if self._is_match(entry):
                self._seqs.append(entry.seq)
            if entry.kind == "answer" and entry.of is not None:
                self._again(entry.of)
        self._seen = stop
        return stop < recorder.count

    def _again(self, seq: int) -> None:
        """Look again at a request that was answered."""
        if (entry := self._recorder.get_message(seq)) is None:
            return
        place, had, fits = self.find_row_index(seq), self.has_message(seq), self._is_match(entry)
        if had == fits:
            return
        if fits:
            self._seqs.insert(place, seq)
        else:
            del self._seqs[place]
        self.version += 1

    def _is_match(self, entry: RecordedMessage) -> bool:
        has_row = entry.kind != "answer" or entry.of is None or self._query.answers
        is_hidden = self._query.hides_own and entry.is_own
        return has_row and not is_hidden and self._is_kind(entry) and self._filter.is_match(entry)


class RecentQueryRows:
    """The rows of the queries that pages asked for last."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rows: OrderedDict[TimelineQuery, TimelineRows] = OrderedDict()

    async def get_current_rows(self, query: TimelineQuery) -> TimelineRows:
        """The rows of a query, up to date. Raises InvalidFilter."""
        rows = self._rows.get(query) or TimelineRows(self._recorder, query)
        self._rows[query] = rows
        self._rows.move_to_end(query)
        while len(self._rows) > MAX_FILTERS:
            self._rows.popitem(last=False)
        await rows.catch_up()
        return rows


# -- The filter of the timeline: words, and `name:value` terms. What does not parse is told with its place.
#
# survey a word in the method, in what it is about, or in the id method:tools tool:add contained in the method, in the
# name of a called tool id:7 trace:req-1 checkpoint:chk_1 era:stateless dir:sent is:error is:slow not:ping whatever the
# term after it does not fit "two words" blanks and colons belong to the word


SLOW_MS: Final = 1_000.0
MAX_FILTER_LENGTH: Final = 500

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "era": ("handshake", "stateless"),
    "dir": ("sent", "received"),
    "is": ("error", "slow"),
}
_TESTS: Final[Mapping[str, Callable[[RecordedMessage, str], bool]]] = {
    "": lambda entry, word: (
        word in entry.method.lower() or word in entry.about.lower() or word in str(entry.id or "").lower()
    ),
    "method": lambda entry, part: part in entry.method.lower(),
    "tool": lambda entry, part: entry.method == "tools/call" and part in entry.about.lower(),
    "id": lambda entry, id: entry.id is not None and str(entry.id).lower() == id,
    "trace": lambda entry, trace: entry.trace.lower() == trace,
    "checkpoint": lambda entry, checkpoint: entry.checkpoint.lower() == checkpoint,
    "era": lambda entry, era: entry.era == era,
    "dir": lambda entry, direction: entry.direction == direction,
    "is": lambda entry, what: (
        entry.error is not None if what == "error" else entry.ms is not None and entry.ms >= SLOW_MS
    ),
}
NAMES: Final = tuple(name for name in _TESTS if name)
NOT: Final = "not:"
_NAME: Final = re.compile(r"([A-Za-z]+):(?!//)")
_BLANKS: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"\S*")


class InvalidFilter(UsageError):
    """A filter that does not parse: `text[start:stop]` is what is wrong with it."""

    def __init__(self, message: str, start: int, stop: int, fix: str) -> None:
        super().__init__(f"{message} (at character {start + 1})", fix=fix)
        self.start, self.stop, self.problem, self.way = start, stop, message, fix


@dataclass(frozen=True, slots=True)
class Term:
    """One term: `name` is "" for a word. `start` is where it begins in the text, `value_start` where its value does."""

    name: str
    value: str
    negated: bool
    start: int
    value_start: int
    stop: int

    def is_match(self, entry: RecordedMessage) -> bool:
        return _TESTS[self.name](entry, self.value) is not self.negated


@dataclass(frozen=True, slots=True)
class Filter:
    """What a message must fit: all of its terms."""

    terms: tuple[Term, ...] = ()

    def is_match(self, entry: RecordedMessage) -> bool:
        return all(term.is_match(entry) for term in self.terms)


def parse_filter(text: str) -> Filter:
    """The filter that a text says. Raises InvalidFilter."""
    if len(text) > MAX_FILTER_LENGTH:
        raise InvalidFilter(
            f"a filter has up to {MAX_FILTER_LENGTH} characters", MAX_FILTER_LENGTH, len(text), "use fewer words"
        )
    terms: list[Term] = []
    place = _after(_BLANKS, text, 0)
    while place < len(text):
        terms.append(term := _term(text, place))
        place = _after(_BLANKS, text, term.stop)
    return Filter(tuple(terms))


def _after(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found else place


def _term(text: str, start: int) -> Term:
    place, negated = start, False
    while text[place : place + len(NOT)].lower() == NOT:
        place, negated = place + len(NOT), not negated
    name = ""
    if (found := _NAME.match(text, place)) is not None:
        name = _resolve_name(found.group(1), place, found.end())
        place = found.end()
    value, stop = _value(text, place)
    if not value:
        what = text[start:place] or '""'
        raise InvalidFilter(f"{what} has no value", start, stop, f"write what to look for after it: {_example(name)}")
    choices = CHOICES.get(name)
    if choices is not None and value not in choices:
        raise InvalidFilter(f"{name}: cannot be {value!r}", place, stop, f"use one of {', '.join(choices)}")
    return Term(name, value, negated, start, place, stop)


def _resolve_name(name: str, start: int, stop: int) -> str:
    if (lower := name.lower()) in NAMES:
        return lower
    near = find_nearest_names(lower, (*NAMES, "not"))
    told = f"write {near[0]}:" if near else f"use one of {', '.join(f'{each}:' for each in (*NAMES, 'not'))}"
    raise InvalidFilter(f"{name}: is not known", start, stop, f"{told}, or put the word in quotes")


def _value(text: str, place: int) -> tuple[str, int]:
    """The value that begins at a place, in lower case, and where it ends."""
    if text[place : place + 1] != '"':
        stop = _after(_WORD, text, place)
        return text[place:stop].lower(), stop
    end = text.find('"', place + 1)
    if end < 0:
        raise InvalidFilter("the quote is not closed", place, len(text), 'end it with "')
    if end + 1 < len(text) and not text[end + 1].isspace():
        raise InvalidFilter("something follows the quote", end + 1, _after(_WORD, text, end + 1), "put a blank between")
    return text[place + 1 : end].lower(), end + 1


def _example(name: str) -> str:
    examples = {
        "id": "id:7",
        "trace": "trace:req-1",
        "checkpoint": "checkpoint:chk_1",
        "method": "method:tools/call",
        "tool": "tool:add",
    }
    return examples.get(name) or (f"{name}:{CHOICES[name][0]}" if name in CHOICES else "not:ping")


# -- How many messages passed when, and how many errors: a few bars for the whole timeline.


NARROWEST: Final = 0.25
"""Seconds of one bar, while the timeline is short."""
BARS: Final = 160
MAX_BUCKETS: Final = 4_096


class Overview:
    """Counts messages as they come. The time and the memory that it takes do not depend on how many there are."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._buckets: dict[int, tuple[int, int]] = {}
        self._width = NARROWEST
        self._first: int = 0
        self._seen = 0

    def count_bars(self) -> Json:
        """`start` in seconds since 1970, `width` of a bar in seconds, and `bars`: [messages, errors] each."""
        self._count()
        if not self._buckets:
            return {"start": 0.0, "width": NARROWEST, "bars": []}
        first, last = min(self._buckets), max(self._buckets)
        together = max(1, ceil((last - first + 1) / BARS))
        found = [[0, 0] for _ in range(BARS)]
        for bucket, (messages, errors) in self._buckets.items():
            bar = found[(bucket - first) // together]
            bar[0] += messages
            bar[1] += errors
        return {"start": first * self._width, "width": self._width * together, "bars": found}

    def _count(self) -> None:
        recorder = self._recorder
        if recorder.first != self._first:
            # What lies before the first message that is left is dropped.
            self._first = recorder.first
            if (left := recorder.get_message(recorder.first)) is None:
                self._buckets, self._width = {}, NARROWEST
            else:
                oldest = int(left.time / self._width)
                self._buckets = {bucket: counts for bucket, counts in self._buckets.items() if bucket >= oldest}
        for entry in recorder.get_messages(max(self._seen, recorder.first), recorder.count):
            bucket = int(entry.time / self._width)
            messages, errors = self._buckets.get(bucket, (0, 0))
            is_error = entry.kind != "request" and entry.error is not None
            self._buckets[bucket] = (messages + 1, errors + is_error)
            if len(self._buckets) > MAX_BUCKETS:
                self._widen()
        self._seen = recorder.count

    def _widen(self) -> None:
        """Make buckets twice as wide."""
        wider: dict[int, tuple[int, int]] = {}
        for bucket, (messages, errors) in self._buckets.items():
            so_far, wrong = wider.get(bucket // 2, (0, 0))
            wider[bucket // 2] = (so_far + messages, wrong + errors)
        self._buckets, self._width = wider, self._width * 2


# -- How long calls of tools took: the latest of each tool, as a histogram, and the calls of the last minute.


EDGES: Final = tuple(digit * 10.0**power for power in range(-1, 5) for digit in (1, 2, 5))
"""Milliseconds where a bar of the histogram ends and the next begins: 0.1, 0.2, 0.5, 1, …, 50,000."""
MAX_TOOLS: Final = 500
MAX_CALLS: Final = 1_000
SLOWEST: Final = 8
SECONDS: Final = 60


class TimedCall(NamedTuple):
    """A call that has ended. `seq` is its answer in the timeline."""

    seq: int
    time: float
    ms: float
    failed: bool


class Latencies:
    """The latest calls of each tool in each era, measured here: from the request's bytes to those of the answer.

    Both are bounded: tools that were not called for the longest time are forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._calls: OrderedDict[tuple[str, str], deque[TimedCall]] = OrderedDict()
        self._recent: deque[tuple[str, float, bool]] = deque(maxlen=100_000)
        self.count = 0
        """How many calls have ended."""

    def add(self, entry: RecordedMessage) -> None:
        """Take a message of the timeline. Only answers to calls of ours count."""
        if entry.method != "tools/call" or entry.kind != "answer" or entry.ms is None or entry.direction == "sent":
            return
        key = entry.era, entry.about
        if (calls := self._calls.get(key)) is None:
            calls = self._calls[key] = deque(maxlen=MAX_CALLS)
            if len(self._calls) > MAX_TOOLS:
                self._calls.popitem(last=False)
        else:
            self._calls.move_to_end(key)
        failed = entry.error is not None
        calls.append(TimedCall(entry.seq, entry.time, entry.ms, failed))
        self._recent.append((entry.era, entry.time, failed))
        self.count += 1

    def describe_era(self, era: str) -> Json:
        """For the page: `edges`, `tools` by name, and `seconds`: the calls and errors in each of the last minute.

        The last of `seconds` is the current one, so it is not over yet.
        """
        tools = sorted((tool, calls) for (of, tool), calls in self._calls.items() if of == era)
        return {"edges": EDGES, "tools": [_tool(*each) for each in tools], "seconds": self._seconds(era)}

    def _seconds(self, era: str) -> list[tuple[int, int]]:
        now = int(self._clock())
        calls, errors = [0] * SECONDS, [0] * SECONDS
        for of, moment, failed in reversed(self._recent):
            place = SECONDS - 1 - (now - int(moment))
            if place < 0:
                break
            if of == era and place < SECONDS:
                calls[place] += 1
                errors[place] += failed
        return list(zip(calls, errors, strict=True))


def _tool(tool: str, calls: Iterable[TimedCall]) -> Json:
    every = sorted(calls, key=lambda call: call.ms)
    bars, failed = [0] * (len(EDGES) + 1), [0] * (len(EDGES) + 1)
    for call in every:
        place = bisect_right(EDGES, call.ms)
        bars[place] += 1
        failed[place] += call.failed
    return {
        "tool": tool,
        "calls": len(every),
        "errors": sum(failed),
        "median": _share(every, 0.5),
        "p95": _share(every, 0.95),
        "slowest": [call._asdict() for call in reversed(every[-SLOWEST:])],
        "bars": bars,
        "failed": failed,
        "last": max(call.time for call in every),
    }


def _share(every: list[TimedCall], share: float) -> float:
    """The time within which a share of the calls ended."""
    return every[min(len(every) - 1, int(share * len(every)))].ms
