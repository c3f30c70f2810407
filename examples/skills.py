"""A shop whose server also explains how to use it: one tool, and a skill that says when and how.

    defserve run examples/skills.py

The skill is the folder `skills/refunds`. Clients list it, check every file against its digest, and give it to a model
when it is needed.
"""

from datetime import date
from typing import TypedDict

from defserve import Server, ToolError

server = Server("shop", instructions="For refunds, load the skill skill://refunds/SKILL.md first.")
server.skills("skills")


class Order(TypedDict):
    customer: str
    amount: str
    ordered: date


ORDERS: dict[int, Order] = {
    7: {"customer": "Ada", "amount": "12.50 EUR", "ordered": date(2026, 10, 1)},
    8: {"customer": "Grace", "amount": "3.00 EUR", "ordered": date(2025, 1, 31)},
}


@server.tool
def order(number: int) -> Order:
    """Look up an order: who bought, for how much, when.

    Args:
        number: The number of the order.
    """
    if number not in ORDERS:
        raise ToolError(f"there is no order {number}")
    return ORDERS[number]


if __name__ == "__main__":
    server.main()
