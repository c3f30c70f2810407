"""Every text that docs/troubleshooting.md explains is one that users really meet: here each is provoked."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from defserve import Limits, Server
from defserve.auth import Auth
from defserve.errors import DefserveError
from defserve.server import AccessPolicy
from defserve.testing import Decline
from tests.cli.conftest import folder as folder
from tests.effort import thinned
from tests.raw import PREFIX
from tests.troubleshooting import (
    ADD,
    COUNT,
    HEAD,
    NAME,
    TOKEN,
    Desk,
    a_question_without_an_answer,
    a_test_that_names_no_server,
    an_answer_that_nobody_asked_for,
    ask,
    calc,
    called,
    called_without_a_name,
    changed_while_developing,
    crash,
    evaluate,
    fetch,
    git,
    long,
    on_a_port_in_use,
    one_tool,
    opened_in_a_browser,
    packaged_without_a_marker,
    posted,
    published_without_an_uploader,
    pushed_to_nobody,
    raised,
    read,
    request,
    sent,
    sleep,
    tokens,
    while_shutting_down,
    wipe,
    with_a_damaged_store,
    without_containment,
    without_pytest,
)

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
HEADING = re.compile(r"^### (`+) ?(.+?) ?\1$", re.MULTILINE)

# The text, with <placeholders>, as the page has it -> what gives it to a user.
ERRORS: dict[str, Callable[[Desk], str]] = {
    # declaring
    "<file>:<line>: <tool>: parameter '<name>' has no type": lambda desk: desk.declares(
        "@server.tool\ndef add(a, b: int) -> int: ..."
    ),
    "<file>:<line>: <tool>: parameter '<name>' is positional-only, and JSON arguments have names": (
        lambda desk: desk.declares("@server.tool\ndef add(a: int, /) -> int: ...")
    ),
    "<file>:<line>: <tool>: parameter '*<name>' cannot be described in JSON": lambda desk: desk.declares(
        "@server.tool\ndef add(*numbers: int) -> int: ..."
    ),
    "<file>:<line>: <tool>: parameter '<name>': <type> has no JSON form (<reason>)": lambda desk: desk.declares(
        "class Db: ...\n@server.tool\ndef add(db: Db) -> int: ..."
    ),
    "<file>:<line>: <tool>: return: bytes says nothing about what the bytes are": lambda desk: desk.declares(
        "@server.tool\ndef picture() -> bytes: ..."
    ),
    "<file>:<line>: <tool>: an annotation names '<type>', which is not defined where the function is": (
        lambda desk: desk.declares("@server.tool\ndef add(a: 'Row') -> int: ...")
    ),
    "<file>:<line>: <tool>: parameter '<name>': its default <value> is not <type>": lambda desk: desk.declares(
        "@server.tool\ndef add(a: int = 'one') -> int: ..."
    ),
    "<file>:<line>: tool '<name>' is already registered at <file>:<line>": lambda desk: desk.declares(ADD + ADD),
    "<file>:<line>: tool name '<name>' is not 1 to 128 characters of A-Z a-z 0-9 _ . -": lambda desk: desk.declares(
        "@server.tool(name='add two')\ndef add() -> int: ..."
    ),
    "<file>:<line>: <tool>: tool has no option '<option>'": lambda desk: desk.declares(
        "@server.tool(timout=5)\ndef add() -> int: ..."
    ),
    "<file>:<line>: resource '<uri>' does not match function '<name>': <problem>": lambda desk: desk.declares(
        "@server.resource('notes://{id}')\ndef note(name: str) -> str: ..."
    ),
    "<file>:<line>: @<mark> comes after @server.tool has registered <name>": lambda desk: desk.declares(
        "@dangerous('shell.execute')\n@server.tool\ndef run() -> str: ..."
    ),
    "<file>:<line>: '<name>' is not a permission": lambda desk: desk.declares(
        "@server.tool\n@dangerous('shell.exec')\ndef run() -> str: ..."
    ),
    "<file>:<line>: <tool>: parameter '<name>': the server keeps no <model>": lambda desk: desk.declares(
        COUNT.replace("counting.state(Counter)", "")
    ),
    "mount comes after the server has started": lambda _: raised(
        DefserveError, lambda: (server := calc(), server.composition, server.mount(Server("other", "1")))
    ),
    # starting
    "there is no file '<path>'": lambda desk: desk.types("run", "srver.py"),
    "there is no module '<name>' on the path": lambda desk: desk.types("run", "shop.tools:server"),
    "'<target>' has no server": lambda desk: desk.has("server.py", "x = 1").types("list", "server.py"),
    "'<target>' has several servers: <names>": lambda desk: desk.declares(
        "one, two = server, Server('other', '1')\ndel server"
    ),
    "<file>:<line>: running <file> failed: <error>": lambda desk: desk.declares("import no_such_package"),
    "<file>:<line>: <file> ended the program while it was loaded (exit <code>)": lambda desk: desk.declares(
        "import sys\nsys.exit(3)"
    ),
    "<file>:<line>: the document's server is on a private network: <host>": lambda desk: desk.declares(
        "Server.from_openapi({'openapi': '3.1.0', 'paths': {}, 'servers': [{'url': 'http://127.0.0.1:8000'}]})"
    ),
    "there is no command '<command>'": lambda desk: desk.types("serve", "server.py"),
    "<command> has no option <option>": lambda desk: desk.types("run", "server.py", "--port", "8000"),
    "no server is given": lambda desk: desk.types("call"),
    "cannot serve on '<address>'": lambda desk: desk.serves("8000"),
    # extras
    "serving on <address> needs websockets, which is not installed": lambda desk: desk.lacks(
        "websockets", "defserve.serve.http1.websocket"
    ).serves("ws://127.0.0.1:0/mcp"),
    "connecting to an http address through a proxy needs httpx2, which is not installed": (
        lambda desk: desk.lacks("httpx2").set("http_proxy", "http://127.0.0.1:9").types("list", "http://a.example/mcp")
    ),
    "<file>:<line>: JWT needs PyJWT and cryptography, which are not installed": lambda desk: desk.lacks("jwt").declares(
        "JWT(audience='https://a.example/mcp', issuer='https://b.example', jwks_url='https://b.example/jwks')"
    ),
    "a store in Redis needs the redis package": lambda desk: desk.lacks("redis", "redis.asyncio").types(
        "state", "list", "redis://localhost:6379/0"
    ),
    "a store in Postgres needs the psycopg package": lambda desk: desk.lacks("psycopg").types(
        "state", "list", "postgres://localhost/notes"
    ),
    "pytest is not installed": without_pytest,
    # over the network
    "serving on <address> without knowing by which names it may be reached": lambda desk: desk.serves(
        "http://0.0.0.0:8000/mcp"
    ),
    "https:// needs a certificate": lambda desk: desk.serves("https://127.0.0.1:0/mcp"),
    "cannot listen on <address>: address already in use": on_a_port_in_use,
    "<file>:<line>: tool '<name>' needs scopes <scopes>, and this server checks no tokens": lambda desk: desk.serves(
        "http://127.0.0.1:0/mcp", "@server.tool(scopes=['notes:read'])\ndef read() -> str: ..."
    ),
    "421 this server does not answer for <host>; its allowed_hosts setting (--allow-host) can add it": lambda _: posted(
        calc(), host="tools.example.com"
    ),
    "403 requests from <origin> are refused; the allowed_origins setting (--allow-origin) can add it": lambda _: posted(
        calc(), origin="https://chat.example.com"
    ),
    "401 Unauthorized: this server wants a token. Send it as a header: Authorization: Bearer <token>": lambda _: posted(
        calc(auth=tokens())
    ),
    "403 Forbidden: this token lacks a scope. Send one that has all of these: <scopes>": lambda _: posted(
        calc(auth=Auth(tokens(), scopes=["notes:read"])), authorization=f"Bearer {TOKEN}"
    ),
    "This tool keeps state, and callers who do not say who they are cannot be told apart: sign in, open a session, or"
    ' name the "checkpoint" to start from (null starts empty)': called_without_a_name,
    "404 Invalid request: no such session; initialize again": lambda _: posted(calc(), mcp_session_id="gone"),
    "400 Invalid request: the Mcp-Session-Id header is missing: send initialize first."
    " For curl, serve with --rest": lambda _: posted(calc()),
    "406 This address is for MCP clients. There is no page for browsers here.": lambda _: opened_in_a_browser(calc()),
    "400 <header> header is missing": lambda _: posted(calc(), message=request()),
    "406 Not acceptable: accept both application/json and text/event-stream": lambda _: posted(
        calc(), accept="application/json"
    ),
    "415 Unsupported media type: send application/json": lambda _: posted(calc(), content_type="text/plain"),
    "413 Content too large: at most <count> bytes": lambda _: posted(calc(limits=Limits(message=20))),
    # the protocol
    "-32602 Unknown tool: <name>": lambda _: sent("tools/call", name="ad"),
    "-32601 Method not found: <method>": lambda _: sent("ping", version="2026-07-28"),
    "-32602 <method> came before the conversation was opened": lambda _: sent("tools/list", opened=False),
    "-32022 Unsupported protocol version: <version>": lambda _: sent(
        "tools/list", opened=False, **request("2027-01-01")["params"]
    ),
    "-32602 Invalid params: _meta['io.modelcontextprotocol/clientCapabilities'] is required and must be an object": (
        lambda _: sent("tools/list", opened=False, _meta={f"{PREFIX}protocolVersion": "2026-07-28"})
    ),
    # calling
    "<argument>: expected <type>, got <value>": lambda _: called(calc(), "add", a="one", b=2),
    'unknown argument "<name>"; did you mean "<other>"?': lambda _: called(calc(), "add", a=1, b=2, bb=3),
    "internal error (id <id>)": lambda _: called(one_tool(crash), "crash"),
    "timed out after <seconds> s": lambda _: called(one_tool(sleep, limits=Limits(tool=0.01)), "sleep"),
    "the result is larger than <count> bytes": lambda _: called(one_tool(long, limits=Limits(response=500)), "long"),
    "too many calls of <tool>: wait <seconds> s": lambda _: called(
        calc(auth=tokens(), limits=Limits(rate=0.001, burst=1)), "add", over="http", a=1, b=2
    ),
    "the server is shutting down": while_shutting_down,
    "this needs a client that offers <capability>, and this one does not": lambda _: called(
        one_tool(ask), "ask", offers=()
    ),
    "nobody can answer '<question>'": lambda desk: desk.calls("name", "--yes", text=NAME),
    "the user declined: <question>": lambda _: called(one_tool(ask), "ask", Decline),
    "<server> has no tool '<name>'": lambda desk: desk.calls("ad", "a=1"),
    "'<word>' is not an argument": lambda desk: desk.calls("add", "1", "2"),
    "cannot start '<command>': No such file or directory": lambda desk: desk.types("list", "--", "no-such-command"),
    "<command> exited with code <code>; its last words:": lambda desk: desk.types(
        "list", "--", sys.executable, "-c", "import sys; sys.exit('no API key')"
    ),
    "no answer to <method> within <seconds> s": lambda desk: desk.types(
        "list", "--timeout", "0.1", "--", sys.executable, "-c", "import sys; sys.stdin.read()"
    ),
    "<url> cannot be reached: <reason>": lambda desk: desk.types("list", "http://127.0.0.1:9/mcp"),
    # permission
    "<tool> needs a permission it does not have (<permission>: the operator of this server denies it)."
    " The operator can grant it.": (lambda _: called(one_tool(read, permissions="deny_all"), "read")),
    "<tool> has to be confirmed, and this client cannot be asked: <fix>": lambda _: called(
        one_tool(wipe, confirm="always"), "wipe", offers=()
    ),
    "<tool> has to be confirmed, and an unauthenticated caller cannot do that: <fix>": lambda _: called(
        one_tool(wipe, granted=["filesystem.write"]), "wipe", over="ws"
    ),
    "<tool> is dangerous and needs your yes": lambda desk: desk.calls(
        "wipe", text="@server.tool\n@dangerous('filesystem.write')\ndef wipe() -> str: ...\n"
    ),
    "<tool> was not confirmed: the user said no; do not call it again unasked": lambda _: called(
        one_tool(wipe), "wipe", {"value": False}
    ),
    "<principal> has no access to <tool> (<reason>): ask an admin of this server for it": lambda _: called(
        calc(access=AccessPolicy("opt-in")), "add", a=1, b=2
    ),
    "URL refused: <violation>": lambda _: called(one_tool(fetch), "fetch", url="http://127.0.0.1/"),
    "Command refused: <violation>": lambda _: called(one_tool(git), "git", command="rm -rf /"),
    "Code validation failed: <violation>": lambda _: called(one_tool(evaluate), "evaluate", code="import os"),
    "<level> code cannot be run here: nothing can contain it (missing: <layers>); <fix>": without_containment,
    # stores
    "<file>:<line>: '<address>' is not the address of a store": lambda desk: desk.declares(
        "Server('x', store='mysql://db')"
    ),
    "The store cannot be opened, read or written": lambda desk: desk.calls(
        "count", text=COUNT.format("no/such/folder/count.db")
    ),
    "The store is not an SQLite file": lambda desk: desk.has("count.db", "text" * 1000).calls(
        "count", text=COUNT.format("count.db")
    ),
    "The store is damaged": with_a_damaged_store,
    "<file>:<line>: the audit log <file> cannot be continued: <reason>": lambda desk: desk.has(
        "audit.jsonl", "{}\n"
    ).declares("from defserve.server import AuditLog; AuditLog('audit.jsonl')"),
    "<file>:<line>: the audit log <file> is open in another process or server": lambda desk: desk.declares(
        "from defserve.server import AuditLog; first = AuditLog('audit.jsonl')\nsecond = AuditLog('audit.jsonl')"
    ),
    "push: nobody is connected": pushed_to_nobody,
    # developing, packaging, installing
    "defserve dev: <file>:<line>: <problem>; waiting for a change": changed_while_developing,
    "there is no project in <folder>": lambda desk: desk.types("package"),
    "<folder> already exists": lambda desk: (
        (desk.folder / "weather-mcp").mkdir(),
        desk.types("new", "weather-mcp", "--yes"),
    )[1],
    "problem: README: no marker: the registry does not know whose package it is": packaged_without_a_marker,
    "still the defaults of 'defserve new': <answers>": lambda desk: (
        desk.types("new", "weather-mcp", "--yes"),
        desk.types("publish", "weather-mcp"),
    )[1],
    "<uploader> is not installed; nothing was uploaded": published_without_an_uploader,
    "<file>:<line>: this file is broken and was left alone: <problem>": lambda desk: (
        desk.has(".mcp.json", '{"mcpServers": {').has("server.py", HEAD + ADD).types("install", "server.py")
    ),
    "<client> has no project settings": lambda desk: desk.has("server.py", HEAD + ADD).types(
        "install", "server.py", "--client", "claude-desktop", "--scope", "project"
    ),
    "there is no server '<name>' in <file>": lambda desk: desk.has(".mcp.json", '{"mcpServers": {}}').types(
        "uninstall", "calc"
    ),
    # testing
    "the `client` fixture does not know which server to test": a_test_that_names_no_server,
    "the server asked '<question>', and the test has no answer for it": a_question_without_an_answer,
    "client.will_answer(<answer>) was never used": an_answer_that_nobody_asked_for,
}


def pattern(text: str) -> str:
    """A heading as a regular expression for the whole line: a placeholder stands for anything."""
    return "(?:error: )?" + re.sub("<[a-z]+>", ".+", re.escape(text))


def test_the_page_explains_what_is_provoked_here_and_nothing_else():
    assert [text for _, text in HEADING.findall(PAGE.read_text(encoding="utf-8"))] == list(ERRORS)


@pytest.mark.parametrize("text", thinned(ERRORS, 3))
def test_users_meet_this_very_text(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    said = ERRORS[text](Desk(folder, monkeypatch, capsys))
    assert any(re.fullmatch(pattern(text), line) for line in said.splitlines()), said
