"""The operator's end of the control socket: where mgp.toml and the sockets of kernels are, how to ask one, and what.

It is a unix socket in a folder that only this user can use, and every peer must be this user. A connection carries one
request as a line of JSON, and the answers as lines of JSON. The command line loads this without the rest of a kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from defserve.base.redaction import get_logger
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, PeerGone, UsageError
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets, get_peer_user
from defserve.stores.files import is_private_folder, list_possible_private_folders, make_private_folder

if TYPE_CHECKING:
    from defserve.kernel.kernel import Kernel


CONNECT_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024


def ask_kernel(config: Path, request: dict[str, Any], process: int | None = None) -> Iterator[Any]:
    """The answers of the kernel that serves a file; of the one with this process, if there are several.

    Raises PeerGone if none runs, and UsageError for what it refuses.
    """
    yield from _ask_socket(_place(config, process), request, f"the kernel of {config}")


def _ask_socket(place: Path, request: dict[str, Any], named: str) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(CONNECT_SECONDS)
        try:
            peer.connect(str(place))
            # A drain may take long, and `logs -f` waits for ever.
            peer.settimeout(None)
            peer.sendall(json.dumps(request).encode() + b"\n")
            with peer.makefile("rb") as lines:
                for line in lines:
                    message = _message(line, named)
                    if "done" in message:
                        return
                    yield message["answer"]
        except OSError as error:
            raise PeerGone(f"{named} cannot be reached: {error}") from None
    raise PeerGone(f"{named} ended before it answered")


async def ask_kernel_async(config: Path, request: dict[str, Any], process: int | None = None) -> AsyncGenerator[Any]:
    """Like `ask_kernel`, on an event loop. Who stops reading ends what was asked for."""
    place = await asyncio.to_thread(_place, config, process)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(place), limit=MAX_ANSWER_BYTES)
    except OSError as error:
        raise PeerGone(f"the kernel of {config} cannot be reached: {error}") from None
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await reader.readline():
            message = _message(line, f"the kernel of {config}")
            if "done" in message:
                return
            yield message["answer"]
    except (OSError, ValueError) as error:
        raise PeerGone(f"the kernel of {config} cannot be reached: {error}") from None
    finally:
        writer.close()
    raise PeerGone(f"the kernel of {config} ended before it answered")


def _message(line: bytes, named: str) -> dict[str, Any]:
    """One line of a kernel. Raises UsageError for what it refuses, and PeerGone for half a line."""
    try:
        message: dict[str, Any] = json.loads(line)
    except ValueError:
        raise PeerGone(f"{named} ended before it answered") from None
    if "error" in message:
        raise UsageError(message["error"]["problem"], fix=message["error"]["fix"])
    return message


def _place(config: Path, process: int | None) -> Path:
    found = find_socket_paths(config)
    if process is not None and process in found:
        return found[process]
    if not found or process is not None:
        whose = f" with process {process}" if process is not None else ""
        raise PeerGone(f"no kernel{whose} serves {config}\n  fix: start one: defserve kernel --config {config}")
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} kernels serve {config}", fix=f"add --pid with one of {', '.join(map(str, found))}"
        )
    return next(iter(found.values()))


# -- Where the control sockets of kernels are: named after their file and their process.


FOLDER: Final = "kernels"
MAX_SOCKET_PATH_BYTES: Final = 100
"""Bytes of a socket's path that every system takes."""


def make_socket_path(config: Path) -> Path:
    """The path of this process's socket. Several kernels may serve one file. Raises UsageError."""
    path = make_private_folder(FOLDER, "the control socket") / f"{_name(config)}-{os.getpid()}.sock"
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"the path of the control socket is too long: {path}", fix="set XDG_RUNTIME_DIR to a short one"
        )
    return path


def find_socket_paths(config: Path) -> dict[int, Path]:
    """The sockets of the kernels that serve a file, by process. Those that nobody listens on are left out."""
    return _find_sockets(_name(config))


def find_kernel_at(address: str) -> tuple[Path, int] | None:
    """The file and the process of this user's kernel that serves an address; None if none does."""
    for process, place in _find_sockets("*").items():
        try:
            (status,) = _ask_socket(place, {"verb": "status"}, "a kernel")
        except (PeerGone, UsageError):  # it is just ending
            continue
        if status["on"] == address:
            return Path(status["config"]), process
    return None


def _find_sockets(name: str) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for folder in list_possible_private_folders(FOLDER):
        if is_private_folder(folder):
            for path in sorted(folder.glob(f"{name}-*.sock")):
                process = path.stem.rpartition("-")[2]
                if process.isdecimal() and _listens(path, int(process)):
                    found.setdefault(int(process), path)
    return found


def locate_running_kernel_file(given: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file whose kernel is asked. A kernel goes on without its file, and is found by the name of it."""
    try:
        return locate_config(given, environ)
    except UsageError:
        named = given or environ.get(OVERRIDE)
        gone = [Path(named).expanduser().absolute()] if named else config_places(environ)
        found = next((path for path in gone if find_socket_paths(path)), None)
        if found is None:
            raise
        return found


def _name(config: Path) -> str:
    return sha256(os.fsencode(os.path.realpath(config))).hexdigest()[:16]


def _listens(path: Path, process: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            # A kernel that starts has bound its socket and does not listen yet: only a dead one's is removed.
            # The folder is ours alone, so nobody else's file can be meant.
            if not _is_running(process):
                path.unlink(missing_ok=True)
            return False
        except OSError:
            return False
    return True


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# -- Where mgp.toml is looked for (MGP §15.2). The variable is an override, so it comes first.


OVERRIDE: Final = "MGP_CONFIG_PATH"

# The second is the name that the reference kernel reads.
HERE: Final = ("mgp.toml", "mcp.toml")
USER: Final = ("mgp", "servers.toml")


def locate_config(given: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The absolute path of the file: `given`, else the variable, the current folder, the user's settings.

    The first place that has a file counts; places are not merged. Raises UsageError if there is none.
    """
    for source, name in (("--config", given), (OVERRIDE, environ.get(OVERRIDE))):
        if name:
            path = Path(name).expanduser().absolute()
            if not path.is_file():
                raise UsageError(f"{source} names {name}, and there is no such file", fix="correct the path")
            return path
    found = next((place for place in config_places(environ) if place.is_file()), None)
    if found is None:
        looked = ", ".join(map(str, config_places(environ)))
        raise UsageError(
            f"there is no mgp.toml; looked for {looked}",
            fix="write one, make one with defserve kernel import .mcp.json, or give --config FILE",
        )
    return found


def config_places(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where the file may be when nobody says where it is, in order."""
    settings = Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return [*(Path(name).absolute() for name in HERE), settings.joinpath(*USER)]


# -- The kernel's end of the control socket. What can be asked there: `KERNEL_VERBS`.


MAX_REQUEST_BYTES: Final = 64 * 1024
REQUEST_SECONDS: Final = 10.0
WRITE_TIMEOUT_SECONDS: Final = 30.0
MAX_PEERS: Final = 32

log = get_logger("kernel")


@asynccontextmanager
async def open_control_socket(config: Path, kernel: Kernel) -> AsyncGenerator[Path | None]:
    """Listen for as long as the block runs. Yields the path of the socket.

    A kernel that cannot be operated still serves: then a warning says why, and the path is None.
    """
    try:
        path = make_socket_path(config)
        sockets = bind_sockets(Address("unix", str(path)))
        listening = sockets.__enter__()
    except (UsageError, AttributeError) as error:  # Windows has no os.getuid
        log.warning("this kernel cannot be operated while it runs: %s", error)
        yield None
        return
    peers: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peers.add(task)
        try:
            await _serve(kernel, reader, writer, len(peers) <= MAX_PEERS)
        finally:
            peers.discard(task)
            writer.close()

    server = None
    try:
        server = await asyncio.start_unix_server(serve, sock=listening[0], limit=MAX_REQUEST_BYTES)
        yield path
    finally:
        if server is not None:
            server.close()
        for peer in peers:
            peer.cancel()
        await asyncio.gather(*peers, return_exceptions=True)
        sockets.__exit__(None, None, None)


async def _serve(kernel: Kernel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_room: bool) -> None:
    """Answer one request. A peer that is another user gets no answer at all."""
    user = get_peer_user(writer.get_extra_info("socket"))
    if user is not None and user != os.getuid():
        log.warning("user %s tried to operate this kernel", user)
        return
    with suppress(OSError, TimeoutError):
        try:
            request = await _request(reader)
            if not has_room:
                raise UsageError("too many operate this kernel at once", fix="end a `kernel logs -f`")
            if request is not None:
                await _answer(kernel, request, reader, writer)
        except DefserveError as error:
            fix = error.fix if isinstance(error, UsageError) else ""
            problem = str(error).removesuffix(f"\n  fix: {fix}")
            await _write(writer, {"error": {"problem": problem, "fix": fix}})


async def _request(reader: asyncio.StreamReader) -> Any:
    """The request of a peer. None if it left without one, as who only looks whether somebody listens does."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            line = await reader.readline()
    except ValueError:
        raise UsageError(f"a request has at most {MAX_REQUEST_BYTES} bytes", fix="send less at a time") from None
    try:
        return json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        raise UsageError("a request is one line of JSON", fix='send {"verb": "ps"}') from None


async def _answer(kernel: Kernel, request: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write the answers as they come. A peer that leaves ends what it follows, and nothing that it asked to be done."""

    async def write() -> None:
        async for answer in answers(kernel, request):
            await _write(writer, {"answer": answer})
        await _write(writer, {"done": True})

    work, left = asyncio.ensure_future(write()), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not is_follow_request(request):
            # Half of a stop or of a reload would leave servers that nobody can operate.
            await asyncio.wait((work,))
        if work.done():
            work.result()
    finally:
        for task in (work, left):
            task.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
        await writer.drain()


def answers(kernel: Kernel, request: Any) -> AsyncIterator[Any]:
    """The answers to a request, one by one. Raises UsageError for one that `parse_verb_request` refuses."""
    verb, fields = parse_verb_request(request)
    return _each_answer(verb.function(kernel)(**fields))


async def _each_answer(result: VerbAnswers) -> AsyncIterator[Any]:
    if isinstance(result, AsyncIterator):
        async for answer in result:
            yield answer
        return
    value = await result if isawaitable(result) else result
    for answer in value if is_array(value) else (value,):
        yield answer


def is_follow_request(request: Any) -> bool:
    """Whether the answers to a request only end when nobody wants more of them."""
    return is_object(request) and request.get("follow") is True


# -- What can be asked of a kernel that runs: every verb, declared once.


Answer: TypeAlias = dict[str, Any]
VerbAnswers: TypeAlias = Answer | list[Answer] | Awaitable[Answer | list[Answer]] | AsyncIterator[Answer]


class VerbParameter(NamedTuple):
    """A field of a request, and an argument of the command line: by its place, or by the `option` that it has.

    `default` is the value of a field that is left out. `...`: it may not be left out.
    """

    name: str
    type: type[str] | type[int] | type[bool]
    help: str
    default: Any = ...
    option: str = ""
    metavar: str = ""


@dataclass(frozen=True, slots=True)
class KernelVerb:
    """A verb of one word, or of two if the first is one of `VERB_GROUPS`.

    about       what it does, for `--help`; empty: programs ask for it, people don't
    function    the kernel → what does it, called with the parameters by name
    has_button  whether the inspector offers it
    method      MGP's method that does the same at an address, for a verb with a button
    """

    name: str
    about: str
    function: Callable[[Kernel], Callable[..., VerbAnswers]]
    parameters: tuple[VerbParameter, ...] = ()
    has_button: bool = False
    method: str = ""


ID: Final = VerbParameter("id", str, "the id of a server, as `ps` shows it")
OPTIONAL_ID: Final = ID._replace(default=None)
TOOL: Final = VerbParameter("tool", str, "only this tool, by the server's name of it", None)
HELD: Final = (
    ID,
    TOOL,
    VerbParameter("digest", str, "what is accepted: the digest that `pins list` shows", "", "--digest", "HEX"),
    VerbParameter("unseen", bool, "also what was too long to be shown", False, "--unseen"),
)
FOLLOW: Final = VerbParameter("follow", bool, "go on with what comes", False, "--follow")
CALLER: Final = VerbParameter("caller", str, "who: the id that a key or token has, such as ann")
REASON: Final = VerbParameter("reason", str, "why; it is kept and audited", None, "--reason", "TEXT")
ENTRY: Final = (CALLER, ID, TOOL)
NEW_ENTRY: Final = (
    *ENTRY,
    REASON,
    VerbParameter("until", str, "when it ends, as 2027-01-31T12:00:00Z", None, "--until", "TIME"),
    VerbParameter("force", bool, "also for a tool that the server does not have now", False, "--force"),
)
DECISION: Final = (
    ID,
    VerbParameter("permission", str, "default: all that nobody has decided about", None),
    REASON._replace(default=""),
)

VERB_GROUPS: Final[Mapping[str, str]] = {
    "access": "show and change who may use which server and tool",
    "permissions": "show and decide which permissions servers have",
    "pins": "show and accept tools that are held because they changed",
}
"""First words of verbs, and what each group is about. A group alone means its `list`."""

_ROWS: Final = (
    KernelVerb("status", "", lambda kernel: kernel.status),
    KernelVerb("ps", "show the servers of a kernel and their states", lambda kernel: kernel.ps),
    KernelVerb("history", "", lambda kernel: kernel.history),
    KernelVerb(
        "logs",
        "show what servers wrote to standard error, and how their states changed",
        lambda kernel: kernel.logs,
        (OPTIONAL_ID._replace(help="only this server"), FOLLOW._replace(option="-f")),
    ),
    KernelVerb(
        "restart",
        "restart a server; the new process is up before the old one stops",
        lambda kernel: kernel.restart,
        (ID, VerbParameter("now", bool, "do not wait for calls under way", False, "--now")),
        has_button=True,
        method="mgp/lifecycle/restart",
    ),
    KernelVerb("start", "start a stopped server", lambda kernel: kernel.start, (ID,), has_button=True),
    KernelVerb(
        "stop",
        "let the running calls of a server finish, then stop it",
        lambda kernel: kernel.stop,
        (ID,),
        has_button=True,
        method="mgp/lifecycle/shutdown",
    ),
    KernelVerb("approve", "allow tools that are held because they changed", lambda kernel: kernel.approve, HELD),
    KernelVerb("reload", "make a kernel reread its file", lambda kernel: kernel.reload, has_button=True),
    KernelVerb(
        "search",
        "find tools by what they do",
        lambda kernel: kernel.search,
        (
            VerbParameter("query", str, "what the tool should do"),
            VerbParameter("top", int, "at most so many (default: 5)", 5, "--top", "N"),
        ),
    ),
    KernelVerb(
        "why",
        "",  # `defserve why` asks for it
        lambda kernel: kernel.explain_call,
        (
            VerbParameter("caller", str, "who calls, as `defserve why` names callers"),
            VerbParameter("tool", str, "the name of a tool of the kernel"),
            VerbParameter("token", str, "the token of the caller", None),
            VerbParameter("scopes", str, "assume that the caller has these scopes", None),
        ),
    ),
    KernelVerb("health", "ask servers whether they answer", lambda kernel: kernel.health, (OPTIONAL_ID,)),
    KernelVerb(
        "audit",
        "show the kernel's audit log, or check that it is intact",
        lambda kernel: kernel.audit,
        (
            VerbParameter("last", int, "the last N (default: 20)", 20, "-n", "N"),
            FOLLOW,
            VerbParameter("verify", bool, "check every record, and show none", False, "--verify"),
        ),
    ),
    KernelVerb(
        "access list",
        "show who may use which server and tool",
        lambda kernel: kernel.access.list_entries,
        (OPTIONAL_ID, CALLER._replace(help="only entries of this caller", default=None, option="--caller")),
    ),
    KernelVerb(
        "access grant",
        "let a caller use a server or a tool",
        lambda kernel: partial(kernel.access.set_entry, "allow"),
        NEW_ENTRY,
    ),
    KernelVerb(
        "access deny",
        "keep a caller from a server or a tool",
        lambda kernel: partial(kernel.access.set_entry, "deny"),
        NEW_ENTRY,
    ),
    KernelVerb("access revoke", "remove what was granted or denied", lambda kernel: kernel.access.revoke_entry, ENTRY),
    KernelVerb(
        "permissions list",
        "show which permissions servers need, and what is decided",
        lambda kernel: kernel.permissions.list_needed,
        (OPTIONAL_ID,),
    ),
    KernelVerb(
        "permissions approve",
        "let a server's tools use a permission",
        lambda kernel: partial(kernel.permissions.decide_permission, "approved"),
        DECISION,
    ),
    KernelVerb(
        "permissions deny",
        "keep a server's tools from a permission",
        lambda kernel: partial(kernel.permissions.decide_permission, "denied"),
        DECISION,
    ),
    KernelVerb(
        "pins list",
        "show tools that are held because they changed, and the difference",
        lambda kernel: kernel.list_held_tools,
        (OPTIONAL_ID,),
    ),
    KernelVerb(
        "pins accept", "let held tools be used as they are now", lambda kernel: kernel.approve, HELD, has_button=True
    ),
)
KERNEL_VERBS: Final = {verb.name: verb for verb in _ROWS}


def parse_verb_request(request: Any) -> tuple[KernelVerb, dict[str, Any]]:
    """The verb of a request `{"verb": …, fields}`, and its fields. Raises UsageError for one that is not made so."""
    if not is_object(request):
        raise UsageError("a request is an object", fix='send {"verb": "ps"}')
    fields = {**request}
    name = fields.pop("verb", None)
    verb = KERNEL_VERBS.get(name) if isinstance(name, str) else None
    if verb is None:
        raise UsageError(f"there is no verb {str(name)[:60]!r}", fix=f"use one of {', '.join(KERNEL_VERBS)}")
    checked: dict[str, Any] = {}
    for parameter in verb.parameters:
        value = fields.pop(parameter.name, parameter.default)
        if value is ... or (value is not parameter.default and type(value) is not parameter.type):
            raise UsageError(
                f"{name} needs {parameter.name}", fix=f"give {parameter.name}: a {parameter.type.__name__}"
            )
        checked[parameter.name] = value
    if fields:
        known = ", ".join(parameter.name for parameter in verb.parameters)
        raise UsageError(f"{name} has no {min(fields)!r}", fix=f"it takes {known or 'nothing'}")
    return verb, checked
