"""MCP multi round-trip requests (2026-07-28: input-required results): a function run again with the answers so far.

An answer is matched to its question by the author's key, or by the digest of the question's kind, text and occurrence.
If the answer does not match what was asked, the question is asked again.

What must survive until the request is repeated travels in the sealed `requestState`: answers, the results of effects
that happen once (`ctx.once`), and the marks of the call.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json, to_json

from defserve.core import json_values
from defserve.core.call import Call
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.errors import InvalidParams, LimitExceeded, Suspended, UsageError
from defserve.protocols.mcp.errors import read_optional_object_param, read_text_param
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.stores.store import MemoryNonceStore, NonceStore

if TYPE_CHECKING:
    import asyncio


METHODS_THAT_MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The only requests that may be answered with a question."""


class RoundTrips:
    """What is known in this round: answers, effects done once, and the questions still open.

    `answers` holds the digest of the question with each answer. `unproven` ones came without the state that shows
    they were asked for. `relayed` is what another server that asks through us wants back with the answers. `parked` is
    the handle of work that waits for the answers; see `ParkedWorkRegistry`. `wait_for_answer` is set if the call can
    wait for an answer after all, because it is a task. `keep_effect` is set if effects are kept elsewhere, too.
    """

    __slots__ = (
        "answers", "unproven", "open", "effects", "relayed", "parked", "wait_for_answer", "keep_effect", "_keys",
        "_unwinding",
    )  # fmt: skip

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, Any]] = {}
        self.unproven: Params = {}
        self.open: dict[str, tuple[str, Params]] = {}
        self.effects = Effects()
        self.relayed: Any = None
        self.parked: Params | None = None
        self.wait_for_answer: Callable[[str, str, Params], Awaitable[Any]] | None = None
        self.keep_effect: Callable[[str, Any], Awaitable[None]] | None = None
        self._keys: set[str] = set()
        self._unwinding = False

    # -- a request that brings answers -------------------------------------------------------------------

    async def load_answers(self, call: Call, params: Params) -> None:
        """Read `inputResponses` and `requestState`. Raises InvalidParams when either is not what we handed out."""
        given = read_optional_object_param(params, "inputResponses") or {}
        if params.get("requestState") is None:
            self.unproven = given
            return
        payload = await _sealer(call).open(read_text_param(params, "requestState"), binding=_binding(call))
        # An answer counts only with at least the rights of the call that asked.
        if call.identity is not None and not call.identity.has_rights(payload["rights"]):
            raise InvalidState
        restore_call_marks(call, payload.get("marks", {}))
        self.effects.done, self.relayed, self.parked = payload["once"], payload["relayed"], payload.get("parked")
        self.answers = {key: (digest, answer) for key, (digest, answer) in payload["answers"].items()}
        # All answers, because this run may stop at another question before it reaches theirs.
        self.answers |= {key: (digest, given[key]) for key, digest in payload["asked"].items() if key in given}

    # -- a question --------------------------------------------------------------------------------------

    def make_question_key_and_digest(self, key: str | None, method: str, params: Params) -> tuple[str, str]:
        """The key a question travels under, and the digest of what it says."""
        digest = digest_question(method, params)
        base = key or f"{method.partition('/')[0]}-{digest[:12]}"
        name, occurrence = base, 1
        while name in self._keys:
            occurrence += 1
            name = f"{base}-{occurrence}"
        self._keys.add(name)
        return name, digest

    def find_answer(self, key: str, digest: str, acceptable: Callable[[Any], bool], strict: bool) -> Any | None:
        """The answer to a question, or None when it has to be asked (again).

        A `strict` question takes an answer only with the state that proves it was asked.
        """
        if key in self.unproven and not strict:
            self.answers[key] = (digest, self.unproven[key])
        asked, answer = self.answers.get(key, ("", None))
        return answer if asked == digest and acceptable(answer) else None

    async def ask_client(self, call: Call, key: str, digest: str, request: Params) -> Any:
        """The answer of a client that can be waited for. Otherwise the run ends here, and this never returns."""
        if self.wait_for_answer is None:
            return await self.suspend_call(call, key, digest, request)
        return await call.wait_for_answer(self.wait_for_answer(key, digest, request))

    async def suspend_call(self, call: Call, key: str, digest: str, request: Params) -> Any:
        """Leave the question in the reply and end this run. Never returns.

        An effect that is running may finish first. If it were cut off, it would happen again.
        """
        if self._unwinding:  # the code caught the end of the run and went on
            raise Suspended
        self.open[key] = (digest, request)
        self.answers.pop(key, None)
        await self.effects.wait_until_idle()
        if call.suspension is None:
            call.suspend(lambda: self._build_input_required(call.root))
            call.engine.call_soon(self._unwind)
        return await call.engine.create_future()

    def reply_with_parked_questions(self, call: Call, handle: Params, questions: dict[str, tuple[str, Params]]) -> None:
        """Leave questions of parked work in the reply. The function ends; the work does not."""
        self.parked, self.open, self.answers = handle, questions, {}
        call.suspend(lambda: self._build_input_required(call.root))

    async def run_once(self, call: Call, key: str, effect: Callable[[], Any]) -> Any:
        """What `effect` gave in this or an earlier round. No effect begins in a run that is about to end."""
        if key not in self.effects.done and call.suspension is not None:
            if self._unwinding:
                raise Suspended
            await call.engine.create_future()
        is_kept = self.keep_effect is None or key in self.effects.done
        value = await self.effects.run_once(call, key, effect)
        if self.keep_effect is not None and not is_kept:
            await self.keep_effect(key, value)
        return value

    async def relay_questions(self, call: Call, requests: Mapping[str, Params], kept: Any) -> Any:
        """Leave the questions of another server in the reply and end this run. Never returns.

        `kept` comes back as `relayed`, with the answers.
        """
        self.open |= {
            key: (digest_question(request.get("method"), request.get("params")), request)
            for key, request in requests.items()
        }
        self.relayed = kept
        call.suspend(lambda: self._build_input_required(call.root))
        return await call.engine.create_future()

    def _unwind(self) -> None:
        self._unwinding = True

    def _build_input_required(self, call: Call) -> Params:
        payload = {
            "answers": self.answers,
            "once": self.effects.done,
            "relayed": self.relayed,
            "asked": {key: digest for key, (digest, _) in self.open.items()},
            "rights": call.identity.rights if call.identity is not None else None,
        }
        if self.parked is not None:
            payload["parked"] = self.parked
        if marks := get_call_marks(call):
            payload["marks"] = marks
        return {
            "resultType": "input_required",
            "inputRequests": {key: request for key, (_, request) in self.open.items()},
            "requestState": _sealer(call).seal(payload, binding=_binding(call)),
        }


def digest_question(method: Any, params: Any) -> str:
    """Names a question by what it says."""
    return sha256(to_json([method, params])).hexdigest()[:24]


async def read_client_answers(call: Call) -> None:
    """Read the answers that a request brings, before its function runs. Done once, even if it reads a resource."""
    if call.peek(RoundTrips) is None and get_dialect(call).stateless:
        await call.local(RoundTrips).load_answers(call, call.params)


def _sealer(call: Call) -> Sealer:
    return get_dialect(call).secret.get_sealer(is_local=call.session.is_local)


def _binding(call: Call) -> bytes:
    params = call.params
    target = params.get("name") or params.get("uri") or ""
    binders = call.session.composition.request_binders
    brought = {name: value for name, bind in binders.items() if (value := bind(call)) is not None}
    return digest_binding(call.principal, call.method, str(target), params.get("arguments"), brought)


# -- MCP multi round-trip requests (2026-07-28), `ctx.once`: an effect happens once, however often its function runs.


# A question inside an effect must not wait for that effect. Not kept in the call, whose tasks run side by side.
_INSIDE: ContextVar[bool] = ContextVar("defserve_inside_effect", default=False)


class Effects:
    """`done` holds what each finished effect gave, as JSON, by key."""

    __slots__ = ("done", "_running")

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}
        self._running: dict[str, asyncio.Event] = {}

    async def run_once(self, call: Call, key: str, effect: Callable[[], Any]) -> Any:
        """Run `effect` unless it is done. Two callers that want the same effect at once wait for each other."""
        while key not in self.done:
            if key in self._running:
                await self._running[key].wait()
            else:
                await self._run(call, key, effect)
        return self.done[key]

    async def wait_until_idle(self) -> None:
        """Wait until no effect is running; at once when called from inside one."""
        while self._running and not _INSIDE.get():
            await next(iter(self._running.values())).wait()

    async def _run(self, call: Call, key: str, effect: Callable[[], Any]) -> None:
        import asyncio
        from inspect import isawaitable, iscoroutinefunction

        finished = self._running[key] = asyncio.Event()
        inside = _INSIDE.set(True)
        try:
            value = effect() if iscoroutinefunction(effect) else await call.in_thread(effect)
            self.done[key] = _as_json(key, await value if isawaitable(value) else value)
        finally:
            _INSIDE.reset(inside)
            del self._running[key]
            finished.set()


def _as_json(key: str, value: Any) -> Any:
    from pydantic_core import PydanticSerializationError

    try:
        return from_json(to_json(value))
    except PydanticSerializationError:
        raise UsageError(
            f"ctx.once({key!r}) gave a {type(value).__name__}, which is no JSON value and cannot be remembered",
            fix="return None, text, numbers, lists or dicts from the effect",
        ) from None


# -- Marks of a call: what an extension must not forget of it, however it goes on.
#
# A mark is set on the call and on all calls that make it. Nobody takes it away. It travels with the call: into the next
# round of a request that is repeated with answers, and into a further run of a task.


CONFLICTING_MARK = ""
"""The value of a mark that was set with different values."""


class _Marks:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}


def mark_call(call: Call, name: str, value: str = CONFLICTING_MARK) -> None:
    """Mark a call, and the calls that make it. A second value of the same mark makes it CONFLICTING_MARK."""
    for one in _line(call):
        values = one.local(_Marks).values
        values[name] = value if values.get(name, value) == value else CONFLICTING_MARK


def find_call_mark(call: Call, name: str) -> str | None:
    """The value of a mark of a call, or of one that makes it; None if there is none."""
    found = {marks.values[name] for one in _line(call) if (marks := one.peek(_Marks)) and name in marks.values}
    return None if not found else found.pop() if len(found) == 1 else CONFLICTING_MARK


def get_call_marks(call: Call) -> dict[str, str]:
    """All marks of a call itself, to restore them on the call that goes on with its work."""
    marks = call.peek(_Marks)
    return dict(marks.values) if marks is not None else {}


def restore_call_marks(call: Call, marks: Mapping[str, str]) -> None:
    """Set the marks of the call whose work this one goes on with."""
    for name, value in marks.items():
        mark_call(call, name, value)


def _line(call: Call) -> Iterator[Call]:
    one: Call | None = call
    while one is not None:
        yield one
        one = one.outer


# -- MCP 2026-07-28, multi round-trip requests: `requestState` sealed, bound to its request, short-lived and single-use.
#
# Built on the standard library because `cryptography` is 15 MB and optional. Encrypt-then-MAC: `v1.` + base64url(nonce
# ‖ ciphertext ‖ tag), where the plaintext is the time of sealing and the payload's JSON.


STATE_PREFIX = "v1."
MAX_STATE_LENGTH = 64 * 1024
MIN_SEALER_SECRET_BYTES = 16
SKEW = 60.0
"""How far ahead another worker's clock may be, in seconds, and how far this one may be set back."""

REMEMBERED_STATES = 100_000
"""How many used states this process remembers within the ttl, if there is no store."""

_NONCE, _TAG, _TIME = 16, 32, 8


class InvalidState(InvalidParams):
    """A `requestState` that is not accepted. The peer is never told why."""

    def __init__(self) -> None:
        super().__init__("Invalid or expired requestState")


class _Keys(NamedTuple):
    encryption: bytes
    authentication: bytes

    @classmethod
    def derive(cls, secret: bytes) -> _Keys:
        if len(secret) < MIN_SEALER_SECRET_BYTES:
            raise ValueError(f"the secret has {len(secret)} bytes, at least {MIN_SEALER_SECRET_BYTES} are needed")
        root = hmac.digest(b"defserve requestState v1", secret, "sha256")
        return cls(hmac.digest(root, b"encryption", "sha256"), hmac.digest(root, b"authentication", "sha256"))

    def crypt(self, nonce: bytes, text: bytes) -> bytes:
        """Encrypt or decrypt: both add the keystream."""
        stream = hashlib.shake_256(self.encryption + nonce).digest(len(text))
        return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")

    def tag(self, nonce: bytes, binding: bytes, ciphertext: bytes) -> bytes:
        return hmac.digest(
            self.authentication, _frame_fields(STATE_PREFIX.encode(), nonce, binding, ciphertext), "sha256"
        )


class Sealer:
    """Seals what a server must remember between two rounds of a request, and opens it again, once.

    Workers that share `secret` open one another's states. `nonces` is where single use is remembered: share it between
    sealers that must not accept a state twice.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        ttl: float = 600.0,
        clock: Callable[[], float] = time.time,
        nonces: NonceStore | None = None,
    ) -> None:
        self._keys = _Keys.derive(secret)
        self._ttl, self._clock = ttl, clock
        self._nonces = MemoryNonceStore(REMEMBERED_STATES) if nonces is None else nonces

    def seal(self, payload: Any, *, binding: bytes) -> str:
        """Seal a JSON payload. `binding` is the digest of the request that the state belongs to.

        Raises LimitExceeded when the sealed text would be longer than `open` accepts.
        """
        keys, nonce = self._keys, os.urandom(_NONCE)
        sealed_at = int(self._clock() * 1000).to_bytes(_TIME, "big")
        ciphertext = keys.crypt(nonce, sealed_at + to_json(payload))
        text = STATE_PREFIX + json_values.encode_base64url(nonce + ciphertext + keys.tag(nonce, binding, ciphertext))
        if len(text) > MAX_STATE_LENGTH:
            raise LimitExceeded(
                "The answers recorded so far do not fit in a requestState",
                data={"limit": "request_state", "length": len(text), "max": MAX_STATE_LENGTH},
            )
        return text

    async def open(self, text: str, *, binding: bytes) -> Any:
        """The sealed payload. Raises InvalidState unless it is genuine, for this request, fresh and unspent.
        Errors of the nonce store are passed on."""
        raw = _decode(text)
        nonce, ciphertext, tag = raw[:_NONCE], raw[_NONCE:-_TAG], raw[-_TAG:]
        plaintext = self._decrypt(nonce, ciphertext, tag, binding)
        sealed_at = int.from_bytes(plaintext[:_TIME], "big") / 1000
        now, until = self._clock(), sealed_at + self._ttl
        if sealed_at > now + SKEW or now >= until:
            raise InvalidState
        # Remembered for longer than it is valid: a clock that is set back makes it valid again.
        if not await self._nonces.spend(nonce.hex(), ttl=until - now + SKEW):
            raise InvalidState
        return from_json(plaintext[_TIME:])

    def _decrypt(self, nonce: bytes, ciphertext: bytes, tag: bytes, binding: bytes) -> bytes:
        if not hmac.compare_digest(self._keys.tag(nonce, binding, ciphertext), tag):
            raise InvalidState
        return self._keys.crypt(nonce, ciphertext)


def digest_binding(principal: str, method: str, target: str, arguments: Any, brought: Any = None) -> bytes:
    """The digest of the request a state belongs to: who asks, which method, which tool or URI, which arguments.

    `brought` is what it brings beside its arguments, if it brings anything.
    """
    texts = (text.encode("utf-8", "surrogatepass") for text in (principal, method, target))
    values = (arguments, brought) if brought else (arguments,)
    return hashlib.sha256(_frame_fields(*texts, *(to_json(_sort_keys(value)) for value in values))).digest()


def _frame_fields(*fields: bytes) -> bytes:
    """Fields behind their lengths, so that no two lists of fields give the same bytes."""
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def _sort_keys(value: Any) -> Any:
    if is_object(value):
        return {name: _sort_keys(value[name]) for name in sorted(value)}
    if is_array(value):
        return [_sort_keys(item) for item in value]
    return value


def _decode(text: str) -> bytes:
    if len(text) > MAX_STATE_LENGTH or not text.startswith(STATE_PREFIX):
        raise InvalidState
    try:
        raw = json_values.decode_base64url(text[len(STATE_PREFIX) :])
    except ValueError:
        raise InvalidState from None
    if len(raw) < _NONCE + _TIME + _TAG:
        raise InvalidState
    return raw
