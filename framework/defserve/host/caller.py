"""What the features of MGP and MCPL need of the client they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from defserve.host.answers import Answers
from defserve.host.conversation import Progress, RequestObserver
from defserve.host.fields import Json

SendParams: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Json]]
"""Sends one request whose method is already chosen, and gives back its result."""
SendRequest: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Json]]
SendNotification: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class Caller(Protocol):
    """The verbs of `Client` that the features use; see there what each does and raises."""

    answers: Answers
    timeout: float | None

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: Progress | None = None,
        observer: RequestObserver | None = None,
    ) -> Json: ...

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None: ...

    def say(self, method: str, params: Mapping[str, Any] | None = None) -> asyncio.Task[None]: ...

    async def call_raw(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, fields: Mapping[str, Any] | None = None
    ) -> Json: ...

    async def value(self, tool: str, result: Json) -> Any: ...

    async def listed(self, tool: str, *, again: bool = False) -> Json: ...

    async def resources(self) -> list[Json]: ...

    async def read_text(self, uri: str) -> str: ...
