"""Every cache and queue that a peer can fill, in one table: what the peer controls, and the bound in bytes.

A cache that is made anywhere in the package must be listed here. Tables that hold one entry for a living thing (a
session, a call, a connection) are bounded by `Limits`, and not listed.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import defserve
from defserve import Limits, Server
from defserve.base.peer_bounds import ByteBoundedCache, cache_short_texts
from tests.listening import Listening, listening, request
from tests.raw import PREFIX, STATELESS

PACKAGE = Path(defserve.__file__).parent

# Rooms that no peer reaches over a wire: tools for authors, and judges that keep nothing between two calls.
ELSEWHERE = ("cli", "tooling", "testing", "guard", "sandbox")

MAKERS = frozenset(
    (
        "lru_cache cache cache_short_texts ByteBoundedCache OrderedDict deque WeakKeyDictionary WeakValueDictionary "
        "MemoryNonceStore RateBuckets Queue RecentItems ByteBoundedQueue FirstComeTable UnreadItemQueue Inbox"
    ).split()
)
# These are queues even where a function makes one and hands it on.
QUEUES = frozenset("Queue ByteBoundedQueue RecentItems UnreadItemQueue".split())
# Plain dicts and sets with one of these names are caches too.
NAMES = frozenset("_known _passed _terms _pages _readings _spare _remembered _values _pipelines unread".split())

OURS = "nothing: the keys are the author's"
CACHES: dict[str, tuple[str, str]] = {
    # where: (what a peer controls, the bound)
    "gateway/listener.py:_held": (
        "frames that come too fast",
        "what was read before reading stops: a frame and 256 KB",
    ),
    "inspector/followed_events.py:_deliveries": ("events of a server", "16 MB, the newest"),
    "protocols/mcp/events/streams.py:_pages": ("cursors", "64 pages of the log, for half a second"),
    "server/rest.py:_made": (OURS, "MAX_CACHE_BYTES of documents"),
    "auth/api_keys.py:_known": (OURS, "the keys in a file"),
    "base/redaction.py:_compile": (OURS, "the patterns of the module"),
    "base/hidden_characters.py:_any_pattern": (OURS, "one pattern"),
    "base/hidden_characters.py:_each_pattern": (OURS, "one pattern"),
    "binding/patterns.py:measure_pattern": (OURS, "512 patterns of an author"),
    "binding/patterns.py:_compile_or_explain": ("patterns of a server's schema", "see MAX_PATTERN_LENGTH"),
    "binding/explicit_schema.py:_extend_validator": (OURS, "the classes of a validator"),
    "binding/explicit_schema.py:_get_cached_validator": (OURS, "64 schemas of 4 KB"),
    "binding/arguments.py:_make_cached_fragment": (OURS, "4096 annotations"),
    "code_mode/extension.py:_places": (OURS, "one for each event loop"),
    "core/composition.py:_pipelines": (OURS, "4096 items"),
    "core/composition.py:_terms": ("capabilities and clientInfo of a request", "256 offers of 4 KB"),
    "core/peer.py:OutgoingRequests": ("nothing: the ids are ours", "one for each request that we have sent"),
    "gateway/listener.py:_pace": ("its address", "16384 addresses"),
    "gateway/gateway.py:history": ("messages", "256 KB a topic"),
    "gateway/gateway.py:_pace": ("nothing: one for each member", "16384 buckets"),
    "gateway/gateway.py:_volume": ("nothing: one for each member", "16384 buckets"),
    "gateway/gateway.py:_modest": ("nothing: one for each member", "16384 buckets"),
    "auth/dpop.py:_spent": ("ids of proofs", "100000 digests, for a minute and a half"),
    "auth/rates.py:_failures": ("its address", "16384 addresses"),
    "auth/rates.py:_by_client": (OURS, "16384 clients that an operator registered"),
    "auth/rates.py:_by_network": ("its address", "16384 addresses with a client"),
    "binding/problems.py:_list_choices": (OURS, "16 lists of choices in annotations"),
    "auth/introspection.py:_bad": ("tokens", "512 KB"),
    "auth/introspection.py:_good": ("nothing: what the issuer says", "4 MB"),
    "auth/signed_tokens.py:_bad": ("tokens", "1 MB"),
    "auth/signed_tokens.py:_good": ("nothing: what the issuer signs", "4 MB"),
    "auth/proxy/clients.py:_all_fetches": ("nothing", "one bucket"),
    "auth/proxy/clients.py:_key_fetches": ("nothing", "one bucket"),
    "auth/proxy/clients.py:_bad": ("its client's address", "256 KB"),
    "auth/proxy/clients.py:_fetches": ("its address", "16384 addresses"),
    "auth/proxy/clients.py:_kept": ("its client's document", "1 MB"),
    "auth/proxy/tokens.py:_kept": ("nothing: ids are sealed", "4 MB"),
    "auth/token_exchange.py:_got": ("nothing: what issuers of targets give, for tokens that are good", "4 MB"),
    "auth/token_exchange.py:_shown": ("its token, if it is good", "4 MB"),
    "base/http_connection.py:parse_head": ("the last head of a response", "one head of at most 64 KB"),
    "base/http_connection.py:_parts": ("parts of a body", "256 KB and one read of a socket"),
    "client/links/child_process.py:_ready": ("messages", "1 MB and one read of a pipe"),
    "client/links/child_process.py:_uncut": ("what it writes", "one read of a pipe, 1 MB"),
    "client/links/child_process.py:_last": ("lines of a child", "20 of 64 KB"),
    "client/links/child_process.py:_waiting": ("lines of a child", "1,000 lines, 1 MB"),
    "inspector/live_feed.py:events": ("events that it pushes", "300 rows, 16 MB"),
    "inspector/live_feed.py:messages": ("messages of channels", "300 rows, 16 MB"),
    "kernel/client_import.py:_values": (OURS, "the secrets in a client's settings"),
    "proxying/mounted.py:stderr": ("lines of a child", "200 of 2,000 characters a backend"),
    "proxying/mounted.py:_known": ("sessions whose process failed", "1000 keys, until they leave"),
    "proxying/mounted.py:_times": ("nothing", "1000 times"),
    "proxying/calls.py:times": ("nothing", "1000 times a backend"),
    "base/peer_bounds.py:RecentItems": (OURS, "the number and the bytes that its maker gives"),
    "base/peer_bounds.py:_sizes": (OURS, "a number for each item that is kept"),
    "serve/lifespans.py:_queue": ("how slowly it reads", "the answers it asked for"),
    "kernel/shared_processes.py:_unread": ("what a process says", "64 MB a seat, which then ends"),
    "kernel/shared_processes.py:_waiting": ("calls of the kernels of a group", "in_flight for each of them"),
    "kernel/members.py:follower": ("lines of its servers", "1000 lines of 2,000 characters"),
    "openapi/sending.py:incoming": (OURS, "two messages"),
    "client/audit.py:_waiting": ("what servers claim, and how slowly the audit server reads", "16 MB"),
    "client/eras.py:_unread": ("its news", "1000, 16 MB a listener; none for `subscribe`"),
    "client/links/event_streams.py:_inbox": ("its messages", "256, and 16 MB with one message more"),
    "client/links/http.py:_inbox": ("its messages", "256, and 16 MB with one message more"),
    "client/links/http.py:_mirrors": ("names of tools and their headers", "10000 tools, 16 MB"),
    "client/mcpl/channels.py:_known": ("the channels of a server", "10000 channels, 16 MB"),
    "client/mcpl/channels.py:inbox": ("messages of channels", "1000, 16 MB"),
    "client/mcpl/push.py:_items": ("events", "the room of an inbox, 16 MB"),
    "client/mcpl/push.py:inbox": ("events", "1000, 16 MB"),
    "client/mgp/events.py:_early": ("events before the reply", "256, 16 MB"),
    "client/topic_client.py:unread": ("messages of a topic", "10000, 16 MB a listener"),
    "client/replies.py:ByteBoundedQueue": (OURS, "the number and the bytes that its maker gives"),
    "client/replies.py:_items": ("what it sends", "16 MB, and the number that its maker gives"),
    "client/mcpl/inference.py:_pins": ("ids of conversations", "1000 ids of 1 KB"),
    "client/mcpl/inference.py:_lines": (OURS, "a script"),
    "client/mcpl/push.py:_answers": ("ids", "10000 ids of 1 KB; the answers are ours"),
    "client/mcpl/state.py:_kept": ("contents of checkpoints", "16 MB, ids of 1 KB"),
    "client/mcpl/state.py:parents": ("ids of checkpoints", "1000 ids of 1 KB"),
    "client/mgp/streaming.py:_ready": ("chunks", "16 MB and one chunk"),
    "openapi/documents.py:_known": (OURS, "the mappings and references of a document"),
    "openapi/sending.py:_clients": (OURS, "one for each loop"),
    "protocols/mcp/events/event_log.py:_known": (OURS, "one head of a log for each type that the author declares"),
    "protocols/mcp/events/extension.py:_early": (OURS, "1000 events that are emitted before serving"),
    "protocols/mcp/events/sending.py:_rates": ("hosts of webhooks", "16384 hosts of 253 characters"),
    "protocols/mcp/events/webhooks.py:_challenges": ("its principal", "16384 principals of 256 characters"),
    "protocols/mcp/asking/round_trips.py:_nonces": ("how many; nonces are ours", "100000 nonces of 32 bytes"),
    "protocols/mcp/authorization.py:_by_item": ("who calls", "16384 buckets"),
    "protocols/mcp/authorization.py:_by_key": ("who calls", "16384 buckets"),
    "protocols/mcp/items.py:_pages": ("the cursor and the view", "16 MB"),
    "protocols/mcp/resources.py:_readings": ("URIs of templates", "16 MB"),
    "protocols/mcpl/inference.py:OpenStreams": (OURS, "the requests that are open"),
    "protocols/mcpl/push.py:RunningSources": (OURS, "the sources of a set"),
    "protocols/mgp/events.py:SessionSubscriptions": ("subscriptions", "Limits.subscriptions a session"),
    "protocols/mgp/permissions.py:SessionGrants": ("grants", "MAX_PERMISSIONS a credential"),
    "protocols/mcpl/inference.py:_arrived": ("chunks of an inference", "the answer they are part of"),
    "protocols/mcpl/push.py:_for_one": ("who calls", "1000 principals with 256 events of the author"),
    "protocols/mcpl/push.py:events": (OURS, "256 events"),
    "protocols/mcpl/push.py:_accepted": ("the reason in a receipt", "2 MB a session"),
    "protocols/mcpl/scopes.py:glob": ("patterns", "1024 patterns of 256 bytes"),
    "protocols/mcpl/state/ownership.py:_locks": ("who calls", "the locks that are held"),
    "protocols/mcpl/state/states.py:_known": ("contents of checkpoints", "the contents that are held elsewhere"),
    "protocols/mcpl/hooks.py:SeenInferences": ("ids of inferences", "1000 ids of 256 bytes a session"),
    "protocols/mcpl/policies.py:_known": (OURS, "the names of our own sets"),
    "protocols/mcpl/state/ownership.py:SentCheckpoints": ("ids of checkpoints", "256 ids of 256 bytes a session"),
    "protocols/mcpx/envelope.py:_known": ("kinds of messages", "512 kinds of 256 bytes"),
    "protocols/mcpx/proposals.py:_known": ("proposals", "8 MB a proposer"),
    "protocols/mgp/callbacks.py:answered": ("how many; ids are ours", "4096 ids of 32 bytes a session"),
    "protocols/mgp/callbacks.py:_values": (OURS, "the choices of one question"),
    "protocols/mgp/events.py:events": (OURS, "the events of a channel"),
    "protocols/mgp/extension.py:_clients": (OURS, "one for each loop"),
    "protocols/mgp/streaming.py:_waiting": (OURS, "64 KB, the window of a stream"),
    "base/html_pages.py:_style": (OURS, "one style sheet"),
    "base/html_pages.py:make_html_headers": (OURS, "the policies of our own pages"),
    "inspector/kept_calls.py:_lines": ("log lines of a call", "16 MB a call, 64 MB in all"),
    "inspector/kept_calls.py:_parts": ("parts of a call", "16 MB a call, 64 MB in all"),
    "inspector/session_files.py:_answers": (OURS, "the answers of a file, which is bounded"),
    "inspector/target_process.py:": (OURS, "the conversations of one inspector"),
    "inspector/target_process.py:_lines": ("lines on stderr", "256 KB"),
    "inspector/target_process.py:_unread": ("messages of the server", "64 MB, then the process waits"),
    "inspector/target_process.py:tracebacks": ("tracebacks of the server", "16 MB"),
    "inspector/target_process.py:waterfalls": ("stages of its calls", "50 of 200 stages, 16 MB"),
    "server/page.py:read_page_script": (OURS, "one script"),
    "base/redaction.py:_has_secret_word": ("names of arguments", "1024 names of 64 bytes"),
    "base/redaction.py:_redact_name": ("names of arguments", "1024 names of 64 bytes"),
    "serve/connection.py:waiting": (OURS, "64 KB a stream"),
    "serve/http1/request.py:_known": ("request heads", "512 heads of 4 KB, and as often again when parsed"),
    "serve/network.py:_from_app": (OURS, "two messages"),
    "serve/network.py:_to_app": (OURS, "two messages"),
    "serve/threads.py:_done": (OURS, "the calls in flight"),
    "serve/threads.py:_jobs": (OURS, "the calls in flight"),
    "serve/session_opener.py:_spare": ("nothing: only untouched sessions", "64 sessions"),
    "protocols/mcp/events/event_types.py:_values": (
        "the argument values of subscriptions",
        "the subscriptions there may be: a value goes with the last of its own",
    ),
    "protocols/mcpx/participant.py:_outcomes": ("nothing", "the callers who wait for an outcome"),
    "search/scores.py:get_packaged_embedder": (OURS, "one model"),
    "search/scores.py:_known": (OURS, "the tools in the indexes that are kept, 1 KB each"),
    "search/entries.py:stem_word": ("words of a query", "8192 words of 40 characters"),
    "stores/checkpoints/checkpoint_store.py:_held": ("contents of checkpoints", "the bytes it is made with"),
    "stores/checkpoints/checkpoint_tree.py:_owner_bytes": ("who calls", "1024 principals of 256 bytes"),
    "stores/checkpoints/checkpoint_tree.py:_space": ("who calls", "4096 principals of 256 bytes"),
    "stores/shared/worker_link.py:_queue": ("messages while Redis is away", "32 MB; then only answers are kept"),
    "stores/shared/worker_link.py:sha": (OURS, "our own scripts"),
    "stores/sqlite_entries.py:_values": ("small stored values", "8192 values of 512 bytes"),
    "stores/stream_events.py:_streams": (
        "streams that are not read",
        "the events and bytes of a session, 128 MB in all",
    ),
    "stores/stream_events.py:_droppable": ("how slowly it reads", "the bytes of a session's events"),
    "stores/stream_events.py:_finished": ("how slowly it reads", "the bytes of a session's events"),
    "client/apps.py:view_messages": ("what its view says", "1000 messages, 16 MB"),
    "inspector/inspection.py:events": ("what our own host audits", "5000 events, 16 MB"),
    "inspector/inspection.py:lifecycle": ("states that servers tell", "50 of five texts of 500 characters"),
    "inspector/questions.py:past": ("what servers ask", "100 questions of 32 kB"),
    "inspector/recording/recorder.py:_order": ("its messages", "a number for each of the bodies in memory"),
    "inspector/recording/timeline.py:_calls": ("its messages", "the newest times of its tools"),
    "inspector/recording/timeline.py:_recent": ("its messages", "100 000 times"),
    "inspector/recording/timeline.py:_rows": ("what the page filters by", "the newest filters, of numbers of messages"),
    "inspector/recording/recorder.py:_calls": ("its messages", "1000 times"),
    "inspector/recording/recorder.py:_times": ("its messages", "200 times"),
    "inspector/page_server.py:assets": (OURS, "the page"),
    "inspector/state_trees.py:_known": (
        "its checkpoints",
        "its own limit, in checkpoints without contents, ids of 1 KB",
    ),
    "inspector/followed_tasks.py:steps": ("how its tasks go on", "100 steps of 2,000 characters, of 100 tasks"),
    "inspector/joined_topic.py:_said": ("what is said in a topic", "200 lines, 16 MB a seat"),
    "protocols/mcp/apps.py:_source": (OURS, "one script of 4 kB"),
    "server/page.py:headers": (OURS, "the headers of the page, once"),
    "serve/http/request_heads.py:wants_html_page": ("Accept", "256 values of 256 bytes"),
    "serve/http/request_heads.py:is_json_requested": ("Accept", "256 headers of 256 bytes"),
    "auth/authority.py:make_anonymous_ip_principal": ("its address", "1024 addresses of 64 bytes"),
    "serve/http/request_heads.py:_passed": ("Host, Origin, Sec-Fetch-Site", "256 times 3 values of 300 bytes"),
    "serve/http/request_heads.py:_key": (OURS, "256 names"),
    "serve/http/request_heads.py:accepts_media_type": ("Accept", "256 values of 256 bytes"),
    "serve/http/request_heads.py:is_json_content_type": ("Content-Type", "256 values of 256 bytes"),
    "serve/http/request_heads.py:prefers_event_stream": ("Accept", "256 values of 256 bytes"),
    "serve/sockets.py:_network_of": ("its address", "1024 addresses of 64 bytes"),
    "serve/http/exchange.py:unread": ("how slowly it reads", "1 MB, and the answers it asked for"),
    "serve/stdio.py:_marks": ("how slowly it reads", "the messages that wait"),
    "serve/stdio.py:_out": ("how slowly it reads", "the answers it asked for"),
    "serve/outbound.py:_waiting": ("how slowly it reads", "what the client sends"),
}


def caches_in(file: Path) -> Iterator[str]:
    """Where a file makes caches: decorated functions, classes, and fields or constants whose value is one."""
    text, place = file.read_text(encoding="utf-8"), file.relative_to(PACKAGE).as_posix()
    if not any(word in text for word in MAKERS | NAMES):
        return
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if MAKERS & {name for each in node.decorator_list for name in _names(each)}:
                yield f"{place}:{node.name}"
        elif isinstance(node, ast.ClassDef):
            if (MAKERS | {"dict"}) & {name for base in node.bases for name in _names(base)}:
                yield f"{place}:{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target, value in _assigned(node):
                is_field = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                is_table = isinstance(value, ast.Dict | ast.List) and is_field and name in NAMES
                is_table = is_table or (is_field and name in NAMES and {"set", "dict"} & _names(value) != set())
                is_made = bool(MAKERS & {each for call in _calls(value) for each in _names(call)})
                is_queue = bool(QUEUES & {each for call in _calls(value) for each in _names(call)})
                # Of a dataclass: `field(default_factory=deque[…])`.
                made_by = _names(value) if isinstance(value, ast.Call) and "field" in _names(value.func) else set[str]()
                if ((is_field or node in tree.body) and (is_table or is_made)) or is_queue or MAKERS & made_by:
                    yield f"{place}:{name}"


def _assigned(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values; those of `a, b = x, y` one by one."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        elif node.value is not None:
            yield target, node.value


def _calls(value: ast.expr) -> list[ast.expr]:
    return [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }


@pytest.mark.slow
def test_every_cache_is_listed_with_its_bound():
    files = [file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in ELSEWHERE]
    found = {name for file in files if file.name != "caches.py" for name in caches_in(file)}
    assert sorted(found - set(CACHES)) == [], "list it in CACHES, with what a peer controls and its bound in bytes"
    assert sorted(set(CACHES) - found) == [], "it is gone: remove it from CACHES"


SIZE = re.compile(r"\b(?:bytes|[KkM]B|characters|times|numbers?)\b")


def test_what_a_client_or_the_inspector_keeps_of_a_peer_is_bounded_in_bytes():
    theirs = {name: kept for name, kept in CACHES.items() if name.startswith(("client/", "inspector/"))}
    unbounded = [name for name, (what, bound) in theirs.items() if what != OURS and not SIZE.search(bound)]
    assert unbounded == [], "the peer chooses the sizes: bound them, for example by RecentItems or UnreadItemQueue"


def test_no_queue_of_a_client_or_the_inspector_is_bounded_by_a_number_alone():
    folders = (PACKAGE / "client", PACKAGE / "inspector")
    plain = [
        f"{file.relative_to(PACKAGE).as_posix()}:{node.lineno}"
        for folder in folders
        for file in folder.rglob("*.py")
        if "Queue" in (source := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and _names(node.func) & {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"}
    ]
    # The queue of the audit server counts the bytes itself. Those of the inspector hold what it sends to its own child,
    # which waits for the answers, and the answers of a file that is bounded.
    known = {"client/audit.py", "inspector/target_process.py", "inspector/session_files.py"}
    assert {place.partition(":")[0] for place in plain} == known, plain


# -- the caches themselves -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60))))
def test_a_byte_cache_never_holds_more_than_it_may(puts: list[tuple[int, int]]):
    kept = ByteBoundedCache[int](100)
    sizes = dict[int, int]()
    for key, size in puts:
        kept.store_value(key, size, size)
        sizes[key] = size
        assert kept.get(key) == (size if size <= 25 else None)
        assert sum(sizes[each] for each in sizes if kept.get(each) is not None) <= 100


def test_long_texts_are_answered_and_not_remembered():
    asked = list[str]()

    @cache_short_texts(2, longest=3)
    def size(text: str) -> int:
        asked.append(text)
        return len(text)

    assert [size(text) for text in ("abc", "abc", "abcd", "abcd")] == [3, 3, 4, 4]
    assert asked == ["abc", "abcd", "abcd"]


# -- filled over HTTP ------------------------------------------------------------------------------------

BIG = 200_000
TIMES = 200
ACCEPT = "accept: application/json, text/event-stream"
FLAT = 40 * 1024 * 1024


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def stateless(number: int, method: str = "server/discover") -> tuple[tuple[str, ...], bytes]:
    offer = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {"x": f"{number}" + "y" * BIG}}
    meta = {**offer, PREFIX + "clientInfo": {"name": "z" * BIG, "version": str(number)}}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta}}
    return (ACCEPT, f"mcp-protocol-version: {STATELESS}", f"mcp-method: {method}"), json.dumps(body).encode()


def opening(number: int) -> tuple[tuple[str, ...], bytes]:
    about = {"name": "n" * BIG, "version": str(number), "icons": [{"src": "data:" + "a" * BIG}]}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
    return (ACCEPT,), json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()


def greedy_opening(number: int) -> tuple[tuple[str, ...], bytes]:
    params = {"protocolVersion": "2025-11-25", "capabilities": {"x": f"{number}" + "y" * BIG}, "clientInfo": {}}
    return (ACCEPT,), json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()


def pages(number: int) -> tuple[tuple[str, ...], bytes]:
    from base64 import urlsafe_b64encode

    cursor = urlsafe_b64encode(f"tools:{number % 200}".encode()).decode().rstrip("=")
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"cursor": cursor, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    return (ACCEPT, f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/list"), json.dumps(body).encode()


def catalogue() -> Server:
    server = Server("catalogue", "1", limits=Limits(sessions_per_address=400))
    for number in range(220):

        @server.tool(name=f"tool-{number}", description="d" * 2_000)
        async def one(text: str) -> str:
            return text

    return server


async def fill(where: Listening, make: Any, first: int, last: int) -> None:
    reader, writer = await where.connect()
    for number in range(first, last):
        lines, body = make(number)
        writer.write(request(*lines, body=body))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    writer.close()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of this process from /proc")
@pytest.mark.parametrize("make", [stateless, opening, greedy_opening, pages])
async def test_what_strangers_say_is_not_kept(make: Any):
    async with listening(catalogue(), trusted_proxy=True) as where:
        # The same before: what the allocator holds for requests of this size is not kept by the server.
        await asyncio.gather(*(fill(where, make, n, n + 100) for n in range(0, TIMES, 100)))
        gc.collect()  # the collector of a test run looks seldom
        before = resident()
        await asyncio.gather(*(fill(where, make, n, n + 100) for n in range(TIMES, 2 * TIMES, 100)))
        gc.collect()
        assert resident() - before < FLAT
