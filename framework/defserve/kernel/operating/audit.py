"""`defserve kernel audit` and `mgp/audit/replay`: the audit log of a kernel, for its operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol

from defserve.core.call import Call
from defserve.errors import MethodNotFound, UsageError
from defserve.kernel.config.entries import KernelConfig
from defserve.kernel.governance.operators import check_operator
from defserve.protocols.mgp.audit.replay import LARGEST_LIMIT, ReadableAuditLog, readable, replay
from defserve.server.server import Server
from defserve.stores.audit.log import AuditUnavailable
from defserve.wire.messages import Params

FOLLOW_SECONDS: Final = 0.5
NO_LOG: Final = "this kernel keeps no audit log that can be read"


class AuditedKernel(Protocol):
    """The part of a kernel that is audited."""

    config: KernelConfig
    server: Server


class KernelAudit:
    """Only operators read the log: it tells what everybody does."""

    def __init__(self, kernel: AuditedKernel) -> None:
        self._kernel = kernel

    async def replay(self, call: Call, params: Params) -> Params:
        """`mgp/audit/replay`. Raises PermissionDenied for others than operators."""
        check_operator(call, self._kernel.config.settings.admins)
        if (log := self._log()) is None:
            raise MethodNotFound(f"Method not found: {NO_LOG}")
        return await replay(call, log, params)

    async def show(self, last: int = 20, follow: bool = False, verify: bool = False) -> AsyncGenerator[dict[str, Any]]:
        """The last records, and with `follow` those that come; or with `verify`, whether the log is intact."""
        if (log := self._log()) is None:
            raise UsageError(NO_LOG, fix='say audit = "audit.jsonl" in [kernel], and start the kernel again')
        try:
            if verify:
                yield {"log": self._kernel.config.settings.audit, **(await asyncio.to_thread(log.verify))._asdict()}
                return
            async for event in _events(log, last, follow):
                yield event
        except AuditUnavailable as error:
            raise UsageError(error.message, fix="see `defserve kernel audit --verify`") from None

    def _log(self) -> ReadableAuditLog | None:
        return readable(self._kernel.server.mgp.audit.sinks)


async def _events(log: ReadableAuditLog, last: int, follow: bool) -> AsyncGenerator[dict[str, Any]]:
    newest = await asyncio.to_thread(lambda: log.last_seq)
    seq = max(1, newest - last + 1)
    while True:
        page = await asyncio.to_thread(log.replay, seq, None, LARGEST_LIMIT)
        for event in page.events:
            yield event
        seq = page.next_seq
        if not page.has_more:
            if not follow:
                return
            await asyncio.sleep(FOLLOW_SECONDS)
