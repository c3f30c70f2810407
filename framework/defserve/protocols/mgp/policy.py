"""A policy decides about every call of a tool: one function, with the caller, its rights, the tool and the arguments.

    def decide(request: PolicyRequest) -> PolicyDecision:
        if request.tool == "refund" and request.arguments["amount"] > 100:
            return require_confirmation("more than 100")
        return allow_call()

    server = Server("shop", policy=decide)

How it works: the function is asked after all other checks of a caller, with the arguments that the tool would get. It
can only make the rules stricter: what a missing scope, an access policy or a guard refuses never comes here. It fails
closed: an error, a wrong answer and no answer in time refuse the call. What it decides is in the audit, beside how the
call ended, and `defserve why` tells it. Cedar, OPA and others are called from within the function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic_core import to_jsonable_python

from defserve.auth.authority import is_local_user
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.errors import Refused
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import get_trace_id
from defserve.protocols.mgp.terms import RecordedPolicyDecision, get_tool_security

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.protocols.mcp.tools import Tool

POLICY_SECONDS: Final = 10.0
"""How long a policy may take. Until then the call waits."""
MAX_REASON_LENGTH: Final = 500
POLICY_FAILED_TEXT: Final = "the policy of this server could not decide"

log = get_logger("policy")


class PolicyRefused(Refused):
    """The policy of this server has refused a call, or could not decide about it."""

    error_type = "policy_refused"


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One call, as a policy sees it. All of it but `caller` is JSON, and a copy.

    caller        who calls: its `id`, its `kind` ("token", "local", "anonymous", "participant"), the `claims` of its
                  token. Only a "token" and the "local" user were verified
    rights        the scopes of its credential
    is_local      whether it is the user who runs this server: then it has all rights, and `rights` is empty
    tool          the name of the tool; `server_id` is the server behind this one that it belongs to, if it does
    arguments     those of the call, checked against the schema of the tool. What the caller left out is absent
    risk_level    what the tool's author says of it: "safe", "moderate", "dangerous", or empty
    trace_id      names the call in logs and in the audit
    """

    caller: Principal
    rights: frozenset[str]
    is_local: bool
    tool: str
    server_id: str | None
    arguments: Mapping[str, Any]
    risk_level: str
    trace_id: str

    @classmethod
    def from_call(cls, call: Call, tool: Tool, arguments: Mapping[str, Any]) -> PolicyRequest:
        """The request of a call whose arguments were checked."""
        caller, security = identify_caller(call), get_tool_security(tool)
        return cls(
            caller,
            caller.scopes,
            is_local_user(caller),
            tool.name,
            tool.server_id,
            to_jsonable_python(dict(arguments), fallback=str, inf_nan_mode="strings"),
            security.security.risk_level if security is not None else "",
            get_trace_id(call),
        )


class PolicyDecision(NamedTuple):
    """What a policy says of a call. The caller and the audit read the `reason`, so it must hold no secret."""

    outcome: Literal["allow", "refuse", "confirm"]
    reason: str = ""


Policy: TypeAlias = Callable[[PolicyRequest], PolicyDecision | Awaitable[PolicyDecision]]
"""A plain function runs on the event loop, and must not wait. One that asks another process is `async`."""


def allow_call(reason: str = "") -> PolicyDecision:
    """The call may go on, if nothing else refuses it."""
    return PolicyDecision("allow", reason)


def refuse_call(reason: str) -> PolicyDecision:
    """The tool does not run. The caller is told the reason."""
    return PolicyDecision("refuse", reason)


def require_confirmation(reason: str) -> PolicyDecision:
    """A person has to say yes first, whatever `Server(confirm=…)` says. A caller that cannot be asked is refused."""
    return PolicyDecision("confirm", reason)


async def ask_policy(policy: Policy, call: Call, tool: Tool, arguments: Mapping[str, Any]) -> PolicyDecision:
    """What the policy decides, which is also kept with the call for its audit. Raises PolicyRefused."""
    record = call.local(RecordedPolicyDecision)
    try:
        decision = await _decide(policy, PolicyRequest.from_call(call, tool, arguments))
    except Exception as error:
        log.exception("the policy failed at %s, which is refused", tool.name)
        record.outcome, record.reason = "error", type(error).__name__
        raise PolicyRefused(f"{tool.name} was refused: {POLICY_FAILED_TEXT}") from None
    record.outcome, record.reason = decision.outcome, decision.reason[:MAX_REASON_LENGTH]
    if decision.outcome == "refuse":
        raise PolicyRefused(
            f"{tool.name} was refused by the policy of this server: {record.reason}", data={"reason": record.reason}
        )
    return decision


async def _decide(policy: Policy, request: PolicyRequest) -> PolicyDecision:
    decision: Any = policy(request)
    if not isinstance(decision, PolicyDecision) and hasattr(decision, "__await__"):
        from anyio import fail_after

        with fail_after(POLICY_SECONDS):
            decision = await decision
    if not isinstance(decision, PolicyDecision) or decision.outcome not in ("allow", "refuse", "confirm"):
        raise TypeError(f"the policy returned {type(decision).__name__}: return allow_call(), refuse_call(…) or others")
    return decision
