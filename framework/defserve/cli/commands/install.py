"""`defserve install` and `defserve uninstall`: a server in the settings of an MCP client."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from defserve.auth.local_token import find_local_server_url, resolve_local_key
from defserve.base.redaction import is_secret_name
from defserve.cli.parser import RESULT_JSON_FLAG, CommandArgument, CommandParser, make_flag, parse_token
from defserve.cli.screen import format_problem, show_stderr, show_stdout
from defserve.cli.screen_blocks import DiffBlock, JsonBlock
from defserve.cli.target import (
    MISSING_TARGET_FIX,
    TARGET_HELP,
    find_configured_server,
    find_project_target,
    load_package,
    load_target,
    parse_headers,
    redirect_stdout_to_stderr,
    split_server_command,
)
from defserve.client.client import Client
from defserve.client.known_clients import (
    KNOWN_CLIENTS,
    SETTINGS_SCOPES,
    ClientApp,
    LaunchCommand,
    check_server_name,
    find_known_client,
    make_server_name,
)
from defserve.client.targets import connect_url, is_server_address
from defserve.core.json_values import is_mapping
from defserve.errors import DefserveError, UsageError, did_you_mean
from defserve.tooling import client_settings
from defserve.tooling.client_settings import ConfiguredServer

INSTALL_ABOUT: Final = """Add a server to the settings of an MCP client.

Everything else in the file stays as it is, comments too. A copy of the old file is kept as FILE.bak."""
INSTALL_EXAMPLES: Final = """  defserve install server.py --client claude-desktop
  defserve install server.py:catalogue --client cursor --name catalogue --env API_KEY=k-123
  defserve install weather-mcp --client claude-code --scope project
  defserve install https://example.com/mcp --client vscode --dry-run
  defserve install --client codex --name files -- npx some-mcp-server --flag
"""
DEFAULT: Final = "mcp-json"
PATIENCE: Final = 5.0


def run_install(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    options = CommandParser("defserve install", INSTALL_ABOUT, INSTALL_EXAMPLES).parse_options(
        before,
        CommandArgument("target", nargs="?", help=TARGET_HELP),
        CommandArgument("-m", dest="module", metavar="PACKAGE", help="a package with a server, instead of TARGET"),
        *CLIENT_OPTIONS,
        CommandArgument("--name", help="what the client calls the server (default: its own name)"),
        CommandArgument(
            "--env", action="append", default=[], metavar="K=V", help="an environment variable for it; repeatable"
        ),
        CommandArgument(
            "-H",
            "--header",
            action="append",
            default=[],
            metavar="NAME:VALUE",
            help="a header for a server at an address",
        ),
        CommandArgument(
            "--token",
            type=parse_token,
            help="a bearer token for a server at an address, or @FILE that holds it; it is written into the settings",
        ),
    )
    if options.name is not None:
        check_server_name(options.name)
    if not (options.target or options.module or command):
        options.target = find_project_target()
    if sum(map(bool, (options.target, options.module, command))) != 1:
        raise UsageError("install needs one server", fix=MISSING_TARGET_FIX)
    with redirect_stdout_to_stderr():
        name, how = _server(options, command)
    known = find_known_client(options.client)
    path = known.path(options.scope, Path.cwd())
    edit = client_settings.set_entry(path, known.format, (known.key, name), known.entry(how))
    if known.is_shared(options.scope):
        _warn_of_shared_secrets(how, path, options.client)
    report = SettingsReport(name, path, options)
    if not edit.is_change:
        return report.show(f"{name} is already in {path}, with the same entry", is_changed=False)
    return report.finish(edit, f"{name} is in {path}", f"{known.title}: {known.then}")


CLIENT_OPTIONS: Final = (
    CommandArgument("--client", choices=KNOWN_CLIENTS, default=DEFAULT, help=f"which client (default: {DEFAULT})"),
    CommandArgument(
        "--scope", choices=SETTINGS_SCOPES, help="settings of the user, or of the project in the current folder"
    ),
    make_flag("--dry-run", help="show the changes, but do not make them"),
    RESULT_JSON_FLAG,
)


def _server(options: Namespace, command: list[str] | None) -> tuple[str, LaunchCommand]:
    """Its name and how it is started. Python code is loaded first: it should fail here rather than in the client."""
    env = client_settings.parse_environment(options.env)
    target: str = options.target or ""
    if (options.token or options.header) and not is_server_address(target):
        raise UsageError("only a server at an address takes tokens and headers", fix="use --env NAME=VALUE instead")
    if command is not None:
        own, how = Path(command[0]).stem, client_settings.make_command_launch(command, env)
    elif is_server_address(target):
        headers = parse_headers(options.header) | (
            {"Authorization": f"Bearer {options.token}"} if options.token else {}
        )
        own, how = options.name or _name_at(target, headers), _launch_at(target, headers, options)
    elif options.module:
        own, how = _own(load_package(options.module)), client_settings.make_package_launch(options.module, env)
    elif found := find_configured_server(target):
        raise UsageError(
            f"{target!r} is already in {found.path}, and clients read its entry in different ways",
            fix=f"name what it starts: {_again(found, options.client)}",
        )
    else:
        own, how = _own(load_target(target)), client_settings.make_target_launch(target, env)
    return options.name or make_server_name(own), how


def _warn_of_shared_secrets(how: LaunchCommand, path: Path, client: str) -> None:
    """Say which secrets are in the settings of a project, which others read."""
    secrets = [name for name in (*how.headers, *how.env) if is_secret_name(name)]
    if not secrets:
        return
    own = f"--client {client} --scope user writes your own settings instead; or " if _has_user_scope(client) else ""
    warning = f"{path} belongs to the project, and holds a secret: {', '.join(secrets)}"
    show_stderr(*format_problem("warning", f"{warning}\n  fix: {own}keep the file out of the repository"))


def _has_user_scope(client: str) -> bool:
    return "user" in find_known_client(client).paths


def _launch_at(target: str, headers: Mapping[str, str], options: Namespace) -> LaunchCommand:
    """With the key of a server of this user, where it published one. From then on it starts with the same key.

    A project's settings are shared with others, so they never hold it.
    """
    plain = LaunchCommand(url=target, headers=headers)
    if "authorization" in map(str.lower, headers) or find_local_server_url(target) is None:
        return plain
    if find_known_client(options.client).is_shared(options.scope):
        show_stderr("the settings of a project are shared, so the local token of the server is not written into them")
        return plain
    found = find_local_server_url(target, keep=not options.dry_run)
    if found is None:
        return plain
    show_stderr("the settings hold the local token of the server: this client connects as you")
    key = "(the local token)" if options.dry_run else found.key
    return LaunchCommand(url=found.url, headers={**headers, "Authorization": f"Bearer {key}"})


def _name_at(address: str, headers: Mapping[str, str]) -> str:
    """The name that the server at an address gives itself, or else its host; `server-PORT` if that is a number."""
    import asyncio

    async def ask() -> str:
        url, token = resolve_local_key(address, None, headers)
        async with Client(await connect_url(url, headers=headers, token=token), timeout=PATIENCE) as client:
            return str(client.server_info.get("name") or "")

    try:
        name = asyncio.run(ask())
    except DefserveError:
        name = ""  # it may not run yet, or refuse us
    if name:
        return name
    parts = urlsplit(address)
    host = str(parts.hostname)
    is_number = ":" in host or not any(map(str.isalpha, host))
    name = make_server_name(f"server-{parts.port}" if is_number and parts.port else host)
    show_stderr(f"{address} did not say its name, so the client calls it {name}; --name NAME gives it another")
    return name


def _again(found: ConfiguredServer, client: str) -> str:
    """The command line that installs the same server."""
    how, begin = found.launch, f"defserve install --client {client} --name {found.name}"
    return f"{begin} {how.url}" if how.url else f"{begin} -- {shlex.join((how.command, *how.args))}"


def _own(server: object) -> str:
    return str(getattr(server, "name", None) or "server")


class SettingsReport(NamedTuple):
    """Says what was done to the settings of a client, in words or as JSON."""

    name: str
    path: Path
    options: Namespace

    def finish(self, edit: client_settings.SettingsEdit, done: str, then: str = "") -> int:
        """Write the settings, or show the change, and say what was done."""
        if not self.options.dry_run:
            backup = edit.write()
            return self.show(done, f"the old file is {backup}" if backup is not None else "", then, backup=backup)
        if self.options.json:
            return self.show("", diff=edit.diff(), is_changed=False)
        show_stdout(DiffBlock(edit.diff()))
        return 0

    def show(self, done: str, *more: str, is_changed: bool = True, **facts: object) -> int:
        if self.options.json:
            told = {name: None if value is None else str(value) for name, value in facts.items()}
            about = {"name": self.name, "client": self.options.client, "path": str(self.path)}
            show_stdout(JsonBlock({**about, "is_changed": is_changed, **told}))
        else:
            show_stdout(done, *(f"  {line}" for line in more if line))
        return 0


# -- `defserve uninstall`: remove a server from the settings of an MCP client.


UNINSTALL_EXAMPLES: Final = """  defserve uninstall weather --client claude-desktop
  defserve uninstall server.py                                what `defserve install server.py` has added
  defserve uninstall weather --client claude-code --scope project --dry-run
"""


def run_uninstall(argv: list[str]) -> int:
    parser = CommandParser(
        "defserve uninstall", "Remove a server from the settings of an MCP client.", UNINSTALL_EXAMPLES
    )
    options = parser.parse_options(
        argv,
        CommandArgument("name", help="what the client calls the server, or what was given to `defserve install`"),
        *CLIENT_OPTIONS,
    )
    known = find_known_client(options.client)
    path = known.path(options.scope, Path.cwd())
    name = _find_entry_name(options.name, known, path)
    report = SettingsReport(name, path, options)
    edit = client_settings.remove_entry(path, known.format, (known.key, name))
    if not options.dry_run and client_settings.contains_only_entry(path, known.format, (known.key, name)):
        client_settings.remove_file_and_backup(path)
        return report.show(f"{path} held only {name}, so the file was removed")
    return report.finish(edit, f"{name} is no longer in {path}")


def _find_entry_name(word: str, known: ClientApp, path: Path) -> str:
    """The entry that a word names: its own name, or the server that `install` was given. Raises UsageError."""
    section = client_settings.read_settings(path, known.format).get(known.key)
    entries: dict[str, Any] = dict(section) if is_mapping(section) else {}
    if word in entries:
        return word
    if is_server_address(word):
        launches = [LaunchCommand(url=word)]
    else:
        launches = [client_settings.make_target_launch(word, {}), client_settings.make_package_launch(word, {})]
    launched = [_drop_settings(known.entry(launch)) for launch in launches]
    matches = [name for name, entry in entries.items() if is_mapping(entry) and _drop_settings(entry) in launched]
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} servers in {path} are {word!r}", fix=f"name one: {' or '.join(matches)}")
    if not matches:
        none = "choose other settings with --client and --scope; these have no servers"
        raise UsageError(f"there is no server {word!r} in {path}", fix=did_you_mean(word, entries) if entries else none)
    return matches[0]


def _drop_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What starts or reaches a server, without variables and headers."""
    return {name: value for name, value in entry.items() if name not in ("env", "headers", "http_headers")}
