"""Whether a call would run, and why. `defserve why` prints it.

How it works: a caller has rights, a tool has needs, and a person confirms what is dangerous. `explain_call` makes a
call of a client that can't be asked anything, and lets the gates of real calls decide about it: whether the caller sees
the tool, the `admit` stages of all extensions, and `confirm_call`. The steps show what each gate looked at. No rule is
written here a second time: a gate that refuses for a reason of its own adds a step in its own words. Nothing is
audited, and the tool doesn't run.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from defserve.auth.auth_options import Auth
from defserve.auth.authority import is_local_user, make_anonymous_ip_principal
from defserve.auth.bearer_tokens import TokenRefused, find_token_fix
from defserve.auth.oauth import TOKEN_HEADER_EXAMPLE, UNAVAILABLE_DENIAL, AuthDenial
from defserve.auth.principals import (
    LOCAL_PRINCIPAL,
    SCOPE_WILDCARD,
    ApiKeyPrincipal,
    Principal,
    format_invoke_scope,
    is_token_principal_id,
)
from defserve.base.version import VERSION
from defserve.core.call import Call
from defserve.core.extension import Offer
from defserve.core.json_values import is_object
from defserve.core.session import Session
from defserve.errors import Refused, UsageError, did_you_mean
from defserve.protocols.mcp.items import find_item
from defserve.protocols.mcp.tools import UnknownTool
from defserve.protocols.mcp.versions import STATELESS_VERSIONS
from defserve.protocols.mgp.audit import AuditTrail
from defserve.protocols.mgp.permissions import confirm_call
from defserve.protocols.mgp.terms import get_tool_security
from defserve.serve.asyncio_engine import AsyncioEngine
from defserve.serve.connection import get_session_arguments

if TYPE_CHECKING:
    from defserve.auth.api_keys import ApiKey
    from defserve.protocols.mcp.tools import Tool
    from defserve.server.server import Server

GateOutcome = Literal["passed", "refused", "depends", "fact"]
"""`depends`: a person is asked, or nothing was verified. `fact`: what later steps go by; no gate."""

PIPE: Final = "pipe"
ANONYMOUS: Final = "anonymous"
TOKEN_CALLER_NAME: Final = "token"
KEY_PREFIX: Final = "key:"
SIGN_IN: Final = "your sign-in"
KEPT_CHECKS: Final = frozenset(("seal", "revoked"))
"""The checks of a token that ask what an authorization server of ours has kept."""


class CallDecisionStep(NamedTuple):
    """What one gate says, and what to change if it refuses."""

    gate: str
    outcome: GateOutcome
    sentence: str
    fix: str = ""


class ExaminedCaller(NamedTuple):
    """A caller as a command names it, and how the server would know it. Without a `principal` it isn't let in."""

    title: str
    principal: Principal | None
    step: CallDecisionStep


class CallDecision(NamedTuple):
    """The steps of a call in order."""

    steps: list[CallDecisionStep]

    @property
    def is_unknown(self) -> bool:
        """Whether another process has to say who the caller is."""
        return self.steps[0].outcome == "depends" and bool(self.steps[0].fix)

    @property
    def would_run(self) -> bool:
        return not any(step.outcome == "refused" or step.fix for step in self.steps)

    @property
    def verdict(self) -> str:
        if any(step.outcome == "refused" for step in self.steps):
            return "would be refused."
        if self.is_unknown:
            return "cannot be told here: the server that runs knows the caller."
        return "would run." if self.would_run else "would run only if a person says yes."

    def describe(self) -> dict[str, Any]:
        """The same as JSON."""
        steps = [step._asdict() for step in self.steps]
        return {"would_run": self.would_run, "verdict": self.verdict, "steps": steps}


# -- callers -----------------------------------------------------------------------------------------------


async def resolve_named_caller(
    server: Server,
    name: str,
    *,
    token: str | None = None,
    scopes: Iterable[str] | None = None,
    granted: Iterable[str] | None = None,
) -> ExaminedCaller:
    """The caller that `name` stands for: `pipe`, `anonymous`, `token`, `key:ID`, the holder of a key, or any name with
    `scopes`. Raises UsageError for a caller that nobody knows.

    `granted` says that the token comes from a sign-in, which was granted these scopes.
    """
    auth = server.auth
    if name == PIPE:
        if auth is not None and auth.in_messages:
            problem = "this server wants a token in each message, also on a pipe"
            return ExaminedCaller(
                PIPE, None, CallDecisionStep("known", "refused", problem, "send a token: defserve why token")
            )
        step = CallDecisionStep("known", "passed", "the user who runs the server; a pipe needs no token")
        return ExaminedCaller(PIPE, LOCAL_PRINCIPAL, step)
    if name == ANONYMOUS:
        return _examine_stranger(server)
    if name == TOKEN_CALLER_NAME:
        return await _examine_token(server, token, granted)
    if scopes is not None:
        return _examine_assumed(server, name, scopes)
    return await _examine_key(server, name)


def _examine_stranger(server: Server) -> ExaminedCaller:
    if server.auth is not None and not server.auth.admits_strangers:
        problem = CallDecisionStep(
            "known", "refused", "this server wants a token (auth)", f"send one: {TOKEN_HEADER_EXAMPLE}"
        )
        return ExaminedCaller(ANONYMOUS, None, problem)
    step = CallDecisionStep("known", "passed", "by its address alone: this server has no auth, and lets everybody in")
    return ExaminedCaller(ANONYMOUS, make_anonymous_ip_principal(""), step)


async def _examine_token(server: Server, token: str | None, granted: Iterable[str] | None) -> ExaminedCaller:
    if server.auth is None:
        raise UsageError(f"{server.name} has no auth, so it reads no tokens", fix="name the caller: pipe or anonymous")
    if not token:
        fix = "name a file: --token @FILE, or --token - for stdin"
        if server.auth.resource is not None:
            fix = f"sign in: defserve login {server.auth.resource_url}; or {fix}"
        raise UsageError("there is no token to look at", fix=fix)
    found = await server.auth.authenticate([f"Bearer {token}".encode("latin-1", "replace")])
    if isinstance(found, Principal):
        verifier = "OAuthProxy" if server.auth.site is not None else type(server.auth.verifier).__name__
        step = CallDecisionStep("known", "passed", f"token of {found.id!r} ({verifier})")
        return ExaminedCaller(f"token of {found.id!r}", found, step)
    cause = found.cause if isinstance(found, AuthDenial) and isinstance(found.cause, TokenRefused) else None
    is_kept_elsewhere = server.auth.site is not None and server.auth.site.is_kept_in_memory
    if is_kept_elsewhere and cause is not None and cause.reason.partition(":")[0] in KEPT_CHECKS:
        return _examine_sign_in(server, server.auth, granted)
    if cause is None:
        fix = "check that the whole token is in the file, and nothing else"
        if found is UNAVAILABLE_DENIAL:
            fix = "try again when the issuer, or the store of the keys, can be reached"
        text = found.text if isinstance(found, AuthDenial) else "it is no bearer token"
        return ExaminedCaller(TOKEN_CALLER_NAME, None, CallDecisionStep("known", "refused", text, fix))
    return ExaminedCaller(
        TOKEN_CALLER_NAME, None, CallDecisionStep("known", "refused", str(cause), find_token_fix(cause.reason))
    )


def _examine_sign_in(server: Server, auth: Auth, granted: Iterable[str] | None) -> ExaminedCaller:
    """A sign-in that the serving process keeps in its memory, and this is another one.

    The client knows which scopes it was granted, and not who it is: an access policy would have to know that.
    """
    if granted is not None and server.mgp.access is None:
        principal = auth.complete_principal(Principal(SIGN_IN, frozenset(granted), credential=SIGN_IN))
        sentence = "it has what it was granted at sign-in; only the server that runs can check the token itself"
        return ExaminedCaller(SIGN_IN, principal, CallDecisionStep("known", "depends", sentence))
    sentence = "sign-ins are kept in the memory of the server that runs, and this command cannot see them"
    fix = (
        f"ask the server that runs: defserve doctor --auth {auth.resource_url} --token @FILE; to see sign-ins here, "
        'give both a store: OAuthProxy(store="sqlite:///sign-ins.db"), and the same DEFSERVE_SECRET'
    )
    return ExaminedCaller(TOKEN_CALLER_NAME, None, CallDecisionStep("known", "depends", sentence, fix))


def _examine_assumed(server: Server, name: str, scopes: Iterable[str]) -> ExaminedCaller:
    if server.auth is None or not is_token_principal_id(name):
        raise UsageError(
            f"{server.name} cannot know {name!r}", fix="it has no auth; name the caller: pipe or anonymous"
        )
    principal = server.auth.complete_principal(Principal(name, frozenset(scopes), credential=name))
    return ExaminedCaller(repr(name), principal, CallDecisionStep("known", "depends", "assumed; no token was checked"))


async def _examine_key(server: Server, name: str) -> ExaminedCaller:
    keys = server.auth.find_api_keys() if server.auth is not None else None
    known = await keys.keys() if keys is not None else []
    matches = [key for key in known if name in (f"{KEY_PREFIX}{key.id}", key.principal)]
    if len(matches) > 1:
        ids = " or ".join(f"{KEY_PREFIX}{key.id}" for key in matches)
        raise UsageError(f"{name} has {len(matches)} API keys", fix=f"name one of them: {ids}")
    if not matches or server.auth is None:
        names = [PIPE, ANONYMOUS, TOKEN_CALLER_NAME, *dict.fromkeys(key.principal for key in known)]
        others = f"use one of {', '.join(names)}, {KEY_PREFIX}ID, or add --scopes for a caller with these scopes"
        if server.auth is not None and server.auth.site is not None:
            others += f"; {TOKEN_CALLER_NAME} is whoever signed in here with defserve login {server.auth.resource_url}"
        if keys is not None and not known:
            others += "; its store has no keys: run this where the keys are, or make one with defserve keys create"
        raise UsageError(f"{server.name} knows no caller {name!r}", fix=did_you_mean(name, names, others))
    (key,) = matches
    title = f'key "{key.principal}"'
    if key.is_expired(time.time()):
        fix = f"defserve keys create {key.principal} --allow 'ToolInvoke(TOOL)'"
        problem = CallDecisionStep("known", "refused", f"API key {key.id} {_format_expiry(key)}", fix)
        return ExaminedCaller(title, None, problem)
    step = CallDecisionStep("known", "passed", f"API key {key.id}, {_format_expiry(key)}")
    return ExaminedCaller(title, server.auth.complete_principal(key.make_principal()), step)


def _format_expiry(key: ApiKey) -> str:
    if key.expires_at is None:
        return "never expires"
    return (
        f"expire{'d' if key.is_expired(time.time()) else 's'} {time.strftime('%Y-%m-%d', time.gmtime(key.expires_at))}"
    )


# -- gates -------------------------------------------------------------------------------------------------


async def explain_call(
    server: Server, caller: ExaminedCaller, tool_name: str, arguments: Mapping[str, Any] | None = None
) -> CallDecision:
    """What each gate says about a call of the tool by this caller. Raises UsageError if there is no such tool.

    Only a policy looks at the `arguments`.
    """
    registry = server.mcp.tools.registry
    if (tool := registry.get(tool_name)) is None:
        raise UsageError(
            f"{server.name} has no tool {tool_name!r}", fix=did_you_mean(tool_name, dict(registry.items()))
        )
    if caller.principal is None:
        return CallDecision([caller.step])
    async with _rehearse_call(server, caller.principal, tool) as call:
        rights = _explain_rights(
            server, caller.principal, tool, await _format_wider_key(server, caller.principal, tool)
        )
        steps = [caller.step, *rights, *_explain_policies(server, call, tool)]
        try:
            find_item(call, registry, tool_name, UnknownTool)
            await call.terms.table.pipeline(tool).run_admit_steps(call, tool)
        except (Refused, UnknownTool) as error:
            if not any(step.outcome == "refused" for step in steps):
                steps.append(_make_refusal("call", error))
            return CallDecision(steps)
        policy = await _explain_policy(server, call, tool, arguments)
        steps += policy
        if not policy or policy[0].outcome == "passed":
            steps.append(await _explain_confirmation(server, call, tool))
    return CallDecision(steps)


async def _explain_policy(
    server: Server, call: Call, tool: Tool, arguments: Mapping[str, Any] | None
) -> list[CallDecisionStep]:
    """What the function decides that the author gave as `policy`; nothing if there is none."""
    if server.mgp.options.policy is None:
        return []
    from defserve.protocols.mgp.policy import POLICY_FAILED_TEXT, PolicyRefused, ask_policy

    try:
        decision = await ask_policy(server.mgp.options.policy, call, tool, arguments or {})
    except PolicyRefused as error:
        fix = "the policy of the server decides: see its function"
        if POLICY_FAILED_TEXT in error.message and arguments is None:
            fix = "the policy may need arguments: defserve why … --arguments '{…}'; else see the log"
        return [CallDecisionStep("policy", "refused", error.message, fix)]
    if decision.outcome == "confirm":
        sentence = f"a person is asked, because {decision.reason}; a client that cannot ask one is refused"
        return [CallDecisionStep("policy", "depends", sentence, "call it from a client whose user can be asked")]
    return [CallDecisionStep("policy", "passed", decision.reason or "allowed by the policy of the server")]


def _explain_rights(server: Server, caller: Principal, tool: Tool, wider_key: str) -> Iterator[CallDecisionStep]:
    """`wider_key` says how the key of the caller is replaced by one that lacks nothing; empty if it has no key."""
    if is_local_user(caller):
        yield CallDecisionStep("rights", "fact", "all of them: the local user started this server")
        return
    yield CallDecisionStep("rights", "fact", ", ".join(sorted(caller.scopes)) or "none")
    if server.auth is None:
        return
    if (denial := server.auth.check_server_scopes(caller)) and isinstance(denial, AuthDenial):
        yield CallDecisionStep(
            "server", "refused", str(denial.cause), f"every caller needs {' '.join(server.auth.scopes)}"
        )
    for scope in tool.options.scopes:
        if caller.missing([scope]):
            fix = wider_key or _format_scope_fix(server.auth, scope)
            yield CallDecisionStep(f"needs scope {scope}", "refused", "lacks it", fix)
        else:
            yield CallDecisionStep(f"needs scope {scope}", "passed", "has it")
    if not isinstance(caller, ApiKeyPrincipal):
        return
    named = format_invoke_scope(tool.name)
    if caller.may_invoke(tool.name) or tool.protects_itself:
        right = named if named in caller.scopes else format_invoke_scope(SCOPE_WILDCARD)
        yield CallDecisionStep(
            "may call", "passed", right if right in caller.scopes else "any caller: it checks rights itself"
        )
    else:
        fix = wider_key or f"map a scope of the token to it: Auth(permissions={{'SCOPE': ['ToolInvoke({tool.name})']}})"
        yield CallDecisionStep("may call", "refused", f"lacks {named}", fix)


def _format_scope_fix(auth: Auth, scope: str) -> str:
    if auth.site is None:
        return f"ask the issuer for a token with the scope {scope}"
    who = "OAuthProxy(optional_scopes=…, scopes_for=…) says who gets it"
    return f"sign in with it: defserve login {auth.resource_url} --scope {scope}; {who}"


async def _format_wider_key(server: Server, caller: Principal, tool: Tool) -> str:
    """How to replace the API key of a caller by one that may call the tool; empty if it has none."""
    keys = server.auth.find_api_keys() if server.auth is not None else None
    if keys is None or not isinstance(caller, ApiKeyPrincipal) or not caller.key:
        return ""
    key = next((each for each in await keys.keys() if each.id == caller.key), None)
    if key is None:
        return ""
    lacks_tool = not caller.may_invoke(tool.name) and not tool.protects_itself
    allowed = [*key.permissions, *([f"ToolInvoke({tool.name})"] if lacks_tool else [])]
    scopes = [*key.scopes, *(scope for scope in tool.options.scopes if caller.missing([scope]))]
    words = [f"--allow {shlex.quote(one)}" for one in allowed] + [f"--scope {shlex.quote(one)}" for one in scopes]
    if key.expires_at is not None:
        words.append(f"--expires {ceil((key.expires_at - time.time()) / 86_400)}d")
    rates = {"--per-minute": key.per_minute, "--per-hour": key.per_hour}
    words += [f"{option} {count}" for option, count in rates.items() if count]
    made = " ".join(["defserve keys create", shlex.quote(key.principal), *words])
    return f"replace the key: {made}; then defserve keys revoke {key.id}"


def _explain_policies(server: Server, call: Call, tool: Tool) -> Iterator[CallDecisionStep]:
    """The access policy, then each permission that the tool needs."""
    mgp = server.mgp
    if mgp.access is None:
        yield CallDecisionStep("access", "passed", "no access policy")
    else:
        policy, name = mgp.access.find_policy_and_name(tool)
        source = policy.decide(call.principal, name, mgp.access.clock()).source.replace("_", " ")
        try:
            mgp.access.check_access(call, tool)
            yield CallDecisionStep(
                "access", "passed", f"allowed by a {source}" if source != "default policy" else f"by {source}"
            )
        except Refused as error:
            yield _make_refusal("access", error)
    security = get_tool_security(tool)
    if security is None:
        return
    for name, status in mgp.permissions.find_permission_statuses(
        call, security.security.permissions, tool.server_id
    ).items():
        gate = f"permission {name}"
        if status.decision == "approved":
            yield CallDecisionStep(gate, "passed", f"granted by the {status.by} policy")
        else:
            fix = f'the operator grants it: Server(permissions="config_only", granted=[{name!r}])'
            yield CallDecisionStep(gate, "refused", status.why, fix)


async def _explain_confirmation(server: Server, call: Call, tool: Tool) -> CallDecisionStep:
    security = get_tool_security(tool)
    if security is None or not security.security.confirmation_required:
        return CallDecisionStep("confirmation", "passed", "not needed: the tool is not marked dangerous")
    # A copy, because the server may be serving others, whose calls are audited.
    mgp, audit = copy(server.mgp), _RecordedAudit(server.mgp.server_id)
    mgp.audit = audit
    try:
        await confirm_call(mgp, call, tool, {})
    except Refused as error:
        from defserve.protocols.mcp.asking.client_requests import can_ask_confirmation

        if not can_ask_confirmation(_make_call(call.session, tool, {"elicitation": {}})):
            return _make_refusal("confirmation", error)
        sentence = "dangerous. A person is asked; a client that cannot ask one is refused"
        return CallDecisionStep("confirmation", "depends", sentence, str(error.data.get("fix", "")))
    if mgp.options.confirm == "never":
        return CallDecisionStep("confirmation", "passed", 'dangerous, and Server(confirm="never") asks nobody')
    if right := audit.details.get("right"):
        sentence = f"dangerous. The right {right} names the tool: that is a yes where no person can be asked"
        return CallDecisionStep("confirmation", "passed", sentence)
    return CallDecisionStep("confirmation", "passed", "dangerous. The client asks its user, or is asked if it can be")


def _make_refusal(gate: str, error: Refused | UnknownTool) -> CallDecisionStep:
    data = error.data if is_object(error.data) else {}
    return CallDecisionStep(
        gate, "refused", error.message, str(data.get("fix") or "see the operator's settings of this server")
    )


# -- the call ----------------------------------------------------------------------------------------------


class _RecordedAudit(AuditTrail):
    """Keeps the details of events instead of sending them."""

    def __init__(self, server_id: str) -> None:
        super().__init__((), server_id, lambda: None)
        self.details: dict[str, Any] = {}

    def report_call_event(self, call: Call, event_type: str, **about: Any) -> None:
        self.details |= about.get("details") or {}


@asynccontextmanager
async def _rehearse_call(server: Server, caller: Principal, tool: Tool) -> AsyncGenerator[Call]:
    """A call of the tool that is never run."""
    engine = AsyncioEngine(1)
    session = Session(server.composition, engine, lambda message: None, counted=False, **get_session_arguments(caller))
    try:
        yield _make_call(session, tool, {})
    finally:
        session.close()
        await engine.close()


def _make_call(session: Session, tool: Tool, capabilities: dict[str, Any]) -> Call:
    offer = Offer(STATELESS_VERSIONS[-1], capabilities, {"name": "defserve", "version": VERSION}, stateless=True)
    params: dict[str, Any] = {"name": tool.name, "arguments": {}}
    return Call(session, 1, "tools/call", params, {}, session.composition.negotiate_terms(offer))
