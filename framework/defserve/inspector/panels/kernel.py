"""The Kernel panel: the servers behind a kernel, what they do, and what an operator does with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from defserve.errors import PeerError
from defserve.inspector.inspection import Inspection
from defserve.inspector.kernels.inspected import COMMANDS, InspectedKernel
from defserve.inspector.kernels.methods import KernelByMethods
from defserve.inspector.panels.verb import Verb, era_of
from defserve.inspector.protocol import BadMessage, Request

OF_ALL: Final = "reload"
ACCEPT: Final = "accept"
OF_HELD: Final = ("tool", "digest")


async def follow(inspection: Inspection, request: Request) -> Any:
    """The servers as parts, whenever something has changed, until it is cancelled.

    Each part has the `way` to the kernel (None: the server is none), its `status` and its `servers`.
    """
    told: Any = None
    while True:
        way = await _way(inspection, request)
        if way is None:
            found: Any = {"way": None}
        else:
            try:
                found = {"way": way.name, "verbs": dict(way.verbs), **await way.look()}
            except PeerError as error:
                _failed(inspection, request, way, error)
                raise
        if found != told:
            told = found
            request.part(found)
        if way is None:
            return None
        await asyncio.sleep(way.pause)


async def logs(inspection: Inspection, request: Request) -> Any:
    """The lines of a server as parts, until it is cancelled."""
    way = await _kernel(inspection, request)
    async with aclosing(way.logs(request.text("server"))) as lines:
        async for line in lines:
            request.part(line)


async def held(inspection: Inspection, request: Request) -> Any:
    """The definitions of a server that are held, each with what has changed."""
    return await (await _kernel(inspection, request)).held(request.text("server"))


async def do(inspection: Inspection, request: Request) -> Any:
    """Start, stop or restart a server, accept what it changed, or read the file again."""
    verb = request.text("verb")
    if verb not in COMMANDS:
        raise BadMessage(f"a kernel cannot {verb[:60]!r}", fix=f"use one of {', '.join(COMMANDS)}")
    way = await _kernel(inspection, request)
    fields: dict[str, str | bool] = {} if verb == OF_ALL else {"id": request.text("server")}
    fields |= {name: text for name in OF_HELD if (text := request.text(name, ""))}
    if verb == ACCEPT and request.arguments.get("unseen") is True:
        fields["unseen"] = True
    try:
        return await way.do(verb, fields)
    except PeerError as error:
        _failed(inspection, request, way, error)
        raise


async def _way(inspection: Inspection, request: Request) -> InspectedKernel | None:
    if (control := inspection.target.kernel) is not None:
        # Its socket is there as soon as the first conversation is.
        await inspection.client()
        return control
    client = await inspection.client(era_of(request))
    return KernelByMethods(client) if KernelByMethods.is_kernel(client) else None


async def _kernel(inspection: Inspection, request: Request) -> InspectedKernel:
    if (way := await _way(inspection, request)) is None:
        raise BadMessage("this server is no kernel", fix="start one: defserve kernel --config mgp.toml")
    return way


def _failed(inspection: Inspection, request: Request, way: InspectedKernel, error: PeerError) -> None:
    if isinstance(way, KernelByMethods):
        inspection.failed(era_of(request), error)


VERBS: Final[Mapping[str, Verb]] = {
    "kernel.follow": follow,
    "kernel.logs": logs,
    "kernel.held": held,
    "kernel.do": do,
}
