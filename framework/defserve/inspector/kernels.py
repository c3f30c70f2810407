"""The kernel behind the page, in one of two ways: over its control socket, or over MGP's methods.

The control socket tells everything and is there for the user who runs the kernel. MGP's methods work at any address,
and tell what the kernel tells its operators.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, TypeAlias

from defserve.client.client import Client
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, PeerGone
from defserve.inspector.protocol import BadMessage, Json
from defserve.kernel.control import KERNEL_VERBS, KernelVerb, ask_kernel_async


def list_verb_buttons() -> list[str]:
    """The verbs that the page offers, as `defserve kernel` spells them."""
    return [verb.name for verb in KERNEL_VERBS.values() if verb.has_button]


# -- A kernel of this user, over its control socket.


class KernelOverSocket:
    """The kernel that serves a file; the one with this process, if there are several.

    name   how it is reached, for the page
    pause  seconds between two looks
    verbs  the verbs with a button that can be done this way
    """

    name, pause = "control", 1.0

    def __init__(self, config: Path, process: int | None = None) -> None:
        self.config, self.process = config, process
        self.verbs: Sequence[str] = list_verb_buttons()

    async def read_status(self) -> Json:
        """The `status` of the kernel, a row for each of its `servers`, and a `note` if something cannot be told.

        It has `verbs` if this caller may do less than can be done this way.
        """
        asked = (self._ask({"verb": verb}) for verb in ("status", "ps", "history"))
        status, servers, history = await asyncio.gather(*asked)
        steps = {one["id"]: one for one in history}
        rows = [{**row, "history": steps.get(row["id"])} for row in servers]
        return {"status": status[0], "servers": rows}

    async def logs(self, id: str) -> AsyncGenerator[Json]:
        """The lines of a server: those that are kept, then new ones for ever."""
        async with aclosing(
            ask_kernel_async(self.config, {"verb": "logs", "id": id, "follow": True}, self.process)
        ) as lines:
            async for line in lines:
                yield line

    async def list_held_tools(self, id: str) -> list[Json]:
        """The tools of a server that are held because they changed."""
        return await self._ask({"verb": "pins list", "id": id})

    async def run_verb(self, verb: KernelVerb, fields: Json) -> list[Json]:
        """Do what a button stands for."""
        return await self._ask({"verb": verb.name, **fields})

    async def _ask(self, request: Json) -> list[Any]:
        return [answer async for answer in ask_kernel_async(self.config, request, self.process)]


# -- A kernel at an address, over MGP's methods for operators (MGP §11.3, §11.4, §15).


MAX_SERVERS: Final = 256
AT_ONCE: Final = 8
TELLS_LESS: Final = "Calls, times and logs are told over the control socket: defserve inspect mgp.toml --web"
NO_OPERATOR: Final = (
    "This kernel tells you no more, because you are not one of its operators. On its own machine: "
    'defserve inspect mgp.toml --web. Elsewhere: [kernel] admins = ["you"], and a --token.'
)


class KernelOverClient:
    """What a client may know of the kernel that it talks to."""

    name, pause = "mgp", 5.0

    def __init__(self, client: Client) -> None:
        self._client = client
        buttons = list_verb_buttons() if self._has("lifecycle") else []
        self.verbs: Sequence[str] = [name for name in buttons if KERNEL_VERBS[name].method]

    @staticmethod
    def is_kernel(client: Client) -> bool:
        """Whether the server has a directory of servers behind it."""
        return client.mgp is not None and "discovery" in client.mgp.sections

    async def read_status(self) -> Json:
        told = (await self._client.request("mgp/discovery/list", {})).get("servers")
        servers = [one for one in told if is_object(one)][:MAX_SERVERS] if is_array(told) else []
        room = asyncio.Semaphore(AT_ONCE)

        async def row(server: Json) -> tuple[Json, bool]:
            async with room:
                return await self._row(server)

        rows = await asyncio.gather(*map(row, servers))
        refused = any(was_refused for _, was_refused in rows)
        connected = sum(one["state"] == "connected" for one, _ in rows)
        return {
            "status": {"name": str(self._client.server_info.get("name", "")), "connected": connected},
            "servers": [one for one, _ in rows],
            **({"note": NO_OPERATOR, "verbs": []} if refused else {"note": TELLS_LESS}),
        }

    async def _row(self, server: Json) -> tuple[Json, bool]:
        """A server as `ps` would tell of it, and whether its health was refused."""
        tools, id = server.get("tools"), str(server.get("id", ""))
        row: Json = {
            "id": id,
            "state": str(server.get("status", "")),
            "tools": len(tools) if is_array(tools) else None,
            "trust_level": server.get("trust_level"),
            "created_by": server.get("created_by"),
        }
        if row["state"] != "connected" or not self._has("lifecycle"):
            return row, False
        try:
            health = await self._client.request("mgp/health/status", {"server_id": id})
        except PeerGone:
            raise
        except DefserveError:
            return row, True
        return {
            **row,
            "health": health.get("status"),
            "calls": health.get("pending_requests"),
            "restarts": health.get("restarts"),
            "uptime_secs": health.get("uptime_secs"),
        }, False

    async def logs(self, id: str) -> AsyncGenerator[Json]:
        yield {"id": id, "kind": "note", "text": TELLS_LESS}

    async def list_held_tools(self, id: str) -> list[Json]:
        return []

    async def run_verb(self, verb: KernelVerb, fields: Json) -> list[Json]:
        if verb.name not in self.verbs:
            raise BadMessage(
                f"a kernel at an address cannot be told to {verb.name}", fix="use its mgp.toml as the target"
            )
        return [await self._client.request(verb.method, {"server_id": fields["id"]})]

    def _has(self, section: str) -> bool:
        return self._client.mgp is not None and section in self._client.mgp.sections


InspectedKernel: TypeAlias = KernelOverSocket | KernelOverClient
