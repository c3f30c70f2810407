"""What a server can be asked, one method each: lists, resources, skills, prompts and completions.

With MGP also its health, its end, and who may use which tool. `Client` inherits these methods.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from defserve.base.redaction import get_logger
from defserve.client.replies import Json, object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.errors import PeerError, PeerTimeout

if TYPE_CHECKING:
    from defserve.client.mgp.events import Health, HealthPong, ShutdownAnswer, ShutdownReason
    from defserve.client.mgp.peer import MgpPeer
    from defserve.client.skills import LoadedSkill


MAX_PAGES: Final = 1_000
MAX_ITEMS: Final = 100_000
MAX_LIST_BYTES: Final = 64 * 1024 * 1024
MAX_QUOTE_LENGTH: Final = 100

log = get_logger("client")


class ServerRequests(ABC):
    """Typed methods over `request`. `timeout`: seconds that a request may take; None waits for ever."""

    __slots__ = ()

    timeout: float | None

    @property
    @abstractmethod
    def stateless(self) -> bool:
        """Whether each request stands alone, without a session (2026-07-28 and later)."""

    @abstractmethod
    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """Send any request."""

    async def tools(self) -> list[Json]:
        """Every tool as the server lists it, all pages."""
        return await self._pages("tools/list", "tools")

    async def resources(self) -> list[Json]:
        """Every resource as the server lists it, all pages."""
        return await self._pages("resources/list", "resources")

    async def templates(self) -> list[Json]:
        """Every resource template as the server lists it, all pages."""
        return await self._pages("resources/templates/list", "resourceTemplates")

    async def prompts(self) -> list[Json]:
        """Every prompt as the server lists it, all pages."""
        return await self._pages("prompts/list", "prompts")

    async def read(self, uri: str) -> list[Json]:
        """The contents of a resource, unchanged. Raises PeerError if they are no list of objects."""
        contents: Any = (await self.request("resources/read", {"uri": uri})).get("contents") or []
        objects = [content for content in contents if is_object(content)] if is_array(contents) else []
        if not is_array(contents) or len(objects) < len(contents):
            raise PeerError(f"the contents of {_quote(uri)} are no list of objects")
        return objects

    async def read_text(self, uri: str) -> str:
        """The text of a resource. Several texts are joined; binary contents are decoded as UTF-8."""
        try:
            return (await self.read_bytes(uri)).decode()
        except UnicodeDecodeError:
            raise PeerError(f"{_quote(uri)} is no text in UTF-8") from None

    async def read_bytes(self, uri: str) -> bytes:
        """The bytes of a resource; texts are encoded as UTF-8."""
        contents = await self.read(uri)
        try:
            return b"".join(map(_content_bytes, contents))
        except (ValueError, AttributeError):
            raise PeerError(f"{_quote(uri)} is not in base64") from None

    async def skills(self) -> list[Json]:
        """Every skill as the server lists it, all pages. None of its files is read; see `load_skill`."""
        return await self._pages("skills/list", "skills")

    async def skill(self, uri: str) -> Json:
        """One skill as its server lists it, by the URI of its `SKILL.md`; it need not be in the list."""
        from defserve.client.skills import extract_skill_entry

        return extract_skill_entry(await self.request("skills/get", {"uri": uri}), uri)

    async def directory(self, uri: str) -> list[Json]:
        """What is in a folder of a skill, as resources, all pages. Folders have the type `inode/directory`."""
        return await self._pages("resources/directory/read", "resources", {"uri": uri})

    async def load_skill(self, entry: Json) -> LoadedSkill:
        """Read the `SKILL.md` of a listed skill. Raises UnverifiedSkill if it differs from its entry in anything."""
        from defserve.client.skills import load_skill

        return await load_skill(self.read, entry)

    async def read_verified(self, entry: Json) -> dict[str, bytes]:
        """Every file of a listed skill by its path. Raises UnverifiedSkill at the first difference."""
        from defserve.client.skills import read_verified_files

        return await read_verified_files(self.read, entry)

    async def prompt(self, prompt: str, /, **arguments: Any) -> Json:
        """A prompt with its messages. An argument that is not a string is sent as its JSON text."""
        texts = {name: value if isinstance(value, str) else encode(value).decode() for name, value in arguments.items()}
        return await self.request("prompts/get", {"name": prompt, "arguments": texts})

    async def complete(
        self,
        ref: str | Mapping[str, Any],
        *,
        argument: str,
        value: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Json:
        """The `completion` object for one argument. `ref` is a prompt's name, a URI or template, or the whole ref."""
        params: Json = {"ref": _ref(ref), "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        return object_or_empty((await self.request("completion/complete", params)).get("completion"))

    async def ping(self) -> None:
        """Check that the server answers. The stateless era has no ping, so `server/discover` is sent instead."""
        await self.request("server/discover" if self.stateless else "ping", {})

    async def _pages(
        self,
        method: str,
        member: str,
        about: Mapping[str, Any] = MappingProxyType({}),
        on_page: Callable[[Json], object] | None = None,
    ) -> list[Json]:
        """Every object of a list; `on_page` sees each page.

        Raises PeerError for what is no list, or is longer than any list should be.
        After the first page, for which a person may have had to sign in, all others have the time of one request.
        """
        items: list[Json] = []
        seen: set[str] = set()
        size, params = 0, Json(about)
        began: float | None = None
        while True:
            page = await self.request(method, params)
            if on_page is not None:
                on_page(page)
            began = began or monotonic()
            if self.timeout is not None and monotonic() - began > self.timeout:
                raise PeerTimeout(f"the pages of {method} did not end within {self.timeout:g} s")
            found: Any = page.get(member) or []
            if not is_array(found):
                raise PeerError(f"the answer to {method} has {member!r}, which is not a list")
            objects = [item for item in found if is_object(item)]
            if len(objects) < len(found):
                log.warning("skipped %d items of %s that are no objects", len(found) - len(objects), method)
            items += objects
            cursor = page.get("nextCursor")
            if cursor is None:
                return items
            if not isinstance(cursor, str):
                raise PeerError(f"the answer to {method} has a nextCursor that is not a string")
            if cursor in seen:
                raise PeerError(f"the pages of {method} never end: cursor {cursor[:MAX_QUOTE_LENGTH]!r} came twice")
            seen.add(cursor)
            # One page is as long as a message may be; many are counted.
            size += len(encode(page))
            if len(seen) >= MAX_PAGES or len(items) > MAX_ITEMS or size > MAX_LIST_BYTES:
                most = f"{MAX_PAGES:,} pages, {MAX_ITEMS:,} items or {MAX_LIST_BYTES:,} bytes"
                raise PeerError(f"the pages of {method} do not end: they are more than {most}")
            params = {**about, "cursor": cursor}

    # -- what a server that speaks MGP can be asked; each raises PeerError without `mgp` -----------------------

    @property
    @abstractmethod
    def _mgp_peer(self) -> MgpPeer: ...

    async def health(self) -> Health:
        """The server's health, with its resources and checks (MGP §11.3). Needs `mgp`."""
        from defserve.client.mgp.events import Health, read_health

        return read_health(Health, await self._mgp_peer.request("lifecycle", "mgp/health/status", {}))

    async def health_ping(self) -> HealthPong:
        """The health that the server knows without running its checks."""
        from defserve.client.mgp.events import HealthPong, read_health
        from defserve.protocols.mgp import vocabulary

        sent_at = {"timestamp": vocabulary.format_instant(vocabulary.utc_now())}
        return read_health(HealthPong, await self._mgp_peer.request("lifecycle", "mgp/health/ping", sent_at))

    async def shutdown(self, reason: ShutdownReason = "operator_request", timeout: float = 30.0) -> ShutdownAnswer:
        """Have the server finish its calls within `timeout` seconds, then end (§11.4). For admins and local peers."""
        from defserve.client.mgp.events import ShutdownAnswer

        params = {"reason": reason, "timeout_ms": round(timeout * 1000)}
        return ShutdownAnswer.from_wire(await self._mgp_peer.request("lifecycle", "mgp/lifecycle/shutdown", params))

    async def access_query(self, agent_id: str, tool: str | None = None) -> Json:
        """Whether an agent may use a tool, or the server (MGP §5.4). Needs `mgp`, and an admin's credentials."""
        return await self._request_access("query", agent_id, tool, {})

    async def access_grant(self, agent_id: str, tool: str | None = None, **entry: Unpack[ToolAccessEntry]) -> Json:
        """Allow an agent a tool or the server; with `permission="deny"`, forbid it. Returns the entry."""
        from defserve.protocols.mgp import vocabulary

        fields = _entry_type(tool) | {"permission": "allow"} | dict(entry)
        if "expires_at" in entry:
            fields["expires_at"] = vocabulary.format_instant(entry["expires_at"])
        return await self._request_access("grant", agent_id, tool, fields)

    async def access_revoke(self, agent_id: str, tool: str | None = None) -> Json:
        """Remove an entry."""
        return await self._request_access("revoke", agent_id, tool, _entry_type(tool))

    async def _request_access(self, verb: str, agent_id: str, tool: str | None, fields: Mapping[str, Any]) -> Json:
        """Raises PeerError if the server offers no access control to this client."""
        peer = self._mgp_peer
        params: Json = {"agent_id": agent_id, "server_id": peer.server_id, **fields}
        if tool is not None:
            params["tool_name"] = tool
        return await peer.request("access_control", f"mgp/access/{verb}", params)


class ToolAccessEntry(TypedDict, total=False):
    """The optional fields of an entry that says who may use which tool (MGP §5.4)."""

    permission: Literal["allow", "deny"]
    expires_at: datetime
    justification: str


def _entry_type(tool: str | None) -> Json:
    return {"entry_type": "server_grant" if tool is None else "tool_grant"}


def _content_bytes(content: Json) -> bytes:
    if (blob := content.get("blob")) is None:
        return str(content.get("text", "")).encode()
    # Some servers break the lines of what they encode. Without `validate`, whatever else is no base64 is skipped.
    return base64.b64decode("".join(blob.split()), validate=True)


def _quote(uri: str) -> str:
    return repr(uri[:MAX_QUOTE_LENGTH])


def _ref(ref: str | Mapping[str, Any]) -> Json:
    if not isinstance(ref, str):
        return dict(ref)
    return {"type": "ref/resource", "uri": ref} if ":" in ref else {"type": "ref/prompt", "name": ref}
