"""APIs that become servers: `Server.from_openapi`, `Server.from_fastapi` and `server.add_openapi`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.errors import UsageError
from defserve.openapi.api import MAX_UNSEARCHED_TOOLS, ImportedApi, ImportFields, ImportOptions
from defserve.server.decorators import find_author_location
from defserve.server.options import refuse_unknown_option

if TYPE_CHECKING:
    from defserve.server.server import Server

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


S = TypeVar("S", bound="Server")

IN_PROCESS = "http://localhost"
"""The address of an app in this process. Nothing is ever sent there."""


def make_openapi_server(
    kind: Callable[..., S], document: Any, name: str | None, search: Any, options: Mapping[str, Any]
) -> S:
    """A server with a tool for each operation."""
    api = ImportedApi(document, _parse_options(options, "Server.from_openapi"))
    if search == "auto":
        search = "always" if len(api.tools) > MAX_UNSEARCHED_TOOLS else None
    about: dict[str, Any] = api.server_options
    server = kind(name or api.name, about.pop("version", None), search=search, **about)
    add(server, api)
    return server


def make_fastapi_server(
    kind: Callable[..., S], app: Any, name: str | None, search: Any, options: Mapping[str, Any]
) -> S:
    """A server with a tool for each operation of a FastAPI app, which is called in this process."""
    if not callable(make := getattr(app, "openapi", None)):
        raise UsageError(
            f"a {type(app).__name__} is not a FastAPI app: it has no openapi()",
            where=find_author_location(),
            fix="for another ASGI app: Server.from_openapi(document, client=app, base_url=…)",
        )
    given = {"client": app, "base_url": IN_PROCESS, "slashes": _path_parameters(app), **options}
    return make_openapi_server(kind, make(), name, search, given)


def _path_parameters(app: Any) -> list[str]:
    """The parameters of routes such as `/files/{name:path}`, which take slashes."""
    convertors = [getattr(route, "param_convertors", {}) for route in getattr(app, "routes", ())]
    return [name for found in convertors for name, one in found.items() if type(one).__name__ == "PathConvertor"]


def add_openapi_tools(server: Server, document: Any, options: Mapping[str, Any]) -> None:
    """Add a tool for each operation to a server."""
    add(server, ImportedApi(document, _parse_options(options, "server.add_openapi")))


def add(server: Server, api: ImportedApi) -> None:
    """Serve the tools of an API, as long as the server serves."""
    for tool in api.tools:
        server.add_tool(tool)
    api.on_changed = server.mcp.tools.registry.notify_watchers
    server.lifespan = _within(api, server.lifespan)


def _within(api: ImportedApi, inner: Lifespan | None) -> Lifespan:
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
    refuse_unknown_option(options, list(ImportFields.__annotations__), subject, find_author_location())
    return ImportOptions(**options)
