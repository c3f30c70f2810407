"""A server inside another: its items appear there under a prefix, also when they change. And APIs as servers."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from defserve.client.targets import RemoteServer as Address
from defserve.core.json_values import is_array, is_mapping
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.transforms import MountPrefix
from defserve.proxying.targets import Command
from defserve.server.decorators import find_author_location
from defserve.server.options import refuse_unknown_option

if TYPE_CHECKING:
    from defserve.openapi.api import ImportedApi
    from defserve.protocols.mcp.transforms import Transform
    from defserve.server.server import Server


class InProcessMount:
    """Repeats the child's items in the parent's registries, now and after each change."""

    def __init__(self, parent: MCP, server: Server, prefix: str | None, transform: Transform | None = None) -> None:
        self.server, self._transform, renames = server, transform, MountPrefix(prefix)
        self.prefix = renames
        child = server.mcp
        mirrors: tuple[tuple[Registry[Any], Registry[Any], Callable[[str], str]], ...] = (
            (child.prompts.registry, parent.prompts.registry, renames.prefix_name),
            (child.resources.concrete, parent.resources.concrete, renames.prefix_uri),
            (child.resources.templates, parent.resources.templates, renames.prefix_uri),
            (child.completions.registry, parent.completions.registry, renames.prefix_completion_key),
        )
        with ExitStack() as refused:
            refused.callback(
                _mirror(child.tools.registry, parent.tools.registry, renames.prefix_name, renames, transform)
            )
            for source, target, rename in mirrors:
                refused.callback(_mirror(source, target, rename, renames))
            refused.pop_all()
        child.add_skills_listener(
            lambda skills: _mirror(
                skills.registry, parent.ensure_skills_section().registry, renames.prefix_uri, renames
            )
        )
        child.subscriptions.add_update_listener(
            lambda uri: parent.subscriptions.notify_resource_updated(renames.prefix_uri(uri))
        )

    def check_transform(self) -> None:
        """Raises UsageError if the transform names a tool that the child does not have."""
        if self._transform is not None:
            self._transform.check(name for name, _ in self.server.mcp.tools.registry.items())


def _mirror(
    source: Registry[Any],
    target: Registry[Any],
    rename: Callable[[str], str],
    prefix: MountPrefix,
    transform: Transform | None = None,
) -> Callable[[], None]:
    def rename_item(name: str, item: Any) -> tuple[str, Any] | None:
        if transform is not None and not transform.takes(name, item.options.tags):
            return None
        there = rename(name if transform is None else transform.name(name))
        moved = _move_item(item, there, prefix)
        if transform is not None:
            transform.apply(moved, name)
        return there, moved

    return source.mirror(target, rename_item)


def _move_item(item: Any, there: str, prefix: MountPrefix) -> Any:
    """The item under its name in the parent."""
    if hasattr(item, "copy_for_mount"):  # it has names of other items in it
        return item.copy_for_mount(there, prefix)
    return item.copy_as(there) if hasattr(item, "copy_as") else item


# -- What `server.mount` takes besides a `Server`; for anything else, what to write instead.


_EACH: Final = 'server.mount(Command("npx", "-y", "some-server", env={…}), prefix="…")'
_ANY: Final = 'give a Server, Command("npx", "-y", "some-server"), Remote("https://…"), or a text for one of these'


def check_mountable(given: Any, server: type[Any]) -> None:
    """Raises UsageError. It does not show the arguments of a command, because they may be secrets."""
    if isinstance(given, str | Address | Command):
        return
    kind, fix = type(given).__name__, _ANY
    if isinstance(given, ModuleType):
        found = next((name for name, value in vars(given).items() if isinstance(value, server)), "server")
        kind, fix = "module", f"mount its server: server.mount({given.__name__}.{found})"
    elif is_array(given) and given and isinstance(given[0], str):
        fix = f'write server.mount(Command("{given[0]}"{", …" if len(given) > 1 else ""}))'
    elif is_mapping(given):
        fix = f"mount each of its servers: {_EACH}" if "mcpServers" in given else f"write {_EACH}"
    elif isinstance(given, os.PathLike):
        fix = f'write server.mount(Command("python", "{os.fspath(given)}"))'  # pyright: ignore
    elif isinstance(given, type) and issubclass(given, server):
        kind, fix = "class", "give an object of it"
    raise UsageError(f"server.mount takes no {kind}", where=find_author_location(), fix=fix)


# -- APIs that become servers: `Server.from_openapi`, `Server.from_fastapi` and `server.add_openapi`.


Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


S = TypeVar("S", bound="Server")

IN_PROCESS = "http://localhost"
"""The address of an app in this process. Nothing is ever sent there."""


def make_openapi_server(
    kind: Callable[..., S], document: Any, name: str | None, search: Any, options: Mapping[str, Any]
) -> S:
    """A server with a tool for each operation."""
    from defserve.openapi.api import MAX_UNSEARCHED_TOOLS

    api = _import_api(document, options, "Server.from_openapi")
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
    add(server, _import_api(document, options, "server.add_openapi"))


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


def _import_api(document: Any, options: Mapping[str, Any], subject: str) -> ImportedApi:
    from defserve.openapi.api import ImportedApi, ImportFields, ImportOptions

    refuse_unknown_option(options, list(ImportFields.__annotations__), subject, find_author_location())
    return ImportedApi(document, ImportOptions(**options))
