"""Only operators govern a kernel: others grant themselves nothing, read no audit log, and start and end no server.

Each road is tried by method and by tool, with and without a session, and by the tool that calls others, with claims to
be somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import obey_everybody, obey_nobody
from tests.attack.keys import create
from tests.attack.speaking.http import Json
from tests.attack.speaking.mcp import SESSION, STATELESS, Caller, mgp_offer, outcome, tool_call
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("operators")
ALL = ("ToolInvoke(*)", "ToolsListAll", "AdminRead", "AdminWrite")
SECRET = "the secret of the vault"
EXTENSIONS = ("access_control", "audit", "lifecycle", "discovery", "security")

CLAIMS: tuple[Json, ...] = (
    {},
    {"granted_by": "operator", "agent": "operator", "principal": "operator"},
    {"_meta": {"principal": "operator", "agent_id": "operator", "dev.defserve/principal": "operator"}},
)
# What to say for each method, and the tool of the same meaning.
ROADS: Mapping[str, tuple[str, Json]] = {
    "mgp/access/grant": (
        "mgp_access_grant",
        {"entry_type": "server_grant", "agent_id": "mallory", "server_id": "vault", "permission": "allow"},
    ),
    "mgp/access/query": ("mgp_access_query", {"agent_id": "mallory", "server_id": "vault"}),
    "mgp/access/revoke": (
        "mgp_access_revoke",
        {"entry_type": "server_grant", "agent_id": "operator", "server_id": "vault"},
    ),
    "mgp/audit/replay": ("mgp_audit", {}),
    "mgp/health/status": ("mgp_health", {"server_id": "vault"}),
    "mgp/lifecycle/restart": ("mgp_server_restart", {"server_id": "vault"}),
    "mgp/discovery/register": ("mgp_server_register", {"id": "mine", "url": "http://127.0.0.1:9/mcp"}),
    "mgp/discovery/deregister": ("mgp_server_deregister", {"id": "vault"}),
}


def is_refused(reply: Json) -> bool:
    """Whether it is an error, of either kind."""
    return "error" in reply or bool(reply.get("result", {}).get("isError"))


def tries(caller: Caller) -> Iterator[tuple[str, Json]]:
    """Every road with every claim: what was tried, and what came of it."""
    inside = caller.open(mgp_offer(SESSION, *EXTENSIONS))
    for method, (tool, params) in ROADS.items():
        for number, claim in enumerate(CLAIMS):
            said = {**params, **claim}
            yield f"{method}, claim {number}", inside.ask(method, said)
            alone = {**said, "keep": True} if "register" in method else said
            offer = mgp_offer(STATELESS, *EXTENSIONS)
            yield f"{method} alone, claim {number}", caller.alone(method, alone, capabilities=offer)
        yield tool, inside.call(tool, **params)
        yield f"{tool} alone", caller.call_alone(tool, **params)
        yield f"{tool} by mgp_tools_call", caller.call_alone("mgp_tools_call", name=tool, arguments=params)
        dotted = tool.replace("_", ".", 1)
        yield dotted, caller.alone("tools/call", tool_call(dotted, params))


def audit_log(operator: Caller) -> str:
    """All pages of the log."""
    text, seq, has_more = "", 0, True
    while has_more:
        page = operator.call_alone("mgp_audit", since_seq=seq, limit=1000)["result"]["structuredContent"]
        text, seq, has_more = text + str(page["events"]), page["next_seq"], page["has_more"]
    return text


def governed(trial: Trial) -> Served:
    return trial.arena.serve(Kind("kernel"))


@FAMILY.attack("govern a kernel without being its operator", Control(obey_everybody, "^mallory: mgp/"))
def _(trial: Trial) -> None:
    served = governed(trial)
    others = {name: create(served, name, *ALL).token for name in ("mallory", "Operator", "operator2", "kernel")}
    for name, token in others.items():
        caller = Caller(served.place, token)
        for told, reply in tries(caller):
            trial.expect(is_refused(reply), f"{name}: {told}: {outcome(reply)}")
        said = outcome(caller.call_alone("vault_secret"))
        trial.expect(SECRET not in said, f"{name} uses the vault: {said}")
        shown = str(caller.alone("tools/list"))
        trial.expect("mgp_audit" not in shown and "vault_secret" not in shown, f"{name} sees tools of operators")
    for told, reply in tries(Caller(served.place)):
        trial.expect(reply["status"] == 401 or is_refused(reply), f"without a key: {told}: {outcome(reply)}")


@FAMILY.attack("what operators may do", Control(obey_nobody, "no grant is made"))
def _(trial: Trial) -> None:
    """The rule is not that everybody is refused."""
    served = governed(trial)
    operator, agent = (Caller(served.place, create(served, name, *ALL).token) for name in ("operator", "ann"))
    trial.expect(SECRET not in outcome(agent.call_alone("vault_secret")), "an agent needs no grant")
    _, params = ROADS["mgp/access/grant"]
    trial.expect(
        not is_refused(operator.call_alone("mgp_access_grant", **{**params, "agent_id": "ann"})), "no grant is made"
    )
    trial.expect(SECRET in outcome(agent.call_alone("vault_secret")), "what an operator grants does not hold")
    trial.expect("ACCESS_GRANTED" in audit_log(operator), "the audit log does not tell of it")
    revoke = {"entry_type": "server_grant", "agent_id": "ann", "server_id": "vault"}
    operator.call_alone("mgp_access_revoke", **revoke)
    trial.expect(SECRET not in outcome(agent.call_alone("vault_secret")), "what was taken back still holds")
