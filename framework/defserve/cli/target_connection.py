"""A connection to the server that a command is about, the arguments of a call, and what the server lists.

Errors are UsageError, PeerGone or PeerTimeout, and name the option that helps. Tracebacks of the author's code are
shown without the frames of what runs it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from traceback import format_exception
from typing import Any, Final
from urllib.parse import urlsplit

from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.cli.parser import CommandArgument, CommandParser, make_flag, parse_seconds
from defserve.cli.parser import parse_token as token_type
from defserve.cli.screen import ProgressDisplay
from defserve.cli.screen_blocks import StyledText, style_state
from defserve.cli.target import ServerTarget, find_project_target, is_target, load_target, parse_headers, resolve_target
from defserve.client.answers import Answers
from defserve.client.client import Client
from defserve.client.eras import NEWEST_VERSION_BY_ERA, SILENT_SERVERS, get_silent_server_cache_path
from defserve.client.link import ClientLink, has_stored_sign_in
from defserve.client.links.stdio import ProcessLink
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.client.replies import object_or_empty
from defserve.client.targets import INSTALLED_CODE_FOLDERS, PACKAGE_FOLDER, connect_url, is_outside_folders
from defserve.core.composition import Composition
from defserve.core.json_values import is_object
from defserve.errors import DefserveError, PeerError, PeerGone, PeerTimeout, ToolError, UsageError
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.serve.address import AddressUnreachable, CredentialsRequired, HttpRefusal, SignInError
from defserve.tooling.listing import (
    FULL_OFFER,
    LISTING_OFFER,
    ServerListing,
    fetch_listing,
    get_security_block,
    make_initialize_result,
    server_listing,
)

CONNECTION_OPTIONS: Final = (
    CommandArgument("-m", dest="module", metavar="PACKAGE", help="a package with a server, instead of TARGET"),
    CommandArgument("--era", help='protocol era: "handshake", "stateless" or a version (default: negotiated)'),
    CommandArgument(
        "--timeout", type=parse_seconds, default=60.0, help="seconds to wait for each answer (default: 60)"
    ),
    CommandArgument(
        "--token", type=token_type, help="a bearer token for a server at an address, or @FILE that holds it"
    ),
    CommandArgument(
        "-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="a header for a server at an address"
    ),
    make_flag("-v", "--verbose", help="show the server's stderr, full tracebacks, and the details of a refusal"),
)


@asynccontextmanager
async def connect_target(
    target: ServerTarget,
    options: Namespace,
    *,
    offer: Mapping[str, Any] | None = None,
    answers: Answers | None = None,
    work: ProgressDisplay | None = None,
    name: str | None = None,
) -> AsyncGenerator[Client, None]:
    """A client of `target` while the block runs. `offer` adds capabilities to its own. `work` shows progress and logs.

    It calls itself `name`, if one is given: some servers list other tools to some clients.

    It says that it can show views: who looks at a server wants to see those too, and the tools that only they use.
    Without `answers`, questions go to the person at the terminal, if there is one.
    Raises PeerGone if nothing is there, PeerTimeout and UsageError with the option that helps.
    """
    chosen: dict[str, Any] = {
        "version": options.era,
        "timeout": options.timeout,
        "answers": answers or _answers(),
        "apps": True,
        **({"capabilities": offer} if offer else {}),
        **({"info": {"name": name, "version": VERSION}} if name else {}),
        **({"on_progress": work.show_progress, "on_log": work.show_log} if work is not None else {}),
    }
    SILENT_SERVERS.remember_in_file(get_silent_server_cache_path())
    try:
        with explain_http_errors(target.address, is_signed_in=is_signed_in(target, options)):
            if target.server is not None:
                async with AsyncExitStack() as stack:
                    yield await _start_client(stack, target.server.connect(**chosen), options)
            else:
                async with Client(await open_target_link(target, options), **chosen) as client:
                    yield client
    except PeerTimeout as error:
        look = "-v shows what it writes to stderr; " if target.command and not options.verbose else ""
        raise PeerTimeout(f"{error.message}\n  fix: {look}--timeout waits longer") from None
    except ToolError as error:
        # What went wrong is only told on the other side. A server in this process has shown it above.
        is_shown = target.server is not None or (target.command and options.verbose)
        if is_shown or not error.message.startswith("internal error (id "):
            raise
        look = "-v shows what the server writes to stderr" if target.command else "look for this id in the server's log"
        raise ToolError(f"{error.message}\n  fix: {look}", data=error.data) from None


async def _start_client(
    stack: AsyncExitStack, starting: AbstractAsyncContextManager[Client], options: Namespace
) -> Client:
    """A client of a server of this process. Raises UsageError with the author's frames if its lifespan fails."""
    try:
        return await stack.enter_async_context(starting)
    except DefserveError:
        raise
    except Exception as error:
        if options.verbose:
            raise
        shown = shorten_traceback("".join(format_exception(error)))
    raise UsageError(f"the server did not start\n{shown}")


async def open_target_link(target: ServerTarget, options: Namespace) -> ClientLink:
    """A link to the server that a command line names. It is not a server of this process."""
    if target.address:
        from defserve.auth.local_token import resolve_local_key

        given = {**target.headers, **parse_headers(options.header)}
        headers = {name.lower(): value for name, value in given.items()}
        address, token = resolve_local_key(target.address, options.token, headers)
        auth = None
        if token is None and is_signed_in(target, options) and has_stored_sign_in(address):
            from defserve.client.signin.authorizer import StoredSignIn

            auth = StoredSignIn()
        return await connect_url(address, headers=headers, token=token, auth=auth)
    program, *args = target.command
    return await ProcessLink.spawn(program, args, env=target.env, cwd=target.cwd, echo=options.verbose)


def is_signed_in(target: ServerTarget, options: Namespace) -> bool:
    """Whether a command uses the token of `defserve login`. One that its command line gives wins over it."""
    given = {name.lower() for name in (*target.headers, *parse_headers(options.header))}
    return (
        bool(target.address)
        and not options.token
        and "authorization" not in given
        and has_stored_sign_in(target.address)
    )


def explain_unlisted_tools(target: ServerTarget, options: Namespace, tool: str) -> str:
    """What else it can mean that a tool is not listed: its caller may not see it. Empty where no caller has a token.

    Servers show a caller only what it may use, so nobody here knows which it is, nor what the tool needs.
    """
    quoted = shlex.quote(tool)
    if is_signed_in(target, options):
        return (
            f"your sign-in may not use it{_describe_granted_scopes(target.address)}: defserve login {target.address} "
            f"--scope SCOPE asks for more; whoever runs the server sees what is missing with "
            f"defserve why token {quoted} --server SERVER.py"
        )
    given = {name.lower() for name in (*target.headers, *parse_headers(options.header))}
    if not target.address or not (options.token or "authorization" in given):
        return ""
    why = f"defserve why token {quoted} --token @FILE --server SERVER.py"
    return f"this token may not use it: whoever runs the server sees what it lacks with {why}"


def _describe_granted_scopes(address: str) -> str:
    """` (it has notes.read, and was not granted notes.write)`: what a sign-in asked for, and what it got."""
    from defserve.client.signin.credentials import get_user_credential_store

    credential = get_user_credential_store().load_credential(address)
    if credential is None or credential.tokens is None:
        return ""
    scopes = credential.tokens.scopes
    denied = " ".join(scope for scope in credential.asked if scope not in scopes)
    return f" (it has {' '.join(scopes) or 'no scopes'}{f', and was not granted {denied}' if denied else ''})"


def _answers() -> Answers:
    """The person at the terminal answers, if there is one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Answers()
    from defserve.cli.terminal_answers import make_terminal_answers

    return make_terminal_answers()


# -- Errors of a server at an address, with what helps the person who typed the command.


# The error of a challenge → what helps whoever has a token.
TOKENS: Final[Mapping[str | None, str]] = {
    "": "add --token TOKEN, or --token @FILE",
    "invalid_token": "use another --token; this one is unknown, expired, or meant for another server",
    "insufficient_scope": "use a --token that has these scopes",
}
METADATA: Final = "resource_metadata="
"""In a challenge it says that one can sign in."""
CHECK_ADDRESS: Final = "check the address; most end with /mcp, older ones with /sse"
STATUSES: Final[Mapping[int, str]] = {
    401: "sign in: defserve login {url}",
    404: CHECK_ADDRESS,
    405: CHECK_ADDRESS,
    501: CHECK_ADDRESS,
}
TLS: Final = "[SSL"
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""How Python begins to tell of TLS that failed, and its word for a certificate that it does not trust."""
SCOPES: Final = re.compile(r'scope="([\w:./ -]{1,1000})"', re.ASCII)
"""Only those that no shell reads otherwise: people copy the line that helps."""


@contextmanager
def explain_http_errors(address: str, *, is_signed_in: bool = False) -> Generator[None]:
    """What HTTP refuses in this block is raised as UsageError or PeerGone, with what helps.

    `is_signed_in` says that the token comes from `defserve login`, not from the command line.
    """
    try:
        yield
    except AddressUnreachable as error:
        raise PeerGone(f"{error.message}\n  fix: {_absent(error.message, address)}") from None
    except SignInError as error:
        raise UsageError(error.problem, fix=error.fix) from None
    except CredentialsRequired as error:
        if is_signed_in and error.error == "invalid_token":
            raise UsageError(
                f"{address} no longer accepts the token from your sign-in (HTTP {error.data['status']})",
                fix=f"sign in again: defserve login {address}",
            ) from None
        raise UsageError(error.message, fix=_credentials(error, address)) from None
    except HttpRefusal as error:
        raise UsageError(error.message, fix=STATUSES.get(error.data["status"], "").format(url=address)) from None


def _credentials(error: CredentialsRequired, address: str) -> str:
    if error.error is None:
        return "add -H 'Authorization: …'"
    challenge = str(error.data.get("challenge"))
    scopes = SCOPES.search(challenge) if error.error == "insufficient_scope" else None
    token = TOKENS.get(error.error, TOKENS[""])
    if METADATA not in challenge:
        return f"{token}. Whoever runs the server gives out its tokens, such as API keys"
    asked = f' --scope "{scopes[1]}"' if scopes else ""
    return f"sign in: defserve login {address}{asked}; or {token}"


def _absent(message: str, address: str) -> str:
    from defserve.auth.oauth import is_loopback

    is_near = is_loopback(urlsplit(address).hostname or "")
    if UNTRUSTED in message:
        return "if you trust it, name the certificate of its issuer: SSL_CERT_FILE=FILE defserve …"
    if TLS in message:
        # Elsewhere, without TLS, others could read what is sent.
        plain = f": write {address.replace('s://', '://', 1)}" if is_near else "; check the address and its port"
        return f"what answers there may not speak TLS{plain}"
    if is_near:
        return f"nothing listens there; start the server with defserve run FILE --on {address}"
    return "check the address, and that the server runs there"


# -- Arguments of a tool or prompt on the command line: `key=text`, `key:=json`, or one JSON object.


ARGUMENT_PATTERN: Final = re.compile(r"([^=:\s]+)(:?=)(.*)", re.DOTALL)
MISSING_ARGUMENT_PATTERN: Final = re.compile(r"^([^:\n]{1,200}): missing$", re.MULTILINE)
"""A line of a server about an argument that was not given."""
WHOLE: Final = """write --args '{"key": "value"}'"""


def parse_subject_options(
    parser: CommandParser, argv: list[str], command: str, subject: str, *arguments: CommandArgument
) -> Namespace:
    """The options of a command whose words are arguments of a `subject`: a tool or a prompt.

    It adds the options that such commands share. Raises UsageError for an option that is meant as an argument.
    """
    folder = "where pictures and other files are saved (default: here)"
    parser.add_arguments(
        *arguments, CommandArgument("-o", "--output", metavar="DIR", default=".", help=folder), *CONNECTION_OPTIONS
    )
    options, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        problem, fix = parser.describe_unknown_words(unknown)
        meant = f"{fix} For an argument of the {subject}, " if fix.startswith("did you mean") else ""
        raise UsageError(problem, fix=meant + suggest_instead_of_option(unknown[0], argv, command))
    return options


def resolve_target_before_name(words: list[str], module: str | None, command: list[str] | None) -> ServerTarget:
    """Like `resolve_target`, where the name of a tool or prompt follows. In a project it may come alone."""
    is_alone = len(words) == 1 or (len(words) > 1 and ARGUMENT_PATTERN.fullmatch(words[1]) is not None)
    if module is None and command is None and is_alone and not is_target(words[0]) and (found := find_project_target()):
        return ServerTarget(load_target(found))
    return resolve_target(words, module, command)


def suggest_instead_of_option(unknown: str, argv: list[str], command: str = "call") -> str:
    """What to write instead of an unknown option. Most likely it is meant as an argument of the tool."""
    name, equals, value = unknown.lstrip("-").partition("=")
    after = argv[argv.index(unknown) + 1 :]
    if not equals and after and not after[0].startswith("-"):
        value = after[0]
    if not name.replace("-", "_").isidentifier():
        return f"run defserve {command} --help"
    return f"write {name.replace('-', '_')}={shlex.quote(value) if value else '…'}; or run defserve {command} --help"


def parse_argument_words(words: list[str], whole: str | None) -> tuple[dict[str, str], dict[str, Any]]:
    """`key=value` pairs, whose values are still text, and the JSON values of `key:=json` and `--args`."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    if whole is not None:
        given = read_json(whole, "--args", WHOLE)
        if not is_object(given):
            raise UsageError("--args must be an object", fix=WHOLE)
        values.update(given)
    for word in words:
        parts = ARGUMENT_PATTERN.fullmatch(word)
        if parts is None:
            raise UsageError(f"{word!r} is not an argument", fix="write key=text or key:=json")
        name, sign, text = parts.groups()
        if name.startswith("-"):
            raise UsageError(f"{word!r} is not an argument", fix=suggest_instead_of_option(word, [word]))
        if sign == "=":
            texts[name] = text
        else:
            values[name] = read_json(text, name, f"for plain text, write {name}=text")
    return texts, values


def read_json(text: str, name: str, fix: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name}: {text!r} is not JSON: {error}", fix=fix) from None


# -- Short tracebacks: the frames of the author's code, without those of what runs it.


MORE: Final = "(-v shows every frame)"
FRAME: Final = re.compile(r'^  File "([^"\n]+)", line .*\n(?:    .*\n)*', re.MULTILINE)


def shorten_tracebacks() -> AbstractContextManager[None]:
    """While the block runs, tracebacks in the log of a server show only the author's frames."""
    return filter_log(get_logger(), _shorten_traceback)


def _shorten_traceback(record: logging.LogRecord) -> bool:
    # The traceback arrives as text, because its secrets were removed.
    if record.exc_text:
        record.exc_text = shorten_traceback(record.exc_text)
    return True


TRACEBACK_HEAD: Final = "Traceback (most recent call last):\n"


def shorten_traceback(text: str) -> str:
    """A traceback without the frames of Python, packages and defserve. If none would be left, only ours are hidden."""
    paths = [frame[1] for frame in FRAME.finditer(text)]
    hidden = (
        (PACKAGE_FOLDER, *INSTALLED_CODE_FOLDERS)
        if any(is_outside_folders(path, (PACKAGE_FOLDER, *INSTALLED_CODE_FOLDERS)) for path in paths)
        else (PACKAGE_FOLDER,)
    )
    shown = FRAME.sub(lambda frame: frame[0] if is_outside_folders(frame[1], hidden) else "", text)
    if FRAME.search(shown) is None:
        shown = shown.replace(TRACEBACK_HEAD, "")
    return text if shown == text else f"{shown.rstrip()}\n{MORE}"


# -- A filter on a log, for as long as a block runs.


@contextmanager
def filter_log(log: logging.Logger, by: Callable[[logging.LogRecord], bool]) -> Generator[None]:
    log.addFilter(by)
    try:
        yield
    finally:
        log.removeFilter(by)


# -- What the server of a command says about itself and what it lists; the marks of tools; mounted servers.


def load_target_listing(target: ServerTarget, options: Namespace) -> ServerListing:
    """What a client that offers MGP sees. For the capabilities, it offers MCPL too."""
    composition = getattr(target.server, "composition", None)
    if isinstance(composition, Composition) and options.era is None and (found := server_listing(composition)):
        return found
    return asyncio.run(_listing_over_connections(target, options))


async def _listing_over_connections(target: ServerTarget, options: Namespace) -> ServerListing:
    """The same over two connections, because a host that speaks MCPL sees only the tools it has enabled."""
    async with connect_target(target, options, offer=LISTING_OFFER) as client:
        listed = await fetch_listing(client)
    era = options.era or "handshake"
    try:
        async with connect_target(target, Namespace(**{**vars(options), "era": era}), offer=FULL_OFFER) as client:
            return listed._replace(initialize=make_initialize_result(client))
    except PeerError:
        return listed  # it only speaks the other era


async def find_spoken_versions(target: ServerTarget, options: Namespace) -> list[str]:
    """The protocol versions that a server speaks: all of them in this process, else the newest of each era."""
    if isinstance(getattr(target.server, "composition", None), Composition) and options.era is None:
        return [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
    spoken: list[str] = []
    for era in NEWEST_VERSION_BY_ERA if options.era is None else (options.era,):
        try:
            async with connect_target(target, Namespace(**{**vars(options), "era": era})) as client:
                spoken.append(client.version)
        except PeerError:
            continue
    return spoken


# -- What a tool may do, in the words that stand behind it in a list.


# A hint of MCP → the word for it, if the tool has no mark.
HINTS: Final = {"readOnlyHint": "read-only", "destructiveHint": "destructive", "openWorldHint": "open world"}
HARMLESS: Final = frozenset(("safe", "unmarked", "read-only"))
"""Words that a short list leaves out."""


def format_effect_words(words: list[str]) -> list[StyledText]:
    """`  [dangerous, asks first]`, with the style of what each word says."""
    parts: list[StyledText] = []
    for number, word in enumerate(words):
        parts += [", " if number else "  [", style_state(word)]
    return [*parts, "]"] if parts else []


def list_tool_effects(tool: Mapping[str, Any]) -> list[str]:
    """What a tool may do, in a few words: from its mark, or from its hints."""
    security = get_security_block(tool)
    if not security or not parse_tool_security("", dict(tool)).is_marked_by_author:
        hints: Mapping[str, Any] = tool.get("annotations") or {}
        return ["unmarked", *(word for hint, word in HINTS.items() if hints.get(hint) is True)]
    validator = security.get("validator", "none")
    said = [
        security.get("risk_level"),
        *(security.get("permissions_required") or ()),
        "asks first" if security.get("confirmation_required") else None,
        f"checked: {validator}" if validator != "none" else None,
    ]
    return [str(word) for word in said if word]


def list_tool_dangers(tool: Mapping[str, Any]) -> list[str]:
    """The words of a tool that a person should know before a call; empty for one that is harmless, or unmarked."""
    return [word for word in list_tool_effects(tool) if word not in HARMLESS]


# -- Servers mounted on the one that a command is about: which of them are not connected, and why, told once.


STATES: Final = "dev.defserve/servers"
"""In `_meta` of a list: the mounted servers whose items may be missing."""


async def list_disconnected_servers(client: Client) -> dict[str, str]:
    """The mounted servers that are not connected, each with what its server says of it."""
    if "tools" not in client.capabilities:
        return {}
    answer = await client.request("tools/list", {})
    states: dict[str, Any] = object_or_empty(object_or_empty(answer.get("_meta")).get(STATES))
    return {id: str(object_or_empty(state).get("note") or "it is not connected") for id, state in states.items()}


def suppress_repeated_logs() -> AbstractContextManager[None]:
    """While the block runs, the log says the same about a mounted server only once. Each attempt to start it tells."""
    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_known = text in told
        told.add(text)
        return not is_known

    return filter_log(get_logger("proxying"), is_new)
