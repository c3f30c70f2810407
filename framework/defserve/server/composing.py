"""Turns a server's declarations into a `Composition`, which the runner serves: extensions, wrappers, lifespans."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from defserve.context import Context
from defserve.core.composition import Composition
from defserve.core.extension import Extension, Provider, Wrapper
from defserve.errors import UsageError
from defserve.protocols.mcp.extension import LATE, MCP
from defserve.protocols.mgp.extension import MGP

if TYPE_CHECKING:
    from defserve.server.server import Server


class AuthorExtension(Extension):
    """What every server contributes itself: the `Context` parameter and the author's lifespan."""

    name = "author"

    def __init__(self, server: Server) -> None:
        self._server = server

    def injectables(self) -> dict[Any, Provider]:
        return {Context: Context}

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        servers = self._server.self_and_mounted
        return _lifetime(servers) if any(server.lifespan is not None for server in servers) else None


@asynccontextmanager
async def _lifetime(servers: Sequence[Server]) -> AsyncGenerator[None]:
    """The lifespans of servers, each entered once, inside those before it."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        for server in servers:
            if server.lifespan is not None:
                stack.callback(setattr, server, "lifespan_value", None)
                try:
                    server.lifespan_value = await stack.enter_async_context(server.lifespan(server))
                except Exception as error:
                    error.add_note(f"The lifespan of server {server.name!r} failed, so it does not serve.")
                    raise
        yield


def compose(server: Server) -> Composition:
    """All declarations of a server. Raises UsageError for those that do not fit together."""
    _add_tasks(server)
    _add_apps(server)
    if server.shared is not None:
        from defserve.serving.sharing.extension import Sharing

        server.extend(Sharing(server.shared, server.storage_identity))
    composition = Composition(server.extensions, limits=server.limits, around=_wrappers(server))
    if unknown := sorted(set(server.wrappers) - composition.known_methods):
        raise UsageError(f"around({unknown[0]!r}) wraps a method nobody serves", fix="check its spelling")
    if server.search is not None:
        server.search.check(is_whole=not _is_proxy(server))
    server.check_mounts()
    for child in server.self_and_mounted[:-1]:
        _refuse_left_behind(server, child)
    return composition


def _add_tasks(server: Server) -> None:
    """Serve tasks if a tool, of this server or of one that is mounted, runs as one. One elsewhere always may."""
    mcp, elsewhere = server.mcp, server.mounts if _is_proxy(server) else None
    if elsewhere is not None or any(tool.options.task for tool in mcp.tools.registry):
        from defserve.protocols.mcp.tasks.extension import Tasks

        tasks = Tasks(server.store, server.limits, mcp.tools.registry.get, mcp.subscriptions, elsewhere)
        server.extend(tasks)
        if elsewhere is not None:
            elsewhere.tasks = tasks.elsewhere


def _is_proxy(server: Server) -> bool:
    """Whether servers elsewhere are, or may be, mounted."""
    return any(extension.name == "proxying" for extension in server.extensions)


def _add_apps(server: Server) -> None:
    """Serve views if there is one, here or on a server that is mounted, or a tool that asks for one.

    What servers elsewhere have is not known yet.
    """
    if _is_proxy(server) or any("apps" in item.facets for item in server.mcp.items()):
        from defserve.protocols.mcp.apps.extension import Apps

        server.extend(Apps(server.mcp.resources.concrete))


def _wrappers(server: Server) -> Mapping[str, Sequence[Wrapper]]:
    """The wrappers of each method. If tokens come in messages, their check is the outermost wrapper.

    Next is the one that gives a call of a meta-tool the name of the tool that is meant: all others see that name.
    """
    wrappers: dict[str, Sequence[Wrapper]] = {**server.wrappers}
    if server.search is not None:
        wrappers["tools/call"] = (server.search.calls, *server.wrappers.get("tools/call", ()))
    if server.auth is None or not server.auth.in_messages:
        return wrappers
    from defserve.protocols.mcp.authorization.message_tokens import MessageTokens

    tokens = MessageTokens(server.auth)
    opening = {name for extension in server.extensions for name in extension.opens_with}
    served = {name for extension in server.extensions for name in extension.methods()}
    return {name: (tokens, *wrappers.get(name, ())) for name in served - opening} | {
        name: wrappers for name, wrappers in wrappers.items() if name in opening
    }


def _refuse_left_behind(parent: Server, child: Server) -> None:
    """Raises UsageError if the child would lose protection by being mounted."""
    everywhere = (MCP, MGP, AuthorExtension)
    # Those of LATE come with the items: the parent has its own.
    own = [e for e in child.extensions if not isinstance(e, everywhere) and e.name not in LATE]
    extensions = [extension for extension in own if extension not in parent.extensions]
    if settings := child.mgp.options.acts:
        what, fix = f"{settings[0]}=", f"give it to Server({parent.name!r}, …) instead"
    elif extensions:
        what, fix = f"extension {extensions[0].name!r}", f"declare it on {parent.name!r} instead"
    elif child.wrappers:
        what, fix = f"around({next(iter(child.wrappers))!r})", f"declare it on {parent.name!r} instead"
    else:
        return
    raise UsageError(
        f"{what} of {child.name!r} would not act on {parent.name!r}, where {child.name!r} is mounted", fix=fix
    )
