"""A shop whose refunds are decided by policies in Cedar: the rules stand apart from the tools."""
# pyright: basic

import json
from pathlib import Path
from typing import Annotated

import cedarpy

from defserve import Server
from defserve.server import PolicyDecision, PolicyRequest, allow_call, refuse_call, require_confirmation

POLICIES = Path(__file__).with_suffix(".cedar").read_text()


def is_permitted(request: PolicyRequest, confirmed: bool) -> bool:
    caller = {
        "uid": {"type": "Caller", "id": request.caller.id},
        "attrs": {"kind": request.caller.kind, "rights": sorted(request.rights)},
        "parents": [],
    }
    question = {
        "principal": f"Caller::{json.dumps(request.caller.id)}",
        "action": f"Action::{json.dumps(request.tool)}",
        "resource": 'Server::"shop"',
        "context": {"confirmed": confirmed, "arguments": dict(request.arguments)},
    }
    answer = cedarpy.is_authorized(question, POLICIES, [caller])
    if answer.diagnostics.errors:
        raise RuntimeError(answer.diagnostics.errors[0])  # refuses the call
    return answer.allowed


def decide(request: PolicyRequest) -> PolicyDecision:
    if is_permitted(request, confirmed=False):
        return allow_call()
    if is_permitted(request, confirmed=True):
        return require_confirmation("the rules want a person to agree")
    return refuse_call("no rule permits it")


server = Server("shop", "1.0.0", policy=decide)


@server.tool
def refund(order: Annotated[str, "Its number."], amount: Annotated[int, "In cents."]) -> str:
    """Pay money back."""
    return f"{amount} cents of order {order} are paid back"


if __name__ == "__main__":
    server.main()
