"""Where a server is: a string that names a server object, or an address (http, https, ws, wss).

It imports little, because every command looks here first. The client is imported only when one connects.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

from defserve.base.search_path import add_author_import_folder, find_shadowed_file, is_library_module
from defserve.errors import PeerError, PeerGone, UsageError, find_nearest_names

if TYPE_CHECKING:
    from defserve.client.client import Client
    from defserve.client.link import ClientAuth, ClientLink, ResolveHost


ENTRY_POINT_GROUP: Final = "defserve.servers"
USUAL_NAMES: Final = ("server", "mcp", "app")
USUAL_FILES: Final = ("server.py", "main.py", "app.py")
ADD_SERVER_FIX: Final = "add one at module level: server = Server(...)"


def load_server(target: str) -> Any:
    """The server object that `target` names.

    Without an attribute it tries the usual names (server, mcp, app), then the only server of the module.
    Raises UsageError that says what was not found, and where.
    """
    path, attribute = split_target(target)
    if not (attribute or path.endswith(".py") or is_importable_module(path)) and (
        entry := find_installed_servers(path)
    ):
        return load_server(entry[0].target)
    if not path.endswith(".py"):
        refuse_place(path)
    module = _load_file(path) if path.endswith(".py") else _import(path)
    found = _attribute(module, attribute, target) if attribute else _search(module, target)
    if not is_server_object(found):
        servers = _servers(module)
        fix = f"name the object made with `Server(...)`: {path}:{servers[0]}" if servers else ADD_SERVER_FIX
        raise UsageError(f"{target!r} is {type(found).__name__!r}, not a server", fix=fix)
    return found


class InstalledServer(NamedTuple):
    """A server of an installed distribution."""

    name: str
    target: str
    distribution: str
    version: str


def find_installed_servers(name: str | None = None) -> list[InstalledServer]:
    """The servers of this environment, sorted by name; with a `name`, only that one."""
    from importlib.metadata import entry_points

    return sorted(
        InstalledServer(
            entry.name, entry.value, entry.dist.name if entry.dist else "", entry.dist.version if entry.dist else ""
        )
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if name in (None, entry.name)
    )


def is_server_object(thing: object) -> bool:
    """Whether something is a server. Its methods decide, so that nothing has to be imported."""
    return not isinstance(thing, type) and callable(getattr(thing, "connect", None)) and hasattr(thing, "run")


def is_code_target(target: str) -> bool:
    """Whether `target` names something of this environment: a file, an object, a module, an installed server.

    The standard library has no servers, so a configured server may be called `time`.
    """
    path, attribute = split_target(target)
    if attribute or path.endswith(".py"):
        return not path.endswith(".json")
    top = path.partition(".")[0]
    return (top not in sys.stdlib_module_names and bool(top) and is_importable_module(top)) or bool(
        find_installed_servers(path)
    )


def is_file_target(target: str) -> bool:
    """Whether `target` names a Python file. It imports its neighbours; the current folder has no part in it."""
    return split_target(target)[0].endswith(".py")


def split_target(target: str) -> tuple[str, str]:
    """The file or module, and the name in it (empty if none is given)."""
    path, colon, attribute = target.rpartition(":")
    # "C:\\server.py" has a colon too, but no name follows it.
    return (path, attribute) if colon and attribute.replace(".", "_").isidentifier() else (target, "")


def is_importable_module(name: str) -> bool:
    """Whether it can be imported. A plain folder (a namespace package) does not count."""
    if "." in name:
        return True  # looking for it would import its packages
    try:
        return (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None
    except ValueError:
        return name in sys.modules  # a module made by hand has no spec


_BARE_ADDRESS: Final = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?P<path>/.*)?")


def refuse_place(path: str) -> None:
    """Raises UsageError for an address without its scheme, a folder, another file, or a path to nothing.

    No module is called like that.
    """
    if (bare := _BARE_ADDRESS.fullmatch(path)) is not None:
        whole = f"http://{path}" if bare["path"] else f"http://{path}/mcp"
        raise UsageError(f"{path!r} is not a server", fix=f"write the whole address: {whole}")
    is_path = path.startswith(".") or os.sep in path or "/" in path
    if os.path.isdir(path) and (is_path or not is_importable_module(path)):
        beside = (os.path.join(path, each) for each in USUAL_FILES)
        file = next(filter(os.path.isfile, beside), os.path.join(path, USUAL_FILES[0]))
        raise UsageError(f"{path!r} is a folder, not a server", fix=f"name the file that makes the server: {file}")
    if is_path or (os.path.isfile(path) and ("." in path or not is_importable_module(path))):
        raise UsageError(f"{path!r} is not a server", fix=f"name a Python file or a module; {_instead(path)}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _to_usage_error(f"importing {name!r}", error) from error
        file = f"{name.replace('.', '/')}.py"
        there = f"{file}:server" if os.path.isfile(file) else "path/to/server.py"
        raise UsageError(
            f"there is no module {error.name!r} on the path",
            fix=f"install it here, run from the folder that holds it, or give the file: {there}",
        ) from None
    except Exception as error:
        raise _to_usage_error(f"importing {name!r}", error) from error


def _instead(given: str) -> str:
    """How to fix the name of a file that does not exist. It may be a misspelt neighbour."""
    from difflib import get_close_matches

    folder, name = os.path.split(given)
    try:
        beside = [each[:-3] for each in os.listdir(folder or os.curdir) if each.endswith(".py")]
    except OSError:
        beside = []
    close = get_close_matches(name.removesuffix(".py"), beside, 1)
    meant = f"did you mean {os.path.join(folder, close[0])}.py? If not, " if close else ""
    return f"{meant}check the path; it is relative to the current folder"


def _load_file(given: str) -> ModuleType:
    path = os.path.abspath(given)
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path!r}", fix=_instead(given))
    folder, name = os.path.dirname(path), os.path.basename(path).removesuffix(".py")
    # As `python server.py` does, so that the file can import its neighbours.
    add_author_import_folder(folder)
    # Two files with the same name are two modules: the second one is named by its whole path. So is a file that is
    # called like a library, which others have yet to import.
    whole = "".join(letter if letter.isalnum() else "_" for letter in path)
    for known_as in (whole,) if is_library_module(name) else (name, whole):
        loaded = sys.modules.get(known_as)
        if loaded is None:
            return _run_file(path, known_as)
        if getattr(loaded, "__file__", None) == path:
            return loaded
    raise UsageError(f"{path} and another module are both known as {name!r}", fix="rename the file")


def _run_file(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations are resolved with sys.modules.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _to_usage_error(f"running {os.path.basename(path)}", error, running=name) from error
    return module


OTHER_FRAMEWORKS: Final = frozenset({"fastmcp", "mcp", "mcp_types"})
"""A program that was migrated may still import them."""
_OTHER_ENCODING: Final = re.compile(r"codec can't decode|Non-UTF-8 code|null bytes")
_MISSING_NAME: Final = re.compile(r"cannot import name '(\w+)'")
_FOREIGN_IMPORT: Final = re.compile(rf"\s*(?:from|import)\s+(?:{'|'.join(sorted(OTHER_FRAMEWORKS))})\b")


def _to_usage_error(doing: str, error: Exception, running: str = "") -> UsageError:
    """The error for an exception in the author's module, with the author's line that led to it.

    `running` is the module that did not get to its end, if importlib does not know of it.
    """
    if isinstance(error, UsageError):
        return error
    where, frame, is_environment = "", error.__traceback__, False
    while frame is not None:
        is_environment = frame.tb_frame.f_locals.get("self") is os.environ
        name = frame.tb_frame.f_code.co_filename
        where = where if name.startswith(("<frozen", PACKAGE_FOLDER + os.sep)) else f"{name}:{frame.tb_lineno}"
        frame = frame.tb_next
    text, fix = str(error), ""
    if isinstance(error, SyntaxError):
        if error.filename:
            where, line = f"{error.filename}:{error.lineno}", (error.text or "").strip()
            text = f"{error.msg}\n    {line}" if line else error.msg
        fix = "save the file as UTF-8" if _OTHER_ENCODING.search(text) else ""
    elif hidden := _hidden_neighbour(error):
        fix = f"rename {os.path.basename(hidden)}: a library that defserve uses has its name, and is imported instead"
    elif (owner := _name_module(error)) and (owner == running or "circular import" in text):
        fix = f"{owner} and what it imports import each other: move what both need, as the server, into a third file"
    elif near := _find_near_name(text, owner):
        fix = f"did you mean {near!r}?"
    elif isinstance(error, ModuleNotFoundError) and error.name:
        fix = f"install {error.name!r} for {sys.executable}"
        if error.name.partition(".")[0] in OTHER_FRAMEWORKS:
            file = where.rpartition(":")[0]
            fix = (
                f"write for defserve what still uses another framework, imported in {_list_foreign_imports(file)}; "
                f"`defserve migrate {os.path.basename(file)}` says how. To keep it, {fix}"
            )
    elif isinstance(error, KeyError) and is_environment:
        fix = f"set the environment variable {error.args[0]}"
    where = where.removeprefix(os.getcwd() + os.sep)
    return UsageError(f"{doing} failed: {type(error).__name__}: {text}", where=where, fix=fix)


def _list_foreign_imports(file: str) -> str:
    """The lines of a file that import another framework, in words."""
    with suppress(OSError), open(file, encoding="utf-8", errors="replace") as source:
        found = [str(number) for number, line in enumerate(source, 1) if _FOREIGN_IMPORT.match(line)]
        return f"line{'s' if len(found) > 1 else ''} {', '.join(found)}" if found else "this file"
    return "this file"


def _name_module(error: Exception) -> str | None:
    """The module in which something is missing."""
    if isinstance(error, ImportError):
        return error.name
    return error.obj.__name__ if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) else None


def _find_near_name(text: str, module: str | None) -> str:
    """The name in a module that an import of another one was meant for, or an empty text."""
    missing = _MISSING_NAME.match(text)
    names = (name for name in dir(sys.modules.get(module or "")) if not name.startswith("_"))
    return next(iter(find_nearest_names(missing[1], names)), "") if missing else ""


def _hidden_neighbour(error: Exception) -> str | None:
    """The author's file that was meant, where something is missing in the library of the same name."""
    return find_shadowed_file(name.partition(".")[0]) if (name := _name_module(error)) else None


def _attribute(module: ModuleType, attribute: str, target: str) -> Any:
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            owner = getattr(found, "__name__", None) or type(found).__name__
            servers = ", ".join(_servers(module))
            fix = f"it has {servers}" if servers else "it has no server at all: add `server = Server(...)`"
            raise UsageError(f"{target!r}: {owner} has no {name!r}", fix=fix)
        found = getattr(found, name)
    return found


def _search(module: ModuleType, target: str) -> Any:
    if named := [getattr(module, name) for name in USUAL_NAMES if is_server_object(getattr(module, name, None))]:
        return named[0]
    servers = _servers(module)
    if len(servers) == 1:
        return getattr(module, servers[0])
    if servers:
        raise UsageError(
            f"{target!r} has several servers: {', '.join(servers)}", fix=f"name one: {target}:{servers[0]}"
        )
    if foreign := _find_foreign_server(module):
        file = os.path.basename(getattr(module, "__file__", None) or f"{target}.py")
        raise UsageError(
            f"{target!r} has no server of defserve: {foreign} is another framework's",
            fix=f"`defserve migrate {file}` rewrites it; to use it as it is: defserve list -- python {file}",
        )
    raise UsageError(f"{target!r} has no server", fix=ADD_SERVER_FIX)


def _find_foreign_server(module: ModuleType) -> str | None:
    """The name of a server that is made with another framework."""
    for name, value in vars(module).items():
        kind = cast("type[object]", type(value))
        if hasattr(kind, "run") and any(each.__module__.partition(".")[0] in OTHER_FRAMEWORKS for each in kind.__mro__):
            return name
    return None


def _servers(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if not name.startswith("_") and is_server_object(value)]


# -- Servers at an address: http(s):// or ws(s)://. The client is imported only when one connects.


HTTP_SCHEMES: Final = ("http", "https")
WEBSOCKET_SCHEMES: Final = ("ws", "wss")
LEGACY_SSE_PATH: Final = "/sse"


def is_server_address(target: str) -> bool:
    """Whether `target` is the address of a server, rather than code to load."""
    return "://" in target


async def connect_url(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    resolve: ResolveHost | None = None,
    auth: ClientAuth | None = None,
) -> ClientLink:
    """A link to the server at `url`, for `Client`. `token` is sent as a bearer token, `headers` as they are.

    `auth` gets a token when the server asks for one: `SignIn()`, `ClientCredentials(…)`.

    `resolve` gives the addresses that each connection may go to, and refuses others. It is for http addresses only.

    An http address whose path ends with `/sse` is tried as HTTP+SSE of 2024 first. Raises UsageError for any other kind
    of address, PeerError or PeerGone if a WebSocket or such a stream cannot be opened. Over Streamable HTTP nothing is
    sent before the first message.
    """
    if auth is not None and (token or "authorization" in map(str.lower, headers or {})):
        raise UsageError("both a token and `auth` were given", fix="give one of them")
    try:
        scheme, path = url.partition("://")[0].lower(), urlsplit(url).path
    except ValueError:
        scheme = path = ""
    authorizer = None if auth is None or scheme not in (*HTTP_SCHEMES, *WEBSOCKET_SCHEMES) else auth.authorizer(url)
    if scheme in HTTP_SCHEMES:
        from defserve.client.links.http import HttpLink

        if path.rstrip("/").endswith(LEGACY_SSE_PATH):
            from defserve.client.links.event_streams import LegacySseLink
            from defserve.serve.address import CredentialsRequired, SignInError

            try:
                return await LegacySseLink.connect(
                    url, headers=headers, token=token, resolve=resolve, authorizer=authorizer
                )
            except PeerError as refusal:
                if isinstance(refusal, CredentialsRequired | SignInError | PeerGone):
                    raise
                # The path alone proves nothing: it is an endpoint of today's kind.
        return HttpLink(url, headers=headers, token=token, resolve=resolve, authorizer=authorizer)
    if scheme in WEBSOCKET_SCHEMES and resolve is None:
        from defserve.client.links.websocket import WebSocketLink

        return await WebSocketLink.connect(url, headers=headers, token=token, authorizer=authorizer)
    raise UsageError(f"{url!r} is not an address this client knows", fix="use http://, https://, ws:// or wss://")


class RemoteServer:
    """A server at an address, with the verb of a server object: `async with RemoteServer(url).connect() as client`."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        auth: ClientAuth | None = None,
    ) -> None:
        self.url, self._headers, self._token, self._auth = url, headers, token, auth

    @asynccontextmanager
    async def connect(self, version: str | None = None, **options: Any) -> AsyncGenerator[Client, None]:
        """A connected client; `version` and `options` are those of `Client`."""
        from defserve.client.client import Client

        link = await connect_url(self.url, headers=self._headers, token=self._token, auth=self._auth)
        async with Client(link, version=version, **options) as client:
            yield client


# -- Whose code a frame runs: the author's, or that of Python, a package or defserve.


PACKAGE_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSTALLED_CODE_FOLDERS: Final = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
)
PACKAGES: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of packages, wherever they are: `pip install --user` has its own."""


def is_outside_folders(path: str, folders: tuple[str, ...]) -> bool:
    """Whether a file is in none of the folders. Code without a file is in all of them."""
    return not path.startswith(("<", *(folder + os.sep for folder in folders)))


def is_author_file(path: str) -> bool:
    # Compiled packages, uvloop among them, give the name of a source that is not installed.
    return (
        is_outside_folders(path, (PACKAGE_FOLDER, *INSTALLED_CODE_FOLDERS))
        and not path.endswith(".pyx")
        and not any(folder in path for folder in PACKAGES)
    )


def find_author_line(error: BaseException) -> str:
    """`file:line` of the author's innermost frame; empty if no code of an author ran."""
    found = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [f"{path}:{line}" for path, line in found if is_author_file(path)]
    return own[-1].removeprefix(os.getcwd() + os.sep) if own else ""
