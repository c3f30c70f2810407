"""A client without `await`: the verbs of `Client`, run on an event loop in its own thread.

Beside it: the answers that a test prepares, and the comparison of listed tools with a file.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from defserve.client.answers import Answers, Cancel, Decision, Root, wrap_single_field_answer
from defserve.client.client import Client
from defserve.client.eras import NEWEST_VERSION_BY_ERA
from defserve.client.replies import object_or_empty
from defserve.errors import PeerError, PeerTimeout, ProtocolError, Refused, ToolError, UsageError, did_you_mean
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.testing.blocking import FOREIGN_CLIENT_METHOD_HINTS, make_blocking_method, require_named_arguments
from defserve.testing.transports import connect_test_client

if TYPE_CHECKING:
    from defserve.client.mgp.peer import MgpPeer
    from defserve.testing.sync_parts import SyncApp, SyncMcpl, SyncTask


# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")


class SyncClient:
    """Connects to `server` with the first verb, and stays connected until `close`.

    The server is an object, "module:attr" or "path/server.py:attr", or the address of a running server. `era` is
    "handshake", "stateless" or a protocol version; `over` is "memory", "stdio", "http" or "ws". The client offers all
    kinds of answers unless `offers` says otherwise. Prepare the answers before the call, with `will_answer`,
    `will_sample` and `has_roots`.
    """

    def __init__(
        self,
        server: Any,
        era: str | None = None,
        *,
        over: str = "memory",
        updates_snapshots: bool = False,
        **options: Any,
    ) -> None:
        self.server, self.era, self.over, self.updates_snapshots = server, era, over, updates_snapshots
        self.logs: list[Json] = []
        """The params of every log notification so far."""
        self.progress: list[tuple[float, float | None, str | None]] = []
        """Progress, total and message of every progress notification so far."""
        self.notifications: list[tuple[str, Json]] = []
        """Method and params of every notification so far, logs and progress included."""
        self._options = options
        self._script = AnswerScript()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: Client | None = None
        self._streaming: Client | None = None
        self._news = threading.Condition()
        self._waited_for: dict[str, int] = {}

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(check=kind is None)

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):
            """Only for what does not exist: verbs of other clients are met with ours."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property failed; this raises its error again
            from defserve.errors import make_attribute_error

            raise make_attribute_error("this client", name, FOREIGN_CLIENT_METHOD_HINTS, dir(type(self)))

    # Before the first verb.

    def offers(self, *kinds: str) -> None:
        """Offer only these kinds of answer: some of "ask", "sample", "roots", "apps", or none."""
        if self._client is not None:
            raise UsageError("offers() is too late: the client is connected", fix="call it before the first verb")
        if unknown := set(kinds) - set(KINDS):
            raise UsageError(f"there are no kinds {sorted(unknown)}", fix=f"use some of {', '.join(KINDS)}")
        self._script.offered = set(kinds)

    def will_answer(self, *answers: Any) -> None:
        """Answers for the next questions: a dict or a model, Accept, Decline, Cancel, or a function of the question.

        If the question has one field, as those of `ctx.confirm` and `ctx.choose` have, its value alone will do: `True`.
        """
        self._script.prepared.extend(answers)

    def will_sample(self, *texts: Any) -> None:
        """Answers for the next sampling requests: a text, a whole result, or a function of the params."""
        self._script.samples.extend(texts)

    def has_roots(self, *roots: Root) -> None:
        """Add to the roots that the server is told."""
        self._script.roots = [*(self._script.roots or []), *roots]

    # The verbs of `Client`.

    @property
    def version(self) -> str:
        """The protocol version that both sides agreed on."""
        return self._ensure_client().version

    @property
    def stateless(self) -> bool:
        """Whether each request stands alone, without a session (2026-07-28 and later)."""
        return self._ensure_client().stateless

    @property
    def server_info(self) -> Json:
        """The server's name, version and title, as it gave them."""
        return self._ensure_client().server_info

    @property
    def capabilities(self) -> Json:
        """What the server offers."""
        return self._ensure_client().capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._ensure_client().instructions

    @property
    def mgp(self) -> MgpPeer | None:
        """What was negotiated; None unless this client has `mgp=Mgp(…)`."""
        return self._ensure_client().mgp

    @property
    def mcpl(self) -> SyncMcpl:
        """The server's feature sets, events, hooks and channels. The client needs `mcpl=Mcpl(…)`."""
        from defserve.testing.sync_parts import SyncMcpl

        peer = self._ensure_client().mcpl
        if peer is None:
            raise UsageError("this client does not speak MCPL", fix="@pytest.mark.serves(…, mcpl=Mcpl(…))")
        return SyncMcpl(peer, self._run_verb)

    @require_named_arguments
    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its value, as `Client.call` does.

        Raises ToolError if it fails, UnansweredQuestion if it asks one without a prepared answer.
        """
        return self._run_verb(lambda client: _call_tool(client, tool, arguments))

    @require_named_arguments
    def start(self, tool: str, /, **arguments: Any) -> SyncTask:
        """Call a tool and do not wait for its result, as `Client.start` does."""
        from defserve.testing.sync_parts import SyncTask

        return SyncTask(self._run_verb(lambda client: client.start(tool, **arguments)), self._run_verb)

    @require_named_arguments
    def render(self, tool: str, /, **arguments: Any) -> SyncApp:
        """Call a tool and fetch the view that shows its result, as `Client.render` does.

        Raises PeerError for a view that no host may show, and for a result without a text.
        """
        from defserve.testing.sync_parts import SyncApp

        return SyncApp(self._run_verb(lambda client: client.render(tool, **arguments)), self._run_verb)

    @require_named_arguments
    def stream_parts(self, tool: str, /, **arguments: Any) -> list[Any]:
        """The parts that a tool sends, in order; see `Client.stream`. A tool that does not stream has one part.

        Streaming is agreed on when a client connects. So a client without `mgp` opens a second connection for this,
        which offers streaming.
        """
        return self._run_verb(lambda client: _parts(client, tool, arguments), streams=True)

    call_raw = make_blocking_method(Client.call_raw)
    tools = make_blocking_method(Client.tools)
    resources = make_blocking_method(Client.resources)
    templates = make_blocking_method(Client.templates)
    prompts = make_blocking_method(Client.prompts)
    prompt = require_named_arguments(make_blocking_method(Client.prompt))
    read = make_blocking_method(Client.read)
    read_text = make_blocking_method(Client.read_text)
    read_bytes = make_blocking_method(Client.read_bytes)
    skills = make_blocking_method(Client.skills)
    skill = make_blocking_method(Client.skill)
    read_verified = make_blocking_method(Client.read_verified)
    complete = make_blocking_method(Client.complete)
    ping = make_blocking_method(Client.ping)
    set_log_level = make_blocking_method(
        Client.set_log_level, "Ask for log messages of `level` and above; they are added to `logs`."
    )
    subscribe = make_blocking_method(
        Client.subscribe, "Ask for reports when a resource changes; they are added to `notifications`."
    )
    unsubscribe = make_blocking_method(Client.unsubscribe)
    request = make_blocking_method(Client.request)
    notify = make_blocking_method(Client.notify)

    def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> None:
        """From now on, notifications of these kinds are added to `notifications`."""
        self._run_verb(
            lambda client: client.listen(tools=tools, prompts=prompts, resources=resources, uris=uris).open()
        )

    def wait_for(self, method: str, *, within: float = 5.0) -> Json:
        """The params of the next notification of that method. Each is returned once."""
        with self._news:
            waited = self._waited_for.setdefault(method, 0)
            if not self._news.wait_for(lambda: len(self._find_notifications(method)) > waited, within):
                came = ", ".join(name for name, _ in self.notifications) or "nothing"
                raise PeerTimeout(f"no {method} within {within:g} s; received: {came}")
            self._waited_for[method] += 1
            return self._find_notifications(method)[waited]

    def close(self, *, check: bool = True) -> None:
        """Disconnect. With `check`, raises UnansweredQuestion for open questions, UnusedAnswer for spare answers."""
        self._stack.close()
        self._client = self._streaming = None
        if check:
            if complaint := self._script.take_complaint():
                raise complaint
            self._script.check_used()

    def _run_verb(self, verb: Callable[[Client], Awaitable[T]], *, streams: bool = False) -> T:
        client = self._ensure_streaming_client() if streams else self._ensure_client()
        assert self._portal is not None
        try:
            return self._portal.call(verb, client)
        except (ToolError, PeerError, Refused) as error:
            # The error came from the server; the frames of this process say nothing about it.
            raise error.with_traceback(None) from None
        finally:
            # The real cause of an exception may be a question without an answer.
            if complaint := self._script.take_complaint():
                raise complaint from None

    def _ensure_client(self) -> Client:
        if self._client is None:
            self._portal = self._stack.enter_context(start_blocking_portal("asyncio"))
            self._client = self._open_client(self._portal, self._options)
        return self._client

    def _ensure_streaming_client(self) -> Client:
        client = self._ensure_client()
        if client.mgp is not None:
            return client
        if self._streaming is None:
            from defserve.client.mgp.peer import Mgp

            assert self._portal is not None
            # It guards nothing, so that a tool is called as the first connection would call it.
            streaming = Mgp(
                "auto_approve", confirm=lambda tool, arguments, security: True, audit=[], extensions=["streaming"]
            )
            self._streaming = self._open_client(self._portal, {**self._options, "mgp": streaming})
        return self._streaming

    def _open_client(self, portal: BlockingPortal, options: Json) -> Client:
        return self._stack.enter_context(portal.wrap_async_context_manager(portal.call(self._connection, options)))

    def _connection(self, more: Json) -> Any:
        options: Json = {
            "log_level": "debug",
            "apps": "apps" in self._script.offered,
            **more,
            "version": version_of(self.era),
            "answers": self._script.answers(),
            "on_log": self.logs.append,
            "on_progress": self._on_progress,
            "on_notification": self._heard,
        }
        return connect_test_client(self.over, self.server, options)

    def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))

    def _find_notifications(self, method: str) -> list[Json]:
        return [params for name, params in self.notifications if name == method]

    def _heard(self, method: str, params: Json) -> None:
        with self._news:
            self.notifications.append((method, params))
            self._news.notify_all()


async def _call_tool(client: Client, tool: str, arguments: Json) -> Any:
    """The value of a call. The error about a tool that does not exist names the nearest one."""
    try:
        return await client.call(tool, **arguments)
    except PeerError as error:
        if object_or_empty(error.data).get("tool") == tool:
            names = [str(each.get("name")) for each in await client.tools()]
            if tool not in names:
                error.add_note(did_you_mean(tool, names, f"its tools are {', '.join(names)}"))
        raise


async def _parts(client: Client, tool: str, arguments: Json) -> list[Any]:
    async with client.stream(tool, **arguments) as stream:
        return [part async for part in stream]


def version_of(era: str | None) -> str | None:
    """The protocol version of an era. A version stands for itself."""
    if era is None or era in HANDSHAKE_VERSIONS or era in STATELESS_VERSIONS:
        return era
    if era not in NEWEST_VERSION_BY_ERA:
        known = ", ".join((*NEWEST_VERSION_BY_ERA, *HANDSHAKE_VERSIONS, *STATELESS_VERSIONS))
        raise UsageError(f"there is no era {era!r}", fix=f"use one of {known}")
    return NEWEST_VERSION_BY_ERA[era]


# -- The answers that a test prepares for the questions of its server, in order.


KINDS: Final = ("ask", "sample", "roots", "apps")
REJECTED: Final = -1


class UnansweredQuestion(AssertionError):
    """The server asked something that the test has no answer for."""


class UnusedAnswer(AssertionError):
    """The test prepared an answer that the server did not ask for."""


class AnswerScript:
    """Gives each question the next prepared answer, and remembers the questions without one."""

    def __init__(self) -> None:
        self.offered: set[str] = set(KINDS)
        self.prepared: deque[Any] = deque()
        self.samples: deque[Any] = deque()
        self.roots: list[Root] | None = None
        self._unanswered: list[str] = []

    def answers(self) -> Answers:
        """What the client offers to answer: the kinds in `offered`."""
        asks = "ask" in self.offered
        return Answers(
            ask=self._ask if asks else None,
            ask_url=self._ask_url if asks else None,
            sample=self._sample if "sample" in self.offered else None,
            roots=self._list_roots if "roots" in self.offered else None,
        )

    def take_complaint(self) -> UnansweredQuestion | None:
        """The error for the questions without an answer since the last complaint; None if there are none."""
        text, self._unanswered = "\n".join(self._unanswered), []
        return UnansweredQuestion(text) if text else None

    def check_used(self) -> None:
        """Raises UnusedAnswer for answers that are left over."""
        left = {"will_answer": list(self.prepared), "will_sample": list(self.samples)}
        self.prepared.clear()
        self.samples.clear()
        lines = [
            f"client.{verb}({', '.join(map(repr, values))}) was never used" for verb, values in left.items() if values
        ]
        if lines:
            raise UnusedAnswer("\n".join([*lines, "  fix: remove it, or find out why the tool did not ask"]))

    def _ask(self, message: str, schema: dict[str, Any]) -> Any:
        if not self.prepared:
            self._add_unanswered(f"the server asked {message!r}", f"client.will_answer({_format_example(schema)})")
            return Cancel
        try:
            return wrap_single_field_answer(_resolve_answer(self.prepared.popleft(), message, schema), schema)
        except UsageError as error:
            self._unanswered.append(f"the server asked {message!r}: {error.problem}\n  fix: {error.fix}")
            return Cancel

    def _ask_url(self, message: str, url: str) -> Decision:
        if not self.prepared:
            self._add_unanswered(f"the server asked {message!r} and wants {url} opened", "client.will_answer(Accept)")
            return Cancel
        return _resolve_answer(self.prepared.popleft(), message, url)

    def _sample(self, params: dict[str, Any]) -> Any:
        if not self.samples:
            said = params.get("messages") or ["nothing"]
            self._add_unanswered(f"the server asked a model about {said[-1]!r}", 'client.will_sample("…")')
            raise ProtocolError("the test has no sample", code=REJECTED)
        return _resolve_answer(self.samples.popleft(), params)

    def _list_roots(self) -> list[Root]:
        if self.roots is None:
            self._add_unanswered("the server asked for the client's roots", 'client.has_roots("file:///…")')
        return self.roots or []

    def _add_unanswered(self, question: str, fix: str) -> None:
        self._unanswered.append(f"{question}, and the test has no answer for it\n  fix: {fix} before the call")


def _format_example(schema: dict[str, Any]) -> str:
    """An answer as one writes it in a test. Where a yes is the only field, it is a yes."""
    fields: dict[str, Any] = schema.get("properties", {})
    if [field.get("type") for field in fields.values()] == ["boolean"]:
        return "True"
    return f"{{{', '.join(f'{name!r}: …' for name in fields)}}}"


def _resolve_answer(answer: Any, *question: Any) -> Any:
    if callable(answer) and not isinstance(answer, type):
        asked: Callable[..., Any] = answer
        return asked(*question)
    return answer


# -- Compares the tools that a server lists with a file in the repository.


def assert_schemas(client: SyncClient, path: str | Path, *, update: bool | None = None) -> None:
    """Compare tools/list with the file at `path`; "{era}" in it is replaced by the client's era.

    With `update` the file is written instead; the default is whether pytest runs with --update-schemas.
    Raises AssertionError with the difference.
    """
    file = Path(str(path).format(era=client.era or client.version))
    tools = sorted(client.tools(), key=lambda tool: str(tool.get("name")))
    # Sorted, so that a change of order is no change of the text.
    now = json.dumps(tools, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if client.updates_snapshots if update is None else update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now, encoding="utf-8")
    elif not file.exists():
        raise AssertionError(f"there is no snapshot {file} yet\n  fix: run pytest --update-schemas and commit the file")
    elif (before := file.read_text(encoding="utf-8")) != now:
        from difflib import unified_diff

        changes = unified_diff(before.splitlines(), now.splitlines(), "committed", "served", lineterm="")
        raise AssertionError(
            "\n".join(
                (
                    f"the tools differ from {file}",
                    *changes,
                    "  fix: if the change is meant, run pytest --update-schemas and commit the file",
                )
            )
        )
