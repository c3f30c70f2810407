"""MCP by hand: messages of both eras, and a caller that sends them over HTTP with whatever headers it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.attack.speaking.http import BOTH, Json, Response, request
from tests.attack.speaking.sockets import PATIENCE, Place

SESSION, STATELESS, BATCHES = "2025-11-25", "2026-07-28", "2025-03-26"
PREFIX = "io.modelcontextprotocol/"
MGP_ALL = ("security", "permissions", "tool_security", "access_control", "audit", "lifecycle", "bidirectional")


def mgp_offer(version: str, *extensions: str) -> Json:
    """The capabilities of a client that says it speaks MGP."""
    mgp = {"version": "0.3.0", "extensions": list(extensions or MGP_ALL)}
    return {"extensions": {"dev.cloto/mgp": mgp}} if version == STATELESS else {"mgp": mgp}


def message(method: str, params: Mapping[str, Any] | None = None, id: Any = 1) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params or {})}


def notification(method: str, params: Mapping[str, Any] | None = None) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}


def opening(capabilities: Mapping[str, Any] | None = None, version: str = SESSION) -> Json:
    about = {"name": "attacker", "version": "1"}
    params = {"protocolVersion": version, "capabilities": dict(capabilities or {}), "clientInfo": about}
    return message("initialize", params, "open")


def stateless_params(
    params: Mapping[str, Any] | None, capabilities: Mapping[str, Any] | None, meta: Mapping[str, Any] | None = None
) -> Json:
    own = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": dict(capabilities or {})}
    return {**(params or {}), "_meta": {**own, **(meta or {})}}


def tool_call(tool: str, arguments: Mapping[str, Any]) -> Json:
    return {"name": tool, "arguments": dict(arguments)}


def outcome(reply: Mapping[str, Any]) -> str:
    """A reply in a few words: `error -32602: …`, `refused: …`, `result: …`."""
    if "error" in reply:
        return f"error {reply['error'].get('code')}: {str(reply['error'].get('message'))[:120]}"
    result = reply.get("result") or {}
    if result.get("resultType") == "input_required":
        return "asked"
    blocks = result.get("content") or [{}]
    return f"{'refused' if result.get('isError') else 'result'}: {str(blocks[0].get('text', result))[:120]}"


@dataclass(frozen=True)
class Caller:
    """Somebody who sends requests: where to, with which token and which further headers."""

    place: Place
    token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str = "/mcp"
    session: str | None = None
    version: str = SESSION

    def using(self, **changes: Any) -> Caller:
        return replace(self, **changes)

    def all_headers(self, **more: str) -> dict[str, str]:
        found = {"Accept": BOTH, **self.headers}
        if self.token is not None:
            found["Authorization"] = f"Bearer {self.token}"
        if self.session is not None:
            found |= {"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": self.version}
        return {**found, **more}

    def send(
        self, verb: str, body: object = None, *, patience: float = PATIENCE, path: str | None = None, **more: str
    ) -> Response | None:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        return request(self.place, verb, path or self.path, self.all_headers(**more), data, patience=patience)

    def post(self, body: object, *, patience: float = PATIENCE, **more: str) -> Response | None:
        return self.send("POST", body, patience=patience, **more)

    # -- the era with sessions ---------------------------------------------------------------------------

    def open(self, capabilities: Mapping[str, Any] | None = None, version: str = SESSION) -> Caller:
        """The same caller in a session of its own. Without one (refused) it stays as it is."""
        opened = self.post(opening(capabilities, version))
        if opened is None or "mcp-session-id" not in opened.headers:
            return self
        inside = self.using(session=opened.headers["mcp-session-id"], version=version)
        inside.post(notification("notifications/initialized"))
        return inside

    def ask(self, method: str, params: Mapping[str, Any] | None = None, *, patience: float = PATIENCE) -> Json:
        """The reply to a request of this session; `{"status": …}` if there is none."""
        return reply_in(self.post(message(method, params), patience=patience), 1)

    def call(self, tool: str, **arguments: Any) -> Json:
        return self.ask("tools/call", tool_call(tool, arguments))

    # -- the era without ---------------------------------------------------------------------------------

    def alone(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        patience: float = PATIENCE,
    ) -> Json:
        """The reply to a request that stands alone."""
        names = [str(params[member]) for member in ("name", "taskId") if params and member in params]
        headers = {"Mcp-Protocol-Version": STATELESS, "Mcp-Method": method, **({"Mcp-Name": names[0]} if names else {})}
        body = message(method, stateless_params(params, capabilities, meta))
        return reply_in(self.using(session=None).post(body, patience=patience, **headers), 1)

    def call_alone(self, tool: str, **arguments: Any) -> Json:
        return self.alone("tools/call", tool_call(tool, arguments))


def reply_in(response: Response | None, id: Any) -> Json:
    """The reply to `id` in a response, with its HTTP status."""
    if response is None:
        return {"status": None, "error": {"code": None, "message": "no response"}}
    for each in response.messages:
        if each.get("id") == id and "method" not in each:
            return {**each, "status": response.status}
    errors: Sequence[Any] = [each["error"] for each in response.messages if "error" in each]
    error = errors[0] if errors else {"code": None, "message": f"HTTP {response.status} {response.text[:120]}"}
    return {"status": response.status, "error": error}


def works(caller: Caller) -> str:
    """Empty if an honest caller is served; otherwise what it got."""
    reply = caller.call_alone("echo", text="still here")
    return "" if "still here" in outcome(reply) else outcome(reply)
