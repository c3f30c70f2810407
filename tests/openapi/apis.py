"""Small documents, and an API that answers from a function and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from defserve import Server

Json = dict[str, Any]
BASE = "https://api.example.com/v1"


def document(paths: Json, **more: Any) -> Json:
    """A document with these paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Test", "version": "2"},
        "servers": [{"url": BASE}],
        "paths": paths,
        **more,
    }


def operation(*parameters: Json, body: Json | None = None, **more: Any) -> Json:
    """An operation; `body` is the `content` of its request body."""
    made: Json = {"responses": {"200": {"description": "ok"}}, "parameters": list(parameters), **more}
    return made if body is None else {**made, "requestBody": {"content": body, "required": True}}


def parameter(name: str, place: str = "query", kind: Any = "string", **more: Any) -> Json:
    schema = kind if isinstance(kind, dict) else {"type": kind}
    return {"name": name, "in": place, "schema": schema, "required": place == "path", **more}


class RecordingApi:
    """An API in this process. `asked` are the requests it got."""

    def __init__(self, answer: Callable[[httpx2.Request], httpx2.Response] | None = None) -> None:
        self.asked: list[httpx2.Request] = []
        self._answer = answer or (lambda request: httpx2.Response(200, json={"ok": True}))
        self.client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        return self._answer(request)

    @property
    def last(self) -> httpx2.Request:
        return self.asked[-1]

    @property
    def target(self) -> str:
        """Path and query of the last request, as they were sent."""
        return self.last.url.raw_path.decode()

    def server(self, paths: Json, /, *, components: Json | None = None, **options: Any) -> Server:
        more = {"components": components} if components is not None else {}
        return Server.from_openapi(document(paths, **more), client=self.client, **options)
