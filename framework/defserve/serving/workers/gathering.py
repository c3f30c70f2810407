"""What a group says of itself: the metrics of all workers, and whether they live and are ready.

Whoever asks while the workers are being asked gets the same answer, so that a caller cannot multiply its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from defserve.observing.merging import merged
from defserve.observing.metrics import head, labels
from defserve.serving.workers.link import LONGEST_LINE, Gone

if TYPE_CHECKING:
    from defserve.serving.workers.supervisor import Supervisor

UP: Final = "defserve_worker_up"
RESTARTS: Final = "defserve_worker_restarts_total"


class Gathering:
    """Asks the workers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._underway: dict[str, asyncio.Task[Any]] = {}

    async def answer(self, what: str) -> Any:
        """The answer to a worker's question about its group."""
        if (task := self._underway.get(what)) is None:
            work = self._metrics() if what == "metrics" else self._state()
            task = self._underway[what] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._underway.pop(what))
        return await asyncio.shield(task)

    async def _state(self) -> dict[str, Any]:
        """How many workers there should be, how many live, and how many of these want calls."""
        words = await self._from_all("readiness")
        return {
            "count": self._supervisor.plan.count,
            "live": len(words),
            "ready": sum(status == 200 for status, _ in words.values()),
            "stopping": self._supervisor.is_stopping,
        }

    async def _metrics(self) -> str:
        most = LONGEST_LINE // (4 * self._supervisor.plan.count)  # JSON may double it, and all of them are sent on
        texts = await self._from_all("metrics", most)
        return merged(["".join(f"{line}\n" for line in self._lines(texts)), *texts.values()])

    async def _from_all(self, what: str, about: Any = None) -> dict[int, Any]:
        """The answers of those that answer in time, by number."""
        workers = [p.worker for p in self._supervisor.places if p.worker is not None and p.worker.is_ready]
        seconds = self._supervisor.timing.answer
        asked = (worker.link.ask(what, about, seconds=seconds) for worker in workers)
        found = await asyncio.gather(*asked, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, Gone):
                raise each
        answered = zip(workers, found, strict=True)
        return {worker.number: value for worker, value in answered if not isinstance(value, BaseException)}

    def _lines(self, answered: dict[int, Any]) -> Iterator[str]:
        """The metrics that a supervisor knows itself."""
        places = self._supervisor.places
        yield from head(UP, "gauge", "Whether a worker answers.")
        for place in places:
            yield f"{UP}{labels(worker=str(place.number))} {int(place.number in answered)}"
        yield from head(RESTARTS, "counter", "How often a worker was started again.")
        for place in places:
            yield f"{RESTARTS}{labels(worker=str(place.number))} {place.restarts}"
