"""`defserve doctor`: show what is installed, what is missing, and how to install it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from defserve.base.version import VERSION
from defserve.cli.exits import print_error
from defserve.cli.parser import JSON_FLAG, CommandArgument, CommandParser, parse_token_file
from defserve.cli.screen import show_stdout
from defserve.cli.screen_blocks import STATE_STYLES, JsonBlock, StyledLine, format_count
from defserve.core.json_values import is_object
from defserve.errors import UsageError
from defserve.tooling.client_settings import format_install_command
from defserve.tooling.lint.wording_rules import FIX_DENIED_INJECTION

if TYPE_CHECKING:
    from defserve.kernel.config.entries import GroupSettings, KernelSettings

EXAMPLES: Final = """  defserve doctor
  defserve doctor --port 8080 --json
  defserve doctor --auth https://tools.example.com/mcp
  defserve doctor --auth https://tools.example.com/mcp --token @token.txt
  defserve doctor memory.py
  defserve doctor mgp.toml
"""
OLDEST: Final = (3, 11)
MCPL: Final = "feature sets"
KERNEL: Final = "Processes of a kernel's servers"
GROUP: Final = "A group of kernels"
FIX_LINK: Final = 'for several machines, write link = "${HOST_ADDRESS}:8300" in [kernel.group]'
FIX_STARTS: Final = (
    'give callers keys ([kernel] keys), set per = "shared" if the server keeps nothing of a caller, or spares = 4'
)
PORT: Final = 8000

# Extra → the modules that it installs.
EXTRAS: Final = {
    "http": ("websockets",),
    "client": ("httpx2", "keyring"),
    "auth": ("jwt", "cryptography"),
    "redis": ("redis",),
    "postgres": ("psycopg",),
    "sandbox": ("pydantic_monty",),
    "dev": ("watchfiles", "cookiecutter", "rich", "build", "hatchling", "libcst"),
    "semantic": ("numpy", "safetensors", "tokenizers", "wordllama"),
    # Its packages lie in one namespace, which is there if any of them is.
    "telemetry": ("opentelemetry",),
}
NEEDED: Final = (
    "pydantic",
    "anyio",
    "docstring_parser",
    "jsonschema",
    "RestrictedPython",
    "jsonpatch",
    "idna",
    "tomlkit",
    "yaml",
)
# Command → what it is for.
COMMANDS: Final = {
    "uv": "builds, publishes, and starts servers for clients (uvx)",
    "mcp-publisher": "publishes to the MCP registry",
    "node": "runs clients and inspectors written in JavaScript",
}


State = Literal["ok", "unused", "missing", "broken"]
SIGNS: Final[dict[State, str]] = {"ok": "ok", "unused": "--", "missing": "??", "broken": "!!"}


class DoctorFinding(NamedTuple):
    """One thing that was looked at. `unused` is only for those who want it, `missing` may be missed, `broken` fails."""

    group: str
    name: str
    state: State
    about: str = ""
    fix: str = ""


def main(argv: list[str]) -> int:
    parser = CommandParser(
        "defserve doctor", "Show what is installed and what is missing. Exits with 1 if something is broken.", EXAMPLES
    )
    options = parser.parse_options(
        argv,
        CommandArgument("--port", type=int, default=PORT, help=f"the port to check (default: {PORT})"),
        CommandArgument("--auth", metavar="URL", help="check how clients sign in at this server instead"),
        CommandArgument(
            "--token",
            type=parse_token_file,
            metavar="@FILE",
            help="with --auth: say which check this token fails; - is stdin",
        ),
        JSON_FLAG,
        CommandArgument(
            "target",
            nargs="*",
            help="check this server instead: what MCPL hosts would switch off; or this mgp.toml: who shares a process",
        ),
    )
    if options.token is not None and options.auth is None:
        raise UsageError("--token needs the address of a server", fix="add --auth URL")
    if options.target:
        try:
            is_kernel = len(options.target) == 1 and options.target[0].endswith(".toml")
            found = list(_kernel_servers(options.target[0]) if is_kernel else _feature_sets(options.target))
        except UsageError as error:
            return print_error(str(error), 1)
    else:
        found = _signing_in(options.auth, options.token) if options.auth is not None else list(findings(options.port))
    show_stdout(*([JsonBlock([finding._asdict() for finding in found])] if options.json else iter_finding_lines(found)))
    return int(any(finding.state == "broken" for finding in found))


def _signing_in(url: str, token: str | None) -> list[DoctorFinding]:
    """What a client meets that signs in at a server, or that has a token already. It registers nothing."""
    import asyncio

    from defserve.client.signin.credentials import get_user_credential_store
    from defserve.tooling.signin_check import check_sign_in, check_token

    credential = get_user_credential_store().load_credential(url)
    sign_in = credential.tokens if credential is not None else None

    async def steps() -> list[DoctorFinding]:
        if token is not None:
            scopes = sign_in.scopes if sign_in is not None and sign_in.access_token == token else None
            return [DoctorFinding(*step) async for step in check_token(url, token, scopes)]
        found = [DoctorFinding(*step) async for step in check_sign_in(url)]
        if sign_in is not None and sign_in.type == "Bearer" and not sign_in.has_expired:
            looked = check_token(url, sign_in.access_token, sign_in.scopes)
            found += [DoctorFinding(*step)._replace(group="Token of your sign-in") async for step in looked]
        return found

    return asyncio.run(steps())


def _feature_sets(words: list[str]) -> Iterator[DoctorFinding]:
    """Which feature sets of a server MCPL hosts of 0.5 switch off, with the settings that they come with."""
    from defserve.cli.target import redirect_stdout_to_stderr, resolve_only_target
    from defserve.protocols.mcpl.vocabulary import find_uses_denied_by_default

    with redirect_stdout_to_stderr():
        server = resolve_only_target(words, None, None).server
    if server is None:
        raise UsageError("only a server in a Python file shows what its sets need", fix="name its file")
    mcpl = next((extension for extension in server.extensions if extension.name == "mcpl"), None)
    sets = list(mcpl.sets) if mcpl is not None else []
    for one in sets:
        denied = find_uses_denied_by_default(one.uses)
        about = f"hosts of 0.5 do not grant {', '.join(denied)} by default, and switch the set off" if denied else ""
        yield DoctorFinding(
            MCPL, one.name, "missing" if denied else "ok", about, FIX_DENIED_INJECTION if denied else ""
        )
    if not sets:
        yield DoctorFinding(MCPL, server.name, "unused", "it has no feature sets")


def _kernel_servers(path: str) -> Iterator[DoctorFinding]:
    """Which servers of a kernel would be started for each call of a caller without a session or key."""
    from defserve.kernel.config.loading import load_kernel_config

    config = load_kernel_config(path)
    for entry in config.servers:
        launch = entry.launch
        if launch.url or launch.per == "shared":
            yield DoctorFinding(KERNEL, entry.id, "ok", "callers share it" if launch.per else "it runs elsewhere")
        elif config.settings.keys:
            yield DoctorFinding(KERNEL, entry.id, "ok", "a process for each caller, known by its key")
        elif launch.spares is not None:
            yield DoctorFinding(KERNEL, entry.id, "ok", f"{launch.spares} processes wait for callers")
        else:
            about = "over HTTP, a caller without a key gets a process for each call, and may wait until it is started"
            yield DoctorFinding(KERNEL, entry.id, "missing", about, FIX_STARTS)
    if not config.servers:
        yield DoctorFinding(KERNEL, config.path.name, "unused", "it has no servers")
    if config.settings.group is not None:
        yield from _kernel_group(config.settings, config.settings.group)


def _kernel_group(settings: KernelSettings, group: GroupSettings) -> Iterator[DoctorFinding]:
    """What the kernels of a group would not share, or could not reach."""
    scheme = group.store.partition(":")[0]
    if scheme == "sqlite":
        about, fix = "kernels of one machine only", "for several machines, use redis://… or postgres://…"
        yield DoctorFinding(GROUP, "store", "missing", about, fix)
    elif scheme.startswith("postgres"):
        about = "clients before 2026-07-28 have to come back to the same kernel"
        yield DoctorFinding(GROUP, "store", "ok", f"Postgres keeps no sessions: {about}")
    else:
        yield DoctorFinding(GROUP, "store", "ok", "all kernels share it")
    is_local = group.link.startswith(("127.", "localhost:", "[::1]"))
    about = f"{group.link} is reached from this machine only" if is_local else f"other kernels reach it at {group.link}"
    is_wrong = is_local and scheme != "sqlite"
    yield DoctorFinding(GROUP, "link", "missing" if is_wrong else "ok", about, FIX_LINK if is_wrong else "")
    for name, place in (("keys", settings.keys), ("audit", settings.audit)):
        if place and "://" not in place:
            about = f"{place} is a file, which other machines do not have"
            yield DoctorFinding(GROUP, name, "missing", about, f'name a store there: {name} = "redis://…"')


def findings(port: int) -> Iterator[DoctorFinding]:
    groups = (_python(), _extras(), _sandbox(), _commands(), _clients())
    return chain(*groups, (_port(port), _namespace()))


def iter_finding_lines(found: list[DoctorFinding]) -> Iterator[StyledLine]:
    """The findings for a terminal, line by line."""
    width = max(len(finding.name) for finding in found)
    group = ""
    for finding in found:
        if finding.group != group:
            if group:
                yield StyledLine()
            yield StyledLine((finding.group, "heading"))
            group = finding.group
        sign = SIGNS[finding.state], STATE_STYLES[finding.state]
        style = "faint" if finding.state == "unused" else ""
        about = f"  {finding.about}" if finding.about else ""
        name = f"{finding.name:{width}}" if about else finding.name
        yield StyledLine("  ", sign, "  ", (name, style), (about, style), hang=width + 6)
        if finding.fix and finding.state != "unused":
            yield StyledLine(f"      {'':{width}}  ", ("fix:", "fix"), f" {finding.fix}", hang=5)
    yield StyledLine()
    yield format_verdict(found)


def format_verdict(found: list[DoctorFinding]) -> StyledLine:
    """The findings in one line."""
    to_mend = sum(finding.state in ("missing", "broken") for finding in found)
    if to_mend:
        words = "1 problem to fix" if to_mend == 1 else f"{to_mend} problems to fix"
        is_broken = any(finding.state == "broken" for finding in found)
        return StyledLine((f"{words}.", "bad" if is_broken else "warning"))
    more = " Lines with -- only matter if you use them." if any(each.state == "unused" for each in found) else ""
    return StyledLine(("All good.", "good"), more)


def _python() -> Iterator[DoctorFinding]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info[:2] >= OLDEST
    yield DoctorFinding("Python", "python", "ok" if fits else "broken", f"{version} at {sys.executable}")
    yield DoctorFinding("Python", "defserve", "ok", f"{VERSION} at {Path(__file__).parents[2]}")
    lacking = [module for module in NEEDED if find_spec(module) is None]
    fix = format_install_command("--upgrade defserve") if lacking else ""
    yield DoctorFinding("Python", "dependencies", "broken" if lacking else "ok", ", ".join(lacking), fix)
    script = shutil.which("defserve")
    fix = "" if script else f"use {sys.executable} -m defserve, or put {Path(sys.executable).parent} on PATH"
    yield DoctorFinding("Python", "on PATH", "ok" if script else "missing", script or "the command is not on PATH", fix)


def _extras() -> Iterator[DoctorFinding]:
    for extra, modules in EXTRAS.items():
        lacking = [module for module in modules if find_spec(module) is None]
        fix = format_install_command(f"defserve[{extra}]") if lacking else ""
        about = f"needs {', '.join(lacking)}: {fix}" if lacking else ", ".join(modules)
        yield DoctorFinding("Extras", extra, "unused" if lacking else "ok", about, fix)


def _sandbox() -> Iterator[DoctorFinding]:
    from defserve.sandbox.confinement import probe

    layers = probe()
    for name in ("rlimits", "landlock", "seccomp"):
        there = bool(getattr(layers, name))
        about = "" if there else "not on this system; the sandbox does without"
        if name == "landlock" and there:
            about = f"version {layers.landlock}"
        yield DoctorFinding("Kernel layers of the sandbox", name, "ok" if there else "unused", about)


def _commands() -> Iterator[DoctorFinding]:
    for command, about in COMMANDS.items():
        path = shutil.which(command)
        yield DoctorFinding("Commands", command, "ok" if path else "unused", path or about)
    for module, about in {"build": "builds wheels", "twine": "uploads wheels"}.items():
        there = (spec := find_spec(module)) is not None and spec.origin is not None
        fix = "" if there else format_install_command(module)
        yield DoctorFinding("Commands", module, "ok" if there else "unused", "" if there else f"{about}: {fix}", fix)


def _clients() -> Iterator[DoctorFinding]:
    from defserve.client.known_clients import KNOWN_CLIENTS
    from defserve.tooling import client_settings

    seen: set[Path] = set()
    for name, client in KNOWN_CLIENTS.items():
        for scope in client.paths:
            path = client.path(scope, Path.cwd())
            if path in seen or not os.path.lexists(path):
                continue
            seen.add(path)
            try:
                whole = client_settings.read_settings(path, client.format)
                servers = whole.get(client.key) if is_object(whole) else None
            except UsageError as error:
                yield DoctorFinding("Client settings", name, "broken", error.problem, error.fix)
                continue
            count = len(servers) if is_object(servers) else 0
            yield DoctorFinding("Client settings", name, "ok", f"{path} ({format_count(count, 'server')})")
    if not seen:
        yield DoctorFinding("Client settings", "none", "unused", "no client has settings for this user or this folder")


def _namespace() -> DoctorFinding:
    """Whether two deployments of one server are told apart, if they may meet."""
    from defserve.protocols.mcp.asking.server_secret import SECRET_VARIABLE as SECRET
    from defserve.stores.identity import NAMESPACE_VARIABLE

    if given := os.environ.get(NAMESPACE_VARIABLE):
        return DoctorFinding("Deployment", "namespace", "ok", f"{NAMESPACE_VARIABLE} is {given}")
    needed = "two deployments of one server name that share a Redis or a secret need a namespace each"
    if not os.environ.get(SECRET):
        return DoctorFinding("Deployment", "namespace", "unused", f"{needed} ({NAMESPACE_VARIABLE})")
    fix = (
        f"set {NAMESPACE_VARIABLE} in each, such as staging and production; "
        f"or give each a {SECRET} and a Redis of its own"
    )
    return DoctorFinding(
        "Deployment", "namespace", "missing", f"{SECRET} is set, and {NAMESPACE_VARIABLE} is not: {needed}", fix
    )


def _port(port: int) -> DoctorFinding:
    with socket.socket() as listening:
        # As servers do: a connection that was just closed does not block the port.
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            return DoctorFinding(
                "Ports",
                str(port),
                "missing",
                f"not usable: {getattr(error, 'strerror', None) or error}",
                "use another port; 0 picks a free one: --on http://127.0.0.1:0/mcp",
            )
    return DoctorFinding("Ports", str(port), "ok", "free on 127.0.0.1")
