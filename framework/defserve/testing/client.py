"""A client without `await`: the verbs of `host.Client`, run on an event loop in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from defserve.errors import PeerError, PeerTimeout, Refused, ToolError, UsageError, did_you_mean
from defserve.host.answers import Root
from defserve.host.client import Client
from defserve.host.conversation import Progress
from defserve.host.eras import ERAS
from defserve.host.fields import object_of
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.testing.elsewhere import named_arguments
from defserve.testing.script import KINDS, AnswerScript
from defserve.testing.transports import connect_over

if TYPE_CHECKING:
    from defserve.host.mgp.peer import MgpPeer
    from defserve.testing.apps import SyncApp
    from defserve.testing.mcpl import SyncMcpl
    from defserve.testing.tasks import SyncTask

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
            from defserve.errors import no_attribute
            from defserve.testing.elsewhere import CLIENT

            raise no_attribute("this client", name, CLIENT, dir(type(self)))

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
        return self._connected().version

    @property
    def stateless(self) -> bool:
        """Whether each request stands alone, without a session (2026-07-28 and later)."""
        return self._connected().stateless

    @property
    def server_info(self) -> Json:
        """The server's name, version and title, as it gave them."""
        return self._connected().server_info

    @property
    def capabilities(self) -> Json:
        """What the server offers."""
        return self._connected().capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._connected().instructions

    @property
    def mgp(self) -> MgpPeer | None:
        """What was negotiated; None unless this client has `mgp=Mgp(…)`."""
        return self._connected().mgp

    @property
    def mcpl(self) -> SyncMcpl:
        """The server's feature sets, events, hooks and channels. The client needs `mcpl=Mcpl(…)`."""
        from defserve.testing.mcpl import SyncMcpl

        peer = self._connected().mcpl
        if peer is None:
            raise UsageError("this client does not speak MCPL", fix="@pytest.mark.serves(…, mcpl=Mcpl(…))")
        return SyncMcpl(peer, self._do)

    @named_arguments
    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its value, as `Client.call` does.

        Raises ToolError if it fails, Unanswered if it asks a question without a prepared answer.
        """
        return self._do(lambda client: _called(client, tool, arguments))

    @named_arguments
    def start(self, tool: str, /, **arguments: Any) -> SyncTask:
        """Call a tool and do not wait for its result, as `Client.start` does."""
        from defserve.testing.tasks import SyncTask

        return SyncTask(self._do(lambda client: client.start(tool, **arguments)), self._do)

    @named_arguments
    def render(self, tool: str, /, **arguments: Any) -> SyncApp:
        """Call a tool and fetch the view that shows its result, as `Client.render` does.

        Raises PeerError for a view that no host may show, and for a result without a text.
        """
        from defserve.testing.apps import SyncApp

        return SyncApp(self._do(lambda client: client.render(tool, **arguments)), self._do)

    @named_arguments
    def stream_parts(self, tool: str, /, **arguments: Any) -> list[Any]:
        """The parts that a tool sends, in order; see `Client.stream`. The client needs `mgp=Mgp()`."""
        return self._do(lambda client: _parts(client, tool, arguments))

    def call_raw(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: Progress | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Json:
        """Call a tool and return its result unchanged, even if it has `isError`."""
        return self._do(
            lambda client: client.call_raw(
                tool, arguments, on_progress=on_progress, timeout=timeout, meta=meta, fields=fields
            )
        )

    def tools(self) -> list[Json]:
        """Every tool as the server lists it, all pages."""
        return self._do(lambda client: client.tools())

    def resources(self) -> list[Json]:
        """Every resource as the server lists it, all pages."""
        return self._do(lambda client: client.resources())

    def templates(self) -> list[Json]:
        """Every resource template as the server lists it, all pages."""
        return self._do(lambda client: client.templates())

    def prompts(self) -> list[Json]:
        """Every prompt as the server lists it, all pages."""
        return self._do(lambda client: client.prompts())

    def read(self, uri: str) -> list[Json]:
        """The contents of a resource, unchanged."""
        return self._do(lambda client: client.read(uri))

    def read_text(self, uri: str) -> str:
        """The text of a resource. Several texts are joined; binary contents are decoded as UTF-8."""
        return self._do(lambda client: client.read_text(uri))

    def read_bytes(self, uri: str) -> bytes:
        """The bytes of a resource; texts are encoded as UTF-8."""
        return self._do(lambda client: client.read_bytes(uri))

    def skills(self) -> list[Json]:
        """Every skill as the server lists it, all pages."""
        return self._do(lambda client: client.skills())

    def skill(self, uri: str) -> Json:
        """One skill as its server lists it, by the URI of its `SKILL.md`."""
        return self._do(lambda client: client.skill(uri))

    def read_verified(self, entry: Json) -> dict[str, bytes]:
        """Every file of a listed skill by its path. Raises UnverifiedSkill if one differs from its entry."""
        return self._do(lambda client: client.read_verified(entry))

    @named_arguments
    def prompt(self, prompt: str, /, **arguments: Any) -> Json:
        """A prompt with its messages. An argument that is not a string is sent as JSON text."""
        return self._do(lambda client: client.prompt(prompt, **arguments))

    def complete(
        self,
        ref: str | Mapping[str, Any],
        *,
        argument: str,
        value: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Json:
        """The `completion` object for one argument. `ref` is a prompt's name, a URI or template, or the whole ref."""
        return self._do(lambda client: client.complete(ref, argument=argument, value=value, context=context))

    def ping(self) -> None:
        """Check that the server answers. Raises PeerError if it does not."""
        self._do(lambda client: client.ping())

    def set_log_level(self, level: str) -> None:
        """Ask for log messages of `level` and above; they are added to `logs`."""
        self._do(lambda client: client.set_log_level(level))

    def subscribe(self, uri: str) -> None:
        """Ask for reports when a resource changes; they are added to `notifications`."""
        self._do(lambda client: client.subscribe(uri))

    def unsubscribe(self, uri: str) -> None:
        """Stop the reports about a resource."""
        self._do(lambda client: client.unsubscribe(uri))

    def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> None:
        """From now on, notifications of these kinds are added to `notifications`."""
        self._do(lambda client: _listen(client, tools=tools, prompts=prompts, resources=resources, uris=uris))

    def wait_for(self, method: str, *, within: float = 5.0) -> Json:
        """The params of the next notification of that method. Each is returned once."""
        with self._news:
            waited = self._waited_for.setdefault(method, 0)
            if not self._news.wait_for(lambda: len(self._received(method)) > waited, within):
                came = ", ".join(name for name, _ in self.notifications) or "nothing"
                raise PeerTimeout(f"no {method} within {within:g} s; received: {came}")
            self._waited_for[method] += 1
            return self._received(method)[waited]

    def request(self, method: str, params: Mapping[str, Any] | None = None, *, follow: bool = True) -> Json:
        """Send any request and return its result. Without `follow`, an `input_required` result is not answered."""
        return self._do(lambda client: client.request(method, params, follow=follow))

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send any notification."""
        self._do(lambda client: client.notify(method, params))

    def close(self, *, check: bool = True) -> None:
        """Disconnect. With `check`, raises Unanswered for questions without an answer, Unused for answers left over."""
        self._stack.close()
        self._client = None
        if check:
            if complaint := self._script.complaint():
                raise complaint
            self._script.check_used()

    def _do(self, verb: Callable[[Client], Awaitable[T]]) -> T:
        client = self._connected()
        assert self._portal is not None
        try:
            return self._portal.call(verb, client)
        except (ToolError, PeerError, Refused) as error:
            # The error came from the server; the frames of this process say nothing about it.
            raise error.with_traceback(None) from None
        finally:
            # The real cause of an exception may be a question without an answer.
            if complaint := self._script.complaint():
                raise complaint from None

    def _connected(self) -> Client:
        if self._client is None:
            self._portal = self._stack.enter_context(start_blocking_portal("asyncio"))
            connection = self._portal.call(self._connection)
            self._client = self._stack.enter_context(self._portal.wrap_async_context_manager(connection))
        return self._client

    def _connection(self) -> Any:
        options: Json = {
            "log_level": "debug",
            "apps": "apps" in self._script.offered,
            **self._options,
            "version": version_of(self.era),
            "answers": self._script.answers(),
            "on_log": self.logs.append,
            "on_progress": self._progressed,
            "on_notification": self._heard,
        }
        return connect_over(self.over, self.server, options)

    def _progressed(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))

    def _received(self, method: str) -> list[Json]:
        return [params for name, params in self.notifications if name == method]

    def _heard(self, method: str, params: Json) -> None:
        with self._news:
            self.notifications.append((method, params))
            self._news.notify_all()


async def _called(client: Client, tool: str, arguments: Json) -> Any:
    """The value of a call. The error about a tool that does not exist names the nearest one."""
    try:
        return await client.call(tool, **arguments)
    except PeerError as error:
        if object_of(error.data).get("tool") == tool:
            names = [str(each.get("name")) for each in await client.tools()]
            if tool not in names:
                error.add_note(did_you_mean(tool, names, f"its tools are {', '.join(names)}"))
        raise


async def _parts(client: Client, tool: str, arguments: Json) -> list[Any]:
    async with client.stream(tool, **arguments) as stream:
        return [part async for part in stream]


async def _listen(client: Client, **wanted: Any) -> None:
    await client.listen(**wanted).open()


def version_of(era: str | None) -> str | None:
    """The protocol version of an era. A version stands for itself."""
    if era is None or era in HANDSHAKE_VERSIONS or era in STATELESS_VERSIONS:
        return era
    if era not in ERAS:
        known = ", ".join((*ERAS, *HANDSHAKE_VERSIONS, *STATELESS_VERSIONS))
        raise UsageError(f"there is no era {era!r}", fix=f"use one of {known}")
    return ERAS[era]
