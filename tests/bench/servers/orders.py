"""Model tools, one of each kind: an order of line items in, a receipt with a line each out."""

from pydantic import BaseModel


class Line(BaseModel):
    sku: str
    quantity: int
    unit_price: float
    note: str | None = None


class Order(BaseModel):
    customer: str
    currency: str
    lines: list[Line]


class ReceiptLine(BaseModel):
    sku: str
    amount: float


class Receipt(BaseModel):
    customer: str
    currency: str
    lines: list[ReceiptLine]
    total: float


def priced(order: Order) -> Receipt:
    lines = [ReceiptLine(sku=line.sku, amount=line.quantity * line.unit_price) for line in order.lines]
    return Receipt(
        customer=order.customer, currency=order.currency, lines=lines, total=sum(line.amount for line in lines)
    )


async def price_order(order: Order) -> Receipt:
    """Price an order."""
    return priced(order)


def price_order_sync(order: Order) -> Receipt:
    """Price an order in a worker thread."""
    return priced(order)


def price_order_inline(order: Order) -> Receipt:
    """Price an order on the event loop."""
    return priced(order)
