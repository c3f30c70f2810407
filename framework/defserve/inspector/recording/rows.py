"""The rows of the timeline under a filter: which messages have a row, kept and extended as messages come.

An answer is part of the row of its request. Its coming can change that row, also whether it fits the filter.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from defserve.inspector.recording.filter import Filter, parse
from defserve.inspector.recording.recorder import RecordedMessage, Recorder

AT_ONCE: Final = 5_000
"""Messages that are looked at before others get their turn."""
MOST_FILTERS: Final = 4

KINDS: Final[Mapping[str, Callable[[RecordedMessage], bool]]] = {
    "all": lambda entry: True,
    "requests": lambda entry: entry.kind in ("request", "answer"),
    "notices": lambda entry: entry.kind == "notice",
    "errors": lambda entry: entry.error is not None,
}


@dataclass(frozen=True, slots=True)
class Query:
    """What is to be seen: the text of a filter, one of KINDS, and whether each answer has a row of its own."""

    text: str = ""
    kind: str = "all"
    answers: bool = False


class Rows:
    """The sequence numbers of the messages that fit a query, oldest first.

    version  changes when a row came or went in the middle. Otherwise rows are only added at the end.
    dropped  how many rows have left at the beginning, because their messages were forgotten
    """

    def __init__(self, recorder: Recorder, query: Query) -> None:
        self._recorder, self._query = recorder, query
        self._filter: Filter = parse(query.text)
        self._is_kind = KINDS[query.kind]
        self._seqs: array[int] = array("Q")
        self._seen = 0
        self.version = self.dropped = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def __getitem__(self, part: slice) -> list[int]:
        return list(self._seqs[part])

    async def catch_up(self) -> None:
        """Look at every message that came since the last time."""
        while True:
            if not self._look():
                return
            await asyncio.sleep(0)

    def place(self, seq: int) -> int:
        """The index of the first row at or after a sequence number."""
        return bisect_left(self._seqs, seq)

    def has(self, seq: int) -> bool:
        return self.place(seq) < len(self._seqs) and self._seqs[self.place(seq)] == seq

    def _look(self) -> bool:
        """Look at some messages. Whether there are more."""
        recorder = self._recorder
        self._forget()
        start = max(self._seen, recorder.first)
        stop = min(start + AT_ONCE, recorder.count)
        for entry in recorder.slice(start, stop):
            if self._fits(entry):
                self._seqs.append(entry.seq)
            if entry.kind == "answer" and entry.of is not None:
                self._again(entry.of)
        self._seen = stop
        return stop < recorder.count

    def _forget(self) -> None:
        if (gone := self.place(self._recorder.first)) > 0:
            del self._seqs[:gone]
            self.dropped += gone

    def _again(self, seq: int) -> None:
        """Look again at a request that was answered."""
        if (entry := self._recorder.entry(seq)) is None:
            return
        place, had, fits = self.place(seq), self.has(seq), self._fits(entry)
        if had == fits:
            return
        if fits:
            self._seqs.insert(place, seq)
        else:
            del self._seqs[place]
        self.version += 1

    def _fits(self, entry: RecordedMessage) -> bool:
        has_row = entry.kind != "answer" or entry.of is None or self._query.answers
        return has_row and self._is_kind(entry) and self._filter.fits(entry)


class RowsInUse:
    """The rows of the queries that pages asked for last."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rows: OrderedDict[Query, Rows] = OrderedDict()

    async def of(self, query: Query) -> Rows:
        """The rows of a query, up to date. Raises FilterProblem."""
        rows = self._rows.get(query) or Rows(self._recorder, query)
        self._rows[query] = rows
        self._rows.move_to_end(query)
        while len(self._rows) > MOST_FILTERS:
            self._rows.popitem(last=False)
        await rows.catch_up()
        return rows
