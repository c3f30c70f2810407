"""A shop whose refunds are decided by a policy in Rego, the language of Open Policy Agent, in the same process."""
# pyright: basic

from pathlib import Path
from typing import Annotated, Any

from regopy import Interpreter

from defserve import Server
from defserve.server import PolicyDecision, PolicyRequest

rego = Interpreter()
rego.add_module("shop", Path(__file__).with_suffix(".rego").read_text())


def decide(request: PolicyRequest) -> PolicyDecision:
    question: Any = {
        "caller": {"id": request.caller.id, "kind": request.caller.kind, "rights": sorted(request.rights)},
        "tool": request.tool,
        "arguments": dict(request.arguments),
    }
    rego.set_input(question)
    answer = rego.query("data.shop.decision")
    if not answer.ok():
        raise RuntimeError(str(answer))  # refuses the call
    (decision,) = answer.results[0].expressions
    return PolicyDecision(decision["outcome"], decision["reason"])


server = Server("shop", "1.0.0", policy=decide)


@server.tool
def refund(order: Annotated[str, "Its number."], amount: Annotated[int, "In cents."]) -> str:
    """Pay money back."""
    return f"{amount} cents of order {order} are paid back"


if __name__ == "__main__":
    server.main()
