"""While much of a connection waits for an earlier request, no more is read from it."""

from __future__ import annotations

import asyncio

# So many bytes may wait. Up to here reading goes on, because only a reader notices that its client has left.
MAX_READ_AHEAD_BYTES = 64 * 1024


class PausableFlowControl:
    """Mixed in before uvicorn's `FlowControl`, which reads on whenever an app waits for something to come."""

    read_paused: bool
    is_held = False
    _transport: asyncio.Transport

    def hold_reading(self) -> None:
        """Read no more until `is_held` is False and reading is resumed."""
        self.is_held = True
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        # Not by way of uvicorn's method: this is called for every request.
        if self.read_paused and not self.is_held:
            self.read_paused = False
            self._transport.resume_reading()
