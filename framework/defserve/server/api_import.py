"""APIs that become servers: `Server.from_openapi`, `Server.from_fastapi` and `server.add_openapi`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.errors import UsageError
from defserve.openapi.api import MANY, Api, ImportFields, ImportOptions
from defserve.server.decorators import caller
from defserve.server.options import refuse_unknown

if TYPE_CHECKING:
    from defserve.server.server import Server

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


S = TypeVar("S", bound="Server")

IN_PROCESS = "http://localhost"
"""The address of an app in this process. Nothing is ever sent there."""


def server_of(kind: Callable[..., S], document: Any, name: str | None, search: Any, options: Mapping[str, Any]) -> S:
    """A server with a tool for each operation."""
    api = Api(document, _parse_options(options, "Server.from_openapi"))
    if search == "auto":
        search = "always" if len(api.tools) > MANY else None
    about: dict[str, Any] = api.about
    server = kind(name or api.name, about.pop("version", None), search=search, **about)
    add(server, api)
    return server


def server_of_app(kind: Callable[..., S], app: Any, name: str | None, search: Any, options: Mapping[str, Any]) -> S:
    """A server with a tool for each operation of a FastAPI app, which is called in this process."""
    if not callable(make := getattr(app, "openapi", None)):
        raise UsageError(
            f"a {type(app).__name__} is not a FastAPI app: it has no openapi()",
            where=caller(),
            fix="for another ASGI app: Server.from_openapi(document, client=app, base_url=…)",
        )
    given = {"client": app, "base_url": IN_PROCESS, "slashes": _path_parameters(app), **options}
    return server_of(kind, make(), name, search, given)


def _path_parameters(app: Any) -> list[str]:
    """The parameters of routes such as `/files/{name:path}`, which take slashes."""
    convertors = [getattr(route, "param_convertors", {}) for route in getattr(app, "routes", ())]
    return [name for found in convertors for name, one in found.items() if type(one).__name__ == "PathConvertor"]


def add_document(server: Server, document: Any, options: Mapping[str, Any]) -> None:
    """Add a tool for each operation to a server."""
    add(server, Api(document, _parse_options(options, "server.add_openapi")))


def add(server: Server, api: Api) -> None:
    """Serve the tools of an API, as long as the server serves."""
    for tool in api.tools:
        server.add_tool(tool)
    api.on_changed = server.mcp.tools.registry.touch
    server.lifespan = _within(api, server.lifespan)


def _within(api: Api, inner: Lifespan | None) -> Lifespan:
    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncGenerator[Any]:
        async with api.serving():
            if inner is None:
                yield None
            else:
                async with inner(server) as value:
                    yield value

    return lifespan


def _parse_options(options: Mapping[str, Any], subject: str) -> ImportOptions:
    refuse_unknown(options, list(ImportFields.__annotations__), subject, caller())
    return ImportOptions(**options)
