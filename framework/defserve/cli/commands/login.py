"""`defserve login` and `defserve logout`: sign in at the terminal, show where one is signed in, and sign out.

`defserve dev-issuer` is somebody to sign in with, on this machine.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

from defserve.auth.oauth import is_loopback
from defserve.cli.parser import JSON_FLAG, CommandArgument, CommandParser, make_flag
from defserve.cli.screen import show_input_prompt, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, Table
from defserve.cli.target_connection import explain_http_errors
from defserve.client.client import Client
from defserve.client.signin import authorizer
from defserve.client.signin.authorizer import ClientCredentials, CrossAppAccess, StoredSignIn, sign_out
from defserve.client.signin.browser import BrowserRedirect, has_browser, open_browser
from defserve.client.signin.credentials import Credential, FileCredentialStore, get_user_credential_store
from defserve.client.targets import HTTP_SCHEMES, WEBSOCKET_SCHEMES, connect_url
from defserve.errors import PeerError, UsageError
from defserve.serve.address import CredentialsRequired

EXAMPLES: Final = """  defserve login https://mcp.example.com/mcp
  defserve login https://mcp.example.com/mcp --no-browser     type the address that you are sent to
  defserve login https://mcp.example.com/mcp --client-id my-client --client-secret-file secret --issuer https://login.example.com
  defserve login https://mcp.example.com/mcp --client-id my-job --client-key-file key.pem --as-client
  defserve login https://mcp.example.com/mcp --scope "files:read files:write"
  defserve login --list
  defserve login --status https://mcp.example.com/mcp         asks the server whether it still takes the token
"""
MAX_SECRET_LENGTH: Final = 16_384
BARE: Final = re.compile(r"([\w.-]+)(:\d+)?/")
"""An address without its scheme."""


def run_login(argv: list[str]) -> int:
    parser = CommandParser("defserve login", "Sign in to a server. Other commands then use the token.", EXAMPLES)
    options = parser.parse_options(
        argv,
        CommandArgument("url", nargs="?", help="the address of the server: https://host/mcp"),
        CommandArgument("--scope", action="append", default=[], metavar="SCOPE", help="ask for this scope; repeatable"),
        CommandArgument(
            "--client-id", metavar="ID", help="a client that you registered with the issuer, or the URL of its metadata"
        ),
        CommandArgument("--client-secret-file", type=_secret, metavar="FILE", help="the file that holds its secret"),
        CommandArgument("--client-key-file", type=_key, metavar="FILE", help="the file that holds its private key"),
        CommandArgument(
            "--client-key-algorithm", default="ES256", metavar="ALG", help="what that key signs with (default: ES256)"
        ),
        make_flag("--as-client", help="no person signs in: the client acts for itself (client credentials)"),
        CommandArgument(
            "--identity-provider",
            metavar="URL",
            help="the token endpoint of your company's provider, which vouches for you",
        ),
        CommandArgument("--id-token-file", type=_secret, metavar="FILE", help="the ID token that this provider gave"),
        CommandArgument("--idp-client-id", metavar="ID", help="the client at that provider, if it asks for one"),
        CommandArgument("--idp-client-secret-file", type=_secret, metavar="FILE", help="the secret of that client"),
        CommandArgument("--issuer", metavar="URL", help="the issuer that the client was registered with"),
        make_flag("--no-browser", help="don't open a browser: print the address, and paste the one you end up at"),
        CommandArgument("--port", type=_port, default=0, help="the local port for the redirect (default: any)"),
        make_flag("--list", help="show where you are signed in"),
        make_flag("--status", help="show them, and ask the servers whether they are still valid"),
        JSON_FLAG,
    )
    url: str | None = options.url
    if options.list or options.status:
        states = asyncio.run(all_states(url, is_asked=options.status))
        show_stdout(JsonBlock([state.to_dict() for state in states]) if options.json else sign_ins_page(states))
        if options.status and not options.json and states and all(state.is_good for state in states):
            show_stdout(StyledLine("The servers still accept them."))
        return 0 if url is None or any(state.is_good for state in states) else 1
    url = _require_server_address(url)
    scopes = [scope for given in options.scope for scope in given.split()]
    client, secret, issuer = options.client_id, options.client_secret_file, options.issuer
    if (unattended := _choose_unattended(options, scopes)) is not None:
        name = asyncio.run(_sign_in_unattended(url, unattended))
    else:
        how = LoginOptions(scopes, client, secret, not options.no_browser, options.port, issuer)
        name = asyncio.run(sign_in(url, how))
    state = state_of(url)
    show_stdout(*((JsonBlock(state.to_dict()),) if options.json else build_signed_in_page(name, state)))
    if lacking := [scope for scope in scopes if scope not in state.scopes]:
        show_stderr(f"note: {state.issuer} did not grant {' '.join(lacking)}")
    return 0


def _require_server_address(url: str | None) -> str:
    """The address of a server. Raises UsageError if it is none."""
    if url is not None and url.partition("://")[0].lower() in (*HTTP_SCHEMES, *WEBSOCKET_SCHEMES):
        return url
    bare = BARE.match(url or "")
    scheme = "http" if bare is not None and is_loopback(bare[1]) else "https"
    raise UsageError(
        "there is no address to sign in to" if url is None else f"{url!r} is not the address of a server",
        fix=f"defserve login {f'{scheme}://{url}' if bare is not None else 'https://mcp.example.com/mcp'}",
    )


def _choose_unattended(options: Any, scopes: list[str]) -> ClientCredentials | CrossAppAccess | None:
    """How to sign in without a person, as the options say; None if they do not. Raises UsageError."""
    is_vouched = bool(options.identity_provider or options.id_token_file)
    if not (options.as_client or is_vouched):
        if options.client_key_file:
            raise UsageError("--client-key-file is for a client without a person", fix="add --as-client")
        return None
    if options.client_id is None or (options.as_client and is_vouched):
        raise UsageError(
            "this way to sign in needs a client, and is either --as-client or --identity-provider",
            fix="give --client-id, and one of the two",
        )
    client: dict[str, Any] = {
        "client_id": options.client_id,
        "client_secret": options.client_secret_file,
        "private_key": options.client_key_file,
        "algorithm": options.client_key_algorithm,
        "scopes": scopes or None,
        "issuer": options.issuer,
        "store": get_user_credential_store(),
    }
    if options.as_client:
        return ClientCredentials(**client)
    if not options.identity_provider or not options.id_token_file:
        raise UsageError(
            "your company's provider is asked with the ID token that it gave",
            fix="give both --identity-provider URL and --id-token-file FILE",
        )
    return CrossAppAccess(
        idp_token_endpoint=options.identity_provider,
        id_token=options.id_token_file,
        idp_client_id=options.idp_client_id,
        idp_client_secret=options.idp_client_secret_file,
        **client,
    )


async def _sign_in_unattended(url: str, auth: ClientCredentials | CrossAppAccess) -> str:
    with explain_http_errors(url):
        return await authorizer.sign_in_unattended(url, auth)


def _key(path: str) -> str:
    try:
        return Path(path).read_bytes()[:MAX_SECRET_LENGTH].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(f"cannot read {path}: {getattr(error, 'strerror', 'it is not text')}") from None


def _secret(path: str) -> str:
    try:
        found = Path(path).read_bytes()[: MAX_SECRET_LENGTH + 1].decode("utf-8").strip()
    except OSError as error:
        raise ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        found = ""
    if not found or len(found) > MAX_SECRET_LENGTH or len(found.split()) > 1:
        raise ArgumentTypeError(f"{path} must contain exactly one secret")
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:6]) < 65_536:
        raise ArgumentTypeError(f"{text!r} is not a port; write one from 1 to 65535")
    return int(text)


# -- `defserve logout`: end a sign-in, at its issuer and here.


LOGOUT_EXAMPLES: Final = """  defserve logout https://mcp.example.com/mcp
  defserve logout --all
"""


def run_logout(argv: list[str]) -> int:
    parser = CommandParser(
        "defserve logout", "End a sign-in: the tokens are revoked, and forgotten here.", LOGOUT_EXAMPLES
    )
    options = parser.parse_options(
        argv,
        CommandArgument("url", nargs="?", help="the address of the server; optional if there is only one sign-in"),
        make_flag("--all", help="end all sign-ins"),
    )
    for url in _urls(options.url, is_all=options.all):
        problem = asyncio.run(sign_out(url))
        show_stdout(f"Signed out of {url}")
        if problem:
            show_stderr(f"note: {problem}")
    return 0


def _urls(given: str | None, *, is_all: bool) -> list[str]:
    if given is not None and not is_all:
        return [given]
    servers = [state.server for state in asyncio.run(all_states(None, is_asked=False))]
    if not is_all and len(servers) > 1:
        raise UsageError(
            f"you are signed in to {len(servers)} servers: {', '.join(servers)}", fix="name one of them, or give --all"
        )
    if not servers:
        raise UsageError("you are not signed in anywhere", fix="sign in first: defserve login URL")
    return servers


# -- `defserve dev-issuer`: somebody to sign in with, for development.


ISSUER_PORT: Final = 9000
ISSUER_ABOUT: Final = """FOR DEVELOPMENT ONLY: an OpenID provider on this machine, to try sign-in without a real one.

Its page lists the users; whoever clicks one is signed in, without a password. It takes every client id and secret."""
ISSUER_EXAMPLES: Final = """  defserve dev-issuer ann@example.com bob@example.com
  defserve dev-issuer ann@example.com --port 9001
"""


def run_dev_issuer(argv: list[str]) -> int:
    options = CommandParser("defserve dev-issuer", ISSUER_ABOUT, ISSUER_EXAMPLES).parse_options(
        argv,
        CommandArgument("users", nargs="+", metavar="USER", help="who can sign in: an e-mail address, or another name"),
        CommandArgument(
            "--port",
            type=int,
            default=ISSUER_PORT,
            help=f"the port on loopback; 0 is a free one (default: {ISSUER_PORT})",
        ),
    )
    if not 0 <= options.port < 65_536:
        raise UsageError(f"there is no port {options.port}", fix="use one from 1024 to 65535, or leave --port out")
    return asyncio.run(_serve_issuer(options.users, options.port))


async def _serve_issuer(users: Sequence[str], port: int) -> int:
    from defserve.tooling.dev_issuer import DEV_ISSUER_WARNING, serve_dev_issuer
    from defserve.tooling.devserver.client_relay import make_stop_future

    async with serve_dev_issuer(users, port) as issuer:
        use = f'OAuthProxy("oidc", issuer="{issuer.issuer}", client_id="dev", client_secret="dev", …)'
        show_stderr(StyledLine((DEV_ISSUER_WARNING, "bad")), StyledLine(f"in your server: {use}"))
        show_stderr(StyledLine(f"issuer on {issuer.issuer}"))
        return await make_stop_future()


# -- Signs in with the person at the terminal: a browser is opened, or addresses are copied by hand.


MAX_LINE_BYTES: Final = 16_384


class LoginOptions(NamedTuple):
    """What a command line says about a sign-in."""

    scopes: Sequence[str] = ()
    client_id: str | None = None
    client_secret: str | None = None
    opens_browser: bool = True
    port: int = 0
    issuer: str | None = None


async def sign_in(url: str, options: LoginOptions) -> str:
    """Sign in to a server, and give its name. Raises PeerError, UsageError."""
    is_typed = sys.stdin.isatty() or not options.opens_browser
    redirect = BrowserRedirect(
        opens=open_browser if options.opens_browser else lambda url: False,
        show=lambda there: _show(there, is_opened=options.opens_browser and has_browser()),
        typed=_read_typed_line if is_typed else None,
        port=options.port,
    )
    client = {"client_id": options.client_id, "client_secret": options.client_secret, "issuer": options.issuer}
    with explain_http_errors(url):
        return await authorizer.sign_in(url, redirect, scopes=options.scopes, **client)


def _show(url: str, *, is_opened: bool) -> None:
    said = "Your browser opens to sign in. If it does not, open" if is_opened else "To sign in, open"
    show_stderr(StyledLine(f"{said} this address:"), StyledLine(f"  {url}"))


async def _read_typed_line(is_again: bool) -> str:
    """A line that the person types. Raises EOFError."""
    told = "That is not the address that belongs to this sign-in. " if is_again else ""
    show_input_prompt(StyledLine(f"{told}If your browser is on another machine, paste the address that it ends at: "))
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read_stdin_line() -> None:
        # Not by sys.stdin: a thread that waits for it would hold its lock when the interpreter ends.
        try:
            line = os.read(sys.stdin.fileno(), MAX_LINE_BYTES)
        except (OSError, ValueError):
            line = b""
        try:
            loop.call_soon_threadsafe(lambda: None if typed.done() else typed.set_result(line))
        except RuntimeError:
            return  # the browser came first, and the loop has ended

    Thread(target=read_stdin_line, daemon=True, name="defserve typed").start()
    line = await typed
    if not line:
        raise EOFError
    return line.decode(errors="replace")


# -- Where a person is signed in, and whether that still counts.


ASK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SignInState:
    """One sign-in. `problem` is empty as long as nothing is wrong with it."""

    server: str
    issuer: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    renews: bool = False
    place: str = ""
    problem: str = ""

    @property
    def is_good(self) -> bool:
        return not self.problem

    @property
    def until(self) -> str:
        """When it ends, for a person."""
        if self.problem:
            return self.problem
        if self.renews or self.expires_at is None:
            return "renewed by itself" if self.renews else "no end known"
        left = self.expires_at - time.time()
        return f"in {left / 3600:.1f} h" if left > 5400 else f"in {max(left, 0) / 60:.0f} min"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`: no secrets."""
        return {
            "server": self.server,
            "issuer": self.issuer,
            "scopes": list(self.scopes),
            "expires_at": self.expires_at,
            "renews": self.renews,
            "kept_in": self.place,
            "problem": self.problem or None,
        }


async def all_states(url: str | None, *, is_asked: bool) -> list[SignInState]:
    """All sign-ins of this user, or the one to a server. With `is_asked`, the servers are asked too."""
    store = get_user_credential_store()
    states = [state_of(server, store) for server in ([url] if url is not None else store.servers())]
    return [await _verify_sign_in(state) if is_asked and state.is_good else state for state in states]


def state_of(url: str, store: FileCredentialStore | None = None) -> SignInState:
    """The sign-in to a server, as it is kept here."""
    store = store or get_user_credential_store()
    try:
        credential = store.load_credential(url)
    except UsageError as error:
        return SignInState(url, problem=error.problem)
    return (
        SignInState(url, problem="not signed in")
        if credential is None
        else _state(credential, store.get_credential_path(url))
    )


def _state(credential: Credential, place: str) -> SignInState:
    tokens, server, issuer = credential.tokens, credential.server, credential.issuer.issuer
    if tokens is None:
        return SignInState(server, issuer, place=place, problem="ended; sign in again")
    renews = credential.can_refresh
    problem = "expired; sign in again" if tokens.has_expired and not renews else ""
    return SignInState(server, issuer, tokens.scopes, tokens.expires_at, renews, place, problem)


async def _verify_sign_in(state: SignInState) -> SignInState:
    try:
        async with Client(await connect_url(state.server, auth=StoredSignIn()), timeout=ASK_SECONDS):
            return state_of(state.server)
    except CredentialsRequired:
        problem = "refused by the server; sign in again"
    except PeerError as error:
        problem = error.message.partition("\n")[0]
    return SignInState(state.server, state.issuer, state.scopes, state.expires_at, state.renews, state.place, problem)


# -- What commands print about sign-ins.


def sign_ins_page(states: Sequence[SignInState]) -> ScreenBlock:
    """A table of sign-ins."""
    if not states:
        return StyledLine("You are not signed in anywhere.")
    rows = [(state.server, state.issuer, " ".join(state.scopes), state.until, state.place) for state in states]
    return Table(("server", "issuer", "scopes", "ends", "kept in"), rows, fit=("scopes", "issuer"))


def build_signed_in_page(name: str, state: SignInState) -> Iterator[ScreenBlock]:
    """What a person is told after signing in."""
    yield StyledLine("Signed in to ", (name, "bold"), f" ({state.server})")
    yield StyledLine(f"  issuer   {state.issuer}")
    if state.scopes:
        yield StyledLine(f"  scopes   {' '.join(state.scopes)}")
    yield StyledLine(f"  ends     {state.until}")
    yield StyledLine(f"  kept in  {state.place}")
