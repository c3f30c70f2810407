"""Which server a command is about: a Python object in this process, a command that runs one over stdio, or an address.

This module imports little, because `defserve run` uses it. `target_connection.py` connects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.base.search_path import add_author_import_folder
from defserve.client.targets import (
    find_installed_servers,
    is_code_target,
    is_file_target,
    is_server_address,
    refuse_place,
    split_target,
)
from defserve.errors import PeerGone, UsageError, did_you_mean
from defserve.tooling import loading
from defserve.tooling.loading import load_without_serving

if TYPE_CHECKING:
    from defserve.tooling.client_settings import ConfiguredServer

TARGET_FORMS_HELP: Final = (
    "server.py, server.py:name, module:name, the name of an installed server or of one in .mcp.json (.mcp.json:name"
    " if both exist), a kernel's mgp.toml, http://host:port/mcp, ws://host:port/mcp"
)
COMMAND_HELP: Final = "`-- command args` at the end"
TARGET_HELP: Final = f"{TARGET_FORMS_HELP}; or nothing, in a project with one server or with {COMMAND_HELP}"

MISSING_TARGET_FIX: Final = "name a file (server.py), an address, or a server of .mcp.json; --help shows every way"


class ServerTarget(NamedTuple):
    """A server object, the code that makes one, the command that starts one, or the address of one that runs.

    `code` is named but not loaded: a file, a module or, if it `is_package`, a package.
    A command is started in `cwd` with `env` added to its environment. `headers` are sent to an address. `kernel` is the
    file of a kernel, if it is one of this user, and `process` the one that runs already.
    """

    server: Any = None
    command: Sequence[str] = ()
    address: str = ""
    env: Mapping[str, str] = {}
    cwd: str | None = None
    headers: Mapping[str, str] = {}
    kernel: Path | None = None
    process: int | None = None
    code: str = ""
    is_package: bool = False


def redirect_stdout_to_stderr() -> AbstractContextManager[Any]:
    """What a server in this process prints goes to stderr, because stdout is for the result of the command."""
    return redirect_stdout(sys.stderr)


def split_server_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The arguments before `--`, and the command after it; None without `--`."""
    if "--" not in argv:
        return list(argv), None
    cut = list(argv).index("--")
    if cut + 1 == len(argv):
        raise UsageError("nothing follows `--`", fix="add the command that starts the server: -- python server.py")
    return list(argv[:cut]), list(argv[cut + 1 :])


def resolve_target(
    words: list[str], module: str | None, command: list[str] | None, *, is_loaded: bool = True
) -> ServerTarget:
    """The server that a command line names. If a word names it, that word is taken from the front of `words`.

    If it is not to be loaded, code is only named (`ServerTarget.code`): another process runs it.
    """
    if command is not None:
        return ServerTarget(command=command)
    if module is not None:
        return ServerTarget(load_package(module)) if is_loaded else ServerTarget(code=module, is_package=True)
    if not words:
        if (found := find_project_target()) is None:
            raise UsageError("no server is given", fix=MISSING_TARGET_FIX)
        return _make_code_target(found, is_loaded)
    named = words.pop(0)
    if is_server_address(named):
        return ServerTarget(address=named)
    if named.endswith(".toml"):
        return _kernel(named)
    found = find_configured_server(named)
    return _make_target(found) if found is not None else _make_code_target(named, is_loaded)


def _make_code_target(named: str, is_loaded: bool) -> ServerTarget:
    if is_loaded or (is_file_target(named) and not os.path.isfile(split_target(named)[0])):
        return ServerTarget(load_target(named))  # which says that there is no such file
    require_known_target(named)
    return ServerTarget(code=named)


def _kernel(named: str) -> ServerTarget:
    """The kernel of a file: the one that runs, if an address of it is known; else one in this process."""
    from defserve.kernel.config.loading import load_kernel_config as load_config
    from defserve.kernel.control import find_socket_paths, locate_config

    if not Path(named).is_file():
        raise UsageError(f"there is no file {named}", fix="name the mgp.toml of a kernel")
    config = load_config(locate_config(named))
    running = find_socket_paths(config.path)
    for process in running:
        if address := _address_of(config.path, process, config.settings.on):
            return ServerTarget(address=address, kernel=config.path, process=process)
    if running:
        print(
            f"note: a kernel serves {named} already (process {next(iter(running))}), at no address: this is another one"
            "\n  fix: to look at that one, start it with --on http://127.0.0.1:8000/mcp",
            file=sys.stderr,
        )
    from defserve.kernel.kernel import Kernel

    return ServerTarget(Kernel(config).server, kernel=config.path)


def _address_of(config: Path, process: int, said: str) -> str:
    """Where a kernel that runs can be reached, by its own words or those of its file; empty if nobody knows."""
    from urllib.parse import urlsplit

    from defserve.kernel.control import ask_kernel

    try:
        (status,) = ask_kernel(config, {"verb": "status"}, process)
        on = str(status.get("on") or said)
    except (PeerGone, UsageError):
        on = said
    # Port 0 is whichever was free.
    return on if is_server_address(on) and urlsplit(on).port != 0 else ""


def is_target(named: str) -> bool:
    """Whether a word names a server: an address, the file of a kernel, code, or a server of a `.mcp.json`."""
    return (
        is_server_address(named)
        or named.endswith(".toml")
        or find_configured_server(named) is not None
        or is_code_target(named)
    )


def find_project_target() -> str | None:
    """The server that the project around the current folder names, if there is one."""
    from defserve.tooling.project_parts import find_project_server

    try:
        found = find_project_server(Path.cwd())
    except UsageError:
        return None
    return f"{found.source}:{found.variable}"


def resolve_only_target(
    words: list[str], module: str | None, command: list[str] | None, *, is_loaded: bool = True
) -> ServerTarget:
    """Like `resolve_target`, for a command line that holds nothing else. Raises UsageError for another word."""
    target = resolve_target(words, module, command, is_loaded=is_loaded)
    if words:
        raise UsageError(f"one server at a time; {words[0]!r} is unexpected", fix="name one server")
    return target


def find_configured_server(named: str) -> ConfiguredServer | None:
    """The server of a `.mcp.json` with this name; None if the name is code of this environment, or unknown."""
    if not is_file_target(named):
        _search_here()
    if is_code_target(named):
        return None
    from defserve.tooling.client_settings import find_mcp_json_server

    return find_mcp_json_server(named)


def _make_target(found: ConfiguredServer) -> ServerTarget:
    how = found.fill_variables()
    if how.url:
        return ServerTarget(address=how.url, headers=how.headers)
    return ServerTarget(command=(how.command, *how.args), env=how.env, cwd=found.folder)


def parse_headers(given: list[str]) -> dict[str, str]:
    """`Name: value` texts as headers."""
    pairs = [text.partition(":") for text in given]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise UsageError(f"{name!r} is not a header", fix='write -H "Name: value"')
    return {name.strip(): value.strip() for name, _, value in pairs}


def load_target(target: str) -> Any:
    """Load the server that `target` names, starting from the current folder."""
    if is_server_address(target):
        raise UsageError(f"{target!r} is an address; only code can be served", fix="name server.py or module:name")
    require_known_target(target)
    return load_without_serving(target)


def require_known_target(target: str) -> None:
    """Raises UsageError if `target` cannot be code of this environment, and there are other names to suggest."""
    require_code_target(target)
    if not is_code_target(target):
        _refuse_unknown(target)


def require_code_target(target: str) -> None:
    """Raises UsageError if `target` is a server of a `.mcp.json`: that is a command, and code is needed."""
    if found := find_configured_server(target):
        raise UsageError(
            f"{target!r} is a server of {found.path}; only code can be served",
            fix=f"name server.py or module:name; to use this one: defserve list {target}",
        )


def _refuse_unknown(target: str) -> None:
    """Raises UsageError for what is no name at all, and if there are other names to suggest."""
    refuse_place(split_target(target)[0])
    from defserve.tooling.client_settings import find_nearest_mcp_json, list_configured_servers

    if names := [*list_configured_servers(), *(each.name for each in find_installed_servers())]:
        places = "not a module or an installed server" + (
            f", nor a server of {file}" if (file := find_nearest_mcp_json()) else ""
        )
        raise UsageError(
            f"{target!r} is {places}",
            fix=did_you_mean(target, names, f"use one of {', '.join(dict.fromkeys(names))}; or name a file: server.py"),
        )


def load_package(package: str) -> Any:
    """Load the server of a package, starting from the current folder."""
    _search_here()
    return loading.load_package(package)


def _search_here() -> None:
    # A console script does not search the current folder; `python -m` does.
    add_author_import_folder(os.getcwd())
