"""One server as an MGP host treats it: what was negotiated (§2), and the steps of each request to the server.

`Mgp` has the options. Before a call is sent, validators judge it and the person may be asked (§4, §8), whether or not
the server knows of that. A callback of the server becomes a form (§13.4).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4

from pydantic_core import from_json

from defserve.base.redaction import get_logger
from defserve.client.answers import (
    Accept,
    Answers,
    Decision,
    Decline,
    ask_yes_or_no,
    extract_field_value,
    make_one_field_form,
    maybe_await,
)
from defserve.client.apps import get_backend_server_id
from defserve.client.audit import AUDIT_NOTIFICATION, TOOL_FELL_BACK_EVENT, TOOL_RETRIED_EVENT, MgpAuditTrail
from defserve.client.conversation import ClientConversation, RequestObserver
from defserve.client.eras import SessionTerms
from defserve.client.exchange import NotificationHandler
from defserve.client.extension import ClientExtension, RequestWrapper, SendParams
from defserve.client.mgp.server_claims import (
    ApprovePermission,
    Grant,
    ListedToolClaims,
    MgpFailure,
    PermissionApprover,
    PermissionPolicy,
    ServerGrants,
    make_mgp_offer,
    parse_mgp_claims,
    parse_mgp_failure,
    parse_tool_security,
)
from defserve.client.replies import Json, filter_strings, number_or_none, object_or_empty, string_or_none
from defserve.core.extension import ALL_METHODS
from defserve.core.json_values import as_list
from defserve.core.messages import RequestId, encode
from defserve.errors import DefserveError, MethodNotFound, PeerError, PeerGone, Refused, UsageError, explain_arguments
from defserve.protocols.mcp.asking.client_features import SINGLE_FIELD_NAME
from defserve.protocols.mgp.audit import AuditLogger, AuditSink, AuditSinks, open_audit_sinks
from defserve.protocols.mgp.forwarding import apply_standard_validator
from defserve.protocols.mgp.permissions import NotConfirmed, format_confirmation_question
from defserve.protocols.mgp.security import STANDARD_VALIDATORS, Validator, validator
from defserve.protocols.mgp.terms import CONFIRMED_META_KEY

if TYPE_CHECKING:
    from defserve.client.client import Client
    from defserve.protocols.mgp.vocabulary import PermissionDecision


# Older and newer names, so that old and new servers each find their own.
OFFERED_MGP_EXTENSIONS: Final = (
    "security",
    "permissions",
    "tool_security",
    "access_control",
    "audit",
    "code_safety",
    "events",
    "streaming",
    "lifecycle",
)
CALLBACK_EXTENSIONS: Final = ("bidirectional", "callbacks")


@explain_arguments
class Mgp:
    """How a host guards its calls. It holds no connection: many clients may share one.

    approval    who approves permissions: "interactive", "auto_approve", "deny_all" or "config_only" (§3.3);
                "deny_all" does not connect to a server that needs what is not in `granted`
    approve     for `interactive`: (permission, risk, server id) to True, False, None (later), a decision or a Grant;
                without it the client's `answers` are asked
    granted     permissions that are approved under every policy
    confirm     (tool, arguments, security) to True or False before a dangerous call (§4.4); without it the client's
                `answers` are asked
    confirm_moderate  ask before moderate calls, too
    validators  tool, or "*", to standard validators, functions, or "none", added to what tools declare (§4.5)
    audit       sinks or file names of the audit trail (§6); the default is the logger `defserve.audit`
    retry       retry as the server says, and then call its fallback tool (§14.6)
    extensions  what to offer; None offers everything, but callbacks only if `answers` can be asked

    Validators, permissions and confirmation also apply to servers without MGP. Those get no MGP messages.
    """

    def __init__(
        self,
        approval: PermissionPolicy = "interactive",
        approve: ApprovePermission | None = None,
        granted: Sequence[str] = (),
        confirm: Confirm | None = None,
        *,
        confirm_moderate: bool = False,
        validators: Mapping[str, Checks] | None = None,
        audit: AuditSinks | None = None,
        retry: bool = True,
        extensions: Sequence[str] | None = None,
    ) -> None:
        self.approval = PermissionApprover(approval, granted, approve)
        self.confirm, self.confirm_moderate = confirm, confirm_moderate
        self.validation = OutgoingCallValidators(validators or {})
        self.retry, self.extensions, self._audit = retry, extensions, audit

    @cached_property
    def sinks(self) -> tuple[AuditSink, ...]:
        """Where the audit trail goes. Files are opened with the first connection."""
        return open_audit_sinks(self._audit if self._audit is not None else AuditLogger())

    def get_offered_extensions(self, answers: Answers) -> tuple[str, ...]:
        """The extensions that this client offers."""
        if self.extensions is not None:
            return tuple(self.extensions)
        return OFFERED_MGP_EXTENSIONS + CALLBACK_EXTENSIONS if answers.ask is not None else OFFERED_MGP_EXTENSIONS


# -- One server as an MGP host treats it: what was negotiated (§2), and the steps of each request to the server.
#
# Before a tool call is sent it is validated, permitted and confirmed; then it is retried as the server says, and
# audited. The same applies to a server without MGP, but that one gets no MGP messages.


CHUNK: Final = "notifications/mgp.stream.chunk"

OutcomeWithFailure: TypeAlias = tuple[Json | PeerError, MgpFailure | None]
"""A result or an error, and what MGP says about it."""


class ChunkReader(Protocol):
    """A call that reads its chunks."""

    def receive_chunk(self, params: Mapping[str, Any]) -> None: ...


class MgpPeer(ClientExtension):
    """`client.mgp`. `version` is None until the conversation is open, and with a server that does not speak MGP."""

    name = "mgp"

    def __init__(self, options: Mgp, conversation: ClientConversation, client: Client, actor: str) -> None:
        self.version: str | None = None
        self.extensions: tuple[str, ...] = ()
        self.sections: frozenset[str] = frozenset()
        self.permissions_required: tuple[str, ...] = ()
        self.server_id = ""
        self.trust_level: str | None = None
        self.streams: dict[RequestId, ChunkReader] = {}
        """The calls that read chunks, by the ids of their requests."""
        self._options, self._conversation, self._client = options, conversation, client
        self._agreement: SessionTerms | None = None
        self._audit = MgpAuditTrail(options.sinks, actor)
        self._grants = ServerGrants(options.approval, client.answers, self._audit)
        self._confirmation = CallConfirmation(options.confirm, client.answers, moderate=options.confirm_moderate)

    @property
    def grants(self) -> dict[str, PermissionDecision]:
        """The current decision about each permission."""
        return self._grants.grants

    async def decide(self, permission: str, decision: PermissionDecision) -> None:
        """Change the decision about a permission while the conversation runs, and tell the server.

        "deferred" takes a decision back: it is asked for again when a call needs it.
        """
        await self._grants.change_decisions({permission: Grant(decision)})

    async def request(self, section: str, method: str, params: Mapping[str, Any]) -> Json:
        """A request that belongs to a section of MGP. Raises PeerError if the server does not offer the section."""
        if section not in self.sections:
            raise PeerError(f"this server offers no {section.replace('_', ' ')} to this client")
        try:
            result = await self._client.request(method, params)
        except PeerError as error:
            self._audit.record_request(method, params, error)
            raise
        self._audit.record_request(method, params, None)
        return result

    # -- the conversation begins and ends ----------------------------------------------------------------

    def offer(self, era: str) -> Mapping[str, Any]:
        return make_mgp_offer(self._options.get_offered_extensions(self._client.answers))[era]

    async def on_agreed(self, terms: SessionTerms) -> None:
        """Read what the server says about MGP, and decide about its permissions before the first call (§3.4)."""
        self._agreement = terms
        claims = parse_mgp_claims(terms, self._options.get_offered_extensions(self._client.answers))
        self.server_id = self._audit.server_id = claims.server_id or terms.server_name
        if claims.version is not None:
            self.version, self.extensions, self.sections = claims.version, claims.extensions, claims.sections
            self.permissions_required, self.trust_level = claims.permissions, claims.trust_level
        details = {"protocol_version": terms.version, "mgp": self.version, "extensions": list(self.extensions)}
        self._audit.report("SERVER_CONNECTED", details=details)
        if "permissions" in self.sections and not terms.stateless:
            self._grants.send = self._send
        await self._grants.decide_open_permissions(self.permissions_required, self.server_id)
        try:
            self._grants.check_server_permissions(self.server_id, self.permissions_required)
        except Refused:
            self._record_disconnect("its permissions were denied")
            raise

    def on_closed(self, gone: PeerGone | None) -> None:
        self._record_disconnect("the client was closed" if gone is None else gone.message)

    def _record_disconnect(self, reason: str) -> None:
        """Note in the audit trail, once, that the server is gone."""
        if self._agreement is not None:
            self._agreement = None
            details: Json = {"reason": reason}
            if "audit" in self.sections:
                # A server that reports less than this host saw does not keep what it agreed to.
                details |= {"calls_seen": self._audit.calls, "events_reported": self._audit.reports}
            self._audit.report("SERVER_DISCONNECTED", details=details)

    async def _send(self, method: str, params: Mapping[str, Any]) -> Any:
        if self._agreement is None:
            raise PeerGone("the conversation is over")
        return await self._conversation.request(
            method, self._agreement.with_envelope(params, None), within=self._client.timeout
        )

    # -- notifications of the server ---------------------------------------------------------------------

    def notifications(self) -> Mapping[str, NotificationHandler]:
        return {
            CHUNK: self._on_chunk,
            AUDIT_NOTIFICATION: self._on_audit_event,
            "notifications/mgp.callback.request": self._on_callback,
        }

    def _on_chunk(self, method: str, params: Json) -> None:
        id = params.get("request_id")
        if isinstance(id, int | str) and (stream := self.streams.get(id)) is not None:
            stream.receive_chunk(params)

    def _on_audit_event(self, method: str, params: Json) -> None:
        if "audit" in self.sections:
            self._audit.record_server_event(params)

    def _on_callback(self, method: str, params: Json) -> None:
        wants_answer = isinstance(params.get("callback_id"), str) and params.get("type") != "notification"
        if "callbacks" in self.sections and wants_answer:
            work = respond_to_callback(params, self._client.answers, self._send, self._conversation.run_own_work)
            self._conversation.start_answer_task(work, params, is_own_work=False)

    # -- requests ----------------------------------------------------------------------------------------

    def around(self) -> Mapping[str, RequestWrapper]:
        return {ALL_METHODS: self._send_checked}

    async def _send_checked(
        self, method: str, send: SendParams, observer: RequestObserver | None, params: Mapping[str, Any]
    ) -> Json:
        """Make a request with the checks and retries of MGP.

        An error of MGP raises the exception for its code. A tool call that must not be sent raises Rejected,
        PermissionDenied or NotConfirmed.
        """
        try:
            if method == "tools/call":
                # A copy, decoded as the server will decode it, so that exactly the checked arguments are sent.
                return await self._call(from_json(encode(dict(params))), send, observer, frozenset())
            return _raise_if_error((await self._attempts(params, send, observer))[0])
        except PeerError as error:
            if (typed := self._to_exception(error)) is None:
                raise
            raise typed from error

    def check_result(self, result: Json) -> None:
        """Raises the exception for its code if a result is an error of MGP."""
        if (error := self._to_exception(result)) is not None:
            raise error

    async def _call(
        self,
        params: Json,
        send: SendParams,
        observer: RequestObserver | None,
        tried: frozenset[str],
        trace_id: str = "",
        instead_of: str | None = None,
    ) -> Json:
        name, trace_id = str(params.get("name")), trace_id or string_or_none(params.get("trace_id")) or str(uuid4())
        try:
            is_confirmed = await self._admit(name, object_or_empty(params.get("arguments")), instead_of)
        except Refused as refusal:
            self._audit.record_blocked_call(name, refusal, trace_id)
            raise
        meta = object_or_empty(params.get("_meta"))
        if "permissions" in self.sections and self._agreement is not None and self._agreement.stateless:
            meta = {**self._grants.make_grants_meta(), **meta}
        if is_confirmed:
            meta = {**meta, CONFIRMED_META_KEY: True}
        sent = {**params, "_meta": meta} if meta else params
        if self.version is not None:
            sent = {**sent, "trace_id": trace_id}  # §6.5
        try:
            outcome, failure = await self._attempts(sent, send, observer, name, trace_id)
        except BaseException as error:
            self._audit.record_sent_call(name, trace_id, error)
            raise
        self._audit.record_sent_call(name, trace_id, outcome)
        tried |= {name}
        other = failure.fallback if failure is not None and self._may_repeat(observer) else None
        if other is not None and other not in tried and await self._is_of_same_server(name, other):
            self._audit.report(TOOL_FELL_BACK_EVENT, trace_id=trace_id, tool=name, details={"fallback_tool": other})
            # Not `sent`: a yes to one tool is no yes to another, which may have permissions granted of its own.
            return await self._call({**params, "name": other}, send, observer, tried, trace_id, name)
        return _raise_if_error(outcome)

    async def _is_of_same_server(self, name: str, other: str) -> bool:
        """Whether a tool that an error names is listed, and by the server whose error it is: of the servers behind
        one, each may only name its own.
        """
        failed, named = await self._find_tool(name), await self._find_tool(other)
        return bool(named) and get_backend_server_id(failed) == get_backend_server_id(named)

    async def _admit(self, name: str, arguments: Json, instead_of: str | None) -> bool:
        """Whether a person has confirmed a tool whose risk the server may not know that we know."""
        tool = parse_tool_security(name, await self._find_tool(name))
        await self._options.validation.require_valid_call(tool, arguments, enforced="tool_security" in self.sections)
        # A tool that does not say what it needs may need whatever its server does.
        needed = self.permissions_required if tool.permissions is None else tool.permissions
        if needed:
            await self._grants.decide_open_permissions(needed, self.server_id)
            self._grants.require_approved(name, needed)
        is_confirmed = await self._confirmation.confirm_call(tool, arguments, instead_of)
        # The server knows that the listed ones are confirmed here.
        return is_confirmed and not tool.is_listed and "tool_security" in self.sections

    async def _find_tool(self, name: str) -> Json:
        try:
            return await self._client.find_tool(name, again=True)
        except PeerError as error:
            if error.code != MethodNotFound.code:
                raise  # a tool whose declaration is unknown does not count as harmless
            return {}

    async def _attempts(
        self,
        params: Mapping[str, Any],
        send: SendParams,
        observer: RequestObserver | None,
        tool: str | None = None,
        trace_id: str | None = None,
    ) -> OutcomeWithFailure:
        """Send the request, and again as long as the server says that a retry may help (§14.6)."""
        retried = 0
        while True:
            try:
                outcome = await send(params)
            except PeerError as error:
                outcome = error
            failure = self._failure(outcome)
            wait = failure.delay(retried) if failure is not None and self._may_repeat(observer) else None
            if failure is None or wait is None:
                return outcome, failure
            retried += 1
            details = {"attempt": retried, "wait_ms": round(wait * 1000), "code": failure.code}
            self._audit.report(TOOL_RETRIED_EVENT, trace_id=trace_id, tool=tool, result="RETRY", details=details)
            await asyncio.sleep(wait)

    def _may_repeat(self, observer: RequestObserver | None) -> bool:
        return self._options.retry and (observer is None or observer.is_repeatable)

    def _to_exception(self, outcome: PeerError | Json) -> DefserveError | None:
        failure = self._failure(outcome)
        return failure.exception() if failure is not None else None

    def _failure(self, outcome: PeerError | Json) -> MgpFailure | None:
        # Without MGP, `_mgp` may mean anything.
        return parse_mgp_failure(outcome) if self.version is not None else None


def _raise_if_error(outcome: Json | PeerError) -> Json:
    if isinstance(outcome, PeerError):
        raise outcome
    return outcome


# -- MGP §4.5, §8.2: validators that the host applies before it sends a call, whether or not the server knows them.
#
# A tool gets the validator that it declares. A tool that declares none gets the ones that its name and the names of its
# arguments suggest. Validators in the configuration are added; "none" there turns the other ones off.


Check: TypeAlias = str | Validator | Callable[..., Any]
"""The name of a standard validator, one made with `@validator`, or a function that `@validator` takes."""
Checks: TypeAlias = Check | Sequence[Check]

# Validator → words (and pairs of words) in a tool's name that suggest it, and argument names that do.
SUGGESTED_BY: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "sandbox": (
        frozenset({"shell", "bash", "sh", "zsh", "terminal", "powershell", "cmd"}),
        frozenset({"command", "cmd", "commandline", "command_line", "shell_command"}),
    ),
    "network_restricted": (
        frozenset({"fetch", "http", "curl", "wget", "download", "browse", "scrape", "crawl"}),
        frozenset({"url"}),
    ),
    "code_safety": (
        frozenset({"python", "repl", "eval", "run code", "execute code", "exec code", "evaluate code"}),
        frozenset[str](),
    ),
}


class OutgoingCallValidators:
    """The validators of one host. Raises UsageError for a validator that does not exist."""

    def __init__(self, configured: Mapping[str, Checks]) -> None:
        self._configured = {
            tool: [_check(tool, check) for check in as_list(checks)] for tool, checks in configured.items()
        }

    async def require_valid_call(self, tool: ListedToolClaims, arguments: Mapping[str, Any], *, enforced: bool) -> None:
        """Raises Rejected. `enforced` says that the server applies the declared validator as well."""
        configured = [*self._configured.get("*", ()), *self._configured.get(tool.name, ())]
        if "none" not in configured:
            self._check_standard(tool, arguments, enforced)
        for check in configured:
            if isinstance(check, Validator):
                await check.judge_arguments(dict(arguments))
            elif check != "none":
                apply_standard_validator(check, arguments)

    def _check_standard(self, tool: ListedToolClaims, arguments: Mapping[str, Any], enforced: bool) -> None:
        name = tool.validator
        if name is not None and name in STANDARD_VALIDATORS:
            # A server that applies it knows which argument is meant; here only a name, or being alone, can tell.
            if not (enforced and len(tool.properties) > 1 and STANDARD_VALIDATORS[name][1].isdisjoint(tool.properties)):
                apply_standard_validator(name, arguments, tool.security if enforced else None)
        elif name != "none":
            for guess, meant in guess_validators(tool, arguments).items():
                apply_standard_validator(guess, meant)


def guess_validators(tool: ListedToolClaims, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the names suggest for a tool that declares nothing: validator → the arguments to check.

    A word in the tool's name selects the arguments that the validator is meant for, or else the only text. An argument
    that can only be one of several values is not checked.
    """
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool.name).lower())
    phrases = {*words, *(" ".join(pair) for pair in pairwise(words))}
    free = {
        name: value
        for name, value in arguments.items()
        if not object_or_empty(tool.properties.get(name)).keys() & {"enum", "const"}
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (tool_words, argument_names) in SUGGESTED_BY.items():
        meant = {argument: value for argument, value in free.items() if argument.lower() in argument_names}
        if phrases & tool_words:
            meant = {
                argument: value for argument, value in free.items() if argument in STANDARD_VALIDATORS[name][1]
            } or meant
            lone = {argument: value for argument, value in free.items() if isinstance(value, str)}
            meant = meant or (lone if len(lone) == 1 else {})
        if meant:
            found[name] = meant
    return found


def _check(tool: str, given: Any) -> str | Validator:
    if isinstance(given, Validator) or (isinstance(given, str) and (given in STANDARD_VALIDATORS or given == "none")):
        return given
    if not callable(given):
        known = ", ".join([*STANDARD_VALIDATORS, "none"])
        raise UsageError(f"there is no validator {given!r} (for {tool!r})", fix=f"use one of {known}, or a function")
    return validator(given)


# -- MGP §4.4: when a host asks before it calls a tool, by the tool's risk.
#
# | risk | asked |
# |---|---|
# | safe, moderate | if the tool says `confirmation_required`; moderate also with `confirm_moderate` |
# | dangerous, or not listed | always, unless the tool wants no confirmation and needs permissions that were approved |
# | dangerous, called because another tool failed | always |


Confirm: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], bool | Awaitable[bool]]
"""Tool, arguments and `security` block to yes or no."""


class CallConfirmation:
    """Asks `confirm`, or else the person behind `answers`. If there is neither, a call that needs it is refused."""

    def __init__(self, confirm: Confirm | None, answers: Answers, *, moderate: bool) -> None:
        self._confirm, self._answers, self._moderate = confirm, answers, moderate

    async def confirm_call(
        self, tool: ListedToolClaims, arguments: Mapping[str, Any], instead_of: str | None = None
    ) -> bool:
        """Returns if the call may be sent: whether a person has confirmed it. Permissions were checked before.

        `instead_of` is the tool whose failure names this one. Raises NotConfirmed.
        """
        if not (self._is_needed(tool) or (instead_of is not None and tool.risk == "dangerous")):
            return False
        agreed = await self._ask(tool, deepcopy(dict(arguments)), instead_of)
        if agreed is None:
            raise NotConfirmed(
                f"{tool.name} is {tool.risk} and must be confirmed, but nobody can be asked",
                data={"fix": "give Mgp(confirm=…), or answers that can be asked"},
            )
        if not agreed:
            raise NotConfirmed(f"{tool.name} was not confirmed")
        return True

    def _is_needed(self, tool: ListedToolClaims) -> bool:
        if tool.risk == "dangerous":
            return tool.confirmation_required is not False or not tool.permissions
        return tool.confirmation_required is True or (tool.risk == "moderate" and self._moderate)

    async def _ask(self, tool: ListedToolClaims, arguments: dict[str, Any], instead_of: str | None) -> bool | None:
        if self._confirm is not None:
            return await maybe_await(self._confirm(tool.name, arguments, deepcopy(tool.security))) is True
        asked = format_confirmation_question(tool.name, arguments, tool.schema, risk=tool.risk, instead_of=instead_of)
        return await ask_yes_or_no(self._answers, asked, "confirmed")


# -- MGP §13.4: a callback of the server becomes a form with one field. The client's `answers` fill it in.
#
# The answer is sent as another request, if there is still time. A person who declines gives `decline`. The answer is
# null if the question was dismissed, or if this client can ask nobody.


ANSWER_DEADLINE: Final[ContextVar[float | None]] = ContextVar("answer_by", default=None)
"""Until when (seconds since 1970) the server waits for the answer that is being asked for; None if it does not say."""

log = get_logger("client")

# Callback type → the field of its form. A notification wants no answer.
CALLBACK_FIELDS: Final[Mapping[str, Callable[[list[str]], dict[str, Any]]]] = {
    "confirmation": lambda options: {"type": "boolean"},
    "input": lambda options: {"type": "string"},
    "selection": lambda options: {"type": "string", "enum": options},
}


async def respond_to_callback(
    params: Mapping[str, Any],
    answers: Answers,
    send: Callable[..., Awaitable[Any]],
    run_own_work: Callable[[Awaitable[Any]], Awaitable[Any]],
) -> None:
    """Ask the question, as work of ours, and send the answer. Never raises: nobody waits for this."""
    patience = number_or_none(params.get("timeout_ms"))
    seconds = None if patience is None else patience / 1000
    if seconds is not None:
        ANSWER_DEADLINE.set(time.time() + seconds)  # this task is of this one answer
    try:
        async with asyncio.timeout(seconds):
            response = await run_own_work(_callback_response(params, answers))
            await send("mgp/callback/respond", {"callback_id": params.get("callback_id"), "response": response})
    except TimeoutError:
        log.info("nobody answered a callback within %s ms", patience)
    except PeerError as error:
        log.info("the server did not take the answer to a callback: %s", error)
    except Exception:
        log.exception("answering a callback failed")


async def _callback_response(params: Mapping[str, Any], answers: Answers) -> Any:
    kind = str(params.get("type"))
    if answers.ask is None or kind not in CALLBACK_FIELDS:
        return None
    field = CALLBACK_FIELDS[kind](filter_strings(params.get("options")))
    answer = await maybe_await(
        answers.ask(str(params.get("message", "")), make_one_field_form(SINGLE_FIELD_NAME, field))
    )
    if isinstance(answer, Decision):
        return "confirm" if answer is Accept and kind == "confirmation" else "decline" if answer is Decline else None
    value = extract_field_value(answer, SINGLE_FIELD_NAME)
    if kind == "confirmation":
        return "confirm" if value is True else "cancel"
    return value
