"""Payments: a plain server. It knows nothing of topics, agents or approvals."""

from typing import Annotated

from pydantic import Field

from defserve import Server, moderate

server = Server("payments", "1.0.0")
paid: list[str] = []
Euros = Annotated[float, Field(gt=0, le=10_000, description="How much, in euros.")]


@server.tool
@moderate("com.example.pay")
def pay(to: Annotated[str, "Whom to pay."], euros: Euros) -> str:
    """Pay somebody."""
    paid.append(f"{euros:g} euros to {to}")
    return f"paid {paid[-1]}"


if __name__ == "__main__":
    server.main()
