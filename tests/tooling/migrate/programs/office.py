"""Servers inside a server."""

from fastmcp import FastMCP

billing = FastMCP("Billing")


@billing.tool
def invoice(amount: int) -> str:
    """Write an invoice."""
    return f"{amount} due"


mail = FastMCP("Mail")


@mail.tool
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@mail.resource("mail://inbox")
def inbox() -> str:
    return "empty"


mcp = FastMCP("Office")
mcp.mount(billing, namespace="billing")
mcp.mount(mail)

if __name__ == "__main__":
    mcp.run()
