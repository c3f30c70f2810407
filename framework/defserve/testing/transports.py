"""The transports that a server can be tested over. Each connects a client without any set-up in the test."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, redirect_stdout
from secrets import token_urlsafe
from typing import Any, Final

from defserve.auth.local_token import add_local_token_auth, resolve_local_key
from defserve.client.client import Client
from defserve.client.links.stdio import ProcessLink
from defserve.client.targets import RemoteServer, is_server_address
from defserve.errors import UsageError
from defserve.stores.identity import ServerStore
from defserve.stores.store import MemoryStore, is_in_memory
from defserve.tooling.loading import load_without_serving

# Options that only network transports use: they say who the client is.
CREDENTIAL_OPTIONS = ("token", "headers")

Options = Mapping[str, Any]

CHILD_PROGRAM: Final = "import sys; from defserve.testing.transports import serve_in_memory as s; s(sys.argv[1])"


def connect_test_client(over: str, server: Any, options: Options) -> AbstractAsyncContextManager[Client]:
    """A client of `server`: an object, its name, or the address of a running server.

    An address names its own transport. `options` are those of `Client`, and `token` and `headers` for the network; in
    memory and over stdio those two are ignored. Without them the client is the local user, as in memory, unless the
    server checks tokens. With `token=None` it is a stranger.
    """
    credentials = {name: options[name] for name in CREDENTIAL_OPTIONS if name in options}
    rest = {name: value for name, value in options.items() if name not in CREDENTIAL_OPTIONS}
    if isinstance(server, str) and is_server_address(server):
        if not credentials:
            server, credentials["token"] = resolve_local_key(server, None, {})
        return RemoteServer(server, **credentials).connect(**rest)
    if over not in TRANSPORTS:
        raise UsageError(f"a server cannot be tested over {over!r}", fix=f"use one of {', '.join(TRANSPORTS)}")
    return TRANSPORTS[over](server, rest, credentials)


@asynccontextmanager
async def _over_stdio(server: Any, options: Options, _: Options) -> AsyncGenerator[Client]:
    if not isinstance(server, str):
        raise UsageError(
            "over stdio a server runs in its own process, so it cannot be given as an object",
            fix='name it: @pytest.mark.serves("module:server")',
        )
    rest = {name: value for name, value in options.items() if name != "own_store"}
    # The child finds the name where this process would find it.
    link = await ProcessLink.spawn(
        sys.executable,
        ["-m", "defserve", "run", server] if options.get("own_store", True) else ["-c", CHILD_PROGRAM, server],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with Client(link, **rest) as client:
        yield client


def serve_in_memory(target: str) -> None:
    """Serve what `target` names on stdio, its stores in memory. What it prints when it's loaded goes to stderr."""
    with redirect_stdout(sys.stderr):
        server = load_without_serving(target)
    use_memory_stores(server)
    server.run()


def _over_network(scheme: str) -> Connect:
    @asynccontextmanager
    async def connect(server: Any, options: Options, credentials: Options) -> AsyncGenerator[Client]:
        from defserve.serve.session_opener import serve_on_loopback

        server = _load_server(server)
        app = server.asgi()
        if not credentials and app.auth is None:
            credentials = {"token": (key := token_urlsafe(32))}
            app.auth = add_local_token_auth(key, None)
        async with serve_on_loopback(app, server.limits, scheme=scheme) as url:
            try:
                async with RemoteServer(url, **credentials).connect(**options) as client:
                    yield client
            finally:
                await app.provider.stop()

    return connect


def _load_server(server: Any) -> Any:
    return load_without_serving(server) if isinstance(server, str) else server


Connect = Callable[[Any, Options, Options], AbstractAsyncContextManager[Client]]

TRANSPORTS: dict[str, Connect] = {
    "memory": lambda server, options, credentials: _load_server(server).connect(**options),
    "stdio": _over_stdio,
    "http": _over_network("http"),
    "ws": _over_network("ws"),
}


# -- Where a server under test stores its states and tasks: in empty memory, so that no test finds or leaves anything.


class StoreOfTest(MemoryStore):
    """Stands for the store of a server while a test runs."""


def use_memory_stores(server: Any) -> None:
    """Let a server, and those mounted in it, store values in memory instead of on disk or in Redis. It starts empty."""
    for _, part in _find_store_parts(server):
        if isinstance(part.raw, StoreOfTest) or not is_in_memory(part):
            part.raw = StoreOfTest()


def refuse_stores_replaced_before(server: Any) -> None:
    """Raises UsageError if the stores of a server were replaced: it has seals of the other store, and keeps them."""
    for name, part in _find_store_parts(server):
        if isinstance(part.raw, StoreOfTest):
            raise UsageError(
                f"{name} was tested with a store in memory before, so it can't use its own store in this run",
                fix="write own_store=True in every mark of this server, or make a server for each test",
            )


def _find_store_parts(server: Any) -> list[tuple[str, ServerStore]]:
    """The parts of stores that are a server's, and the names of the servers."""
    found: dict[int, tuple[str, ServerStore]] = {}
    for each in getattr(server, "self_and_mounted", ()):
        states = [
            state.store
            for extension in each.extensions
            if extension.name == "mcpl"
            for state in extension.list_states()
        ]
        found |= {id(part): (each.name, part) for part in (each.store, *states) if isinstance(part, ServerStore)}
    return list(found.values())
