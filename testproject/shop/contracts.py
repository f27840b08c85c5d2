"""What the events of orders say. Since version 2 an order has lines; before, it was so much of one thing.

`total` is where it was: roll-ups, filters and SQL read values as they are stored, and no upcaster helps them.
"""

from decimal import Decimal

from pydantic import BaseModel, Field

from django_events import schema


class Line(BaseModel):
    sku: str
    quantity: int = Field(gt=0)

    def __str__(self) -> str:
        return f"{self.quantity} {self.sku}"


@schema("order.placed", version=2)
class OrderPlaced(BaseModel):
    """A customer placed an order."""

    order: int
    customer: str
    lines: list[Line] = Field(min_length=1)
    total: Decimal


@schema("order.placed")
class OrderPlacedBefore(BaseModel):
    """As the code of before publishes it, which is still at work while the next one is deployed."""

    order: int
    customer: str
    sku: str
    quantity: int = Field(gt=0)
    total: Decimal


@schema("order.paid")
class OrderPaid(BaseModel):
    """A customer paid an order."""

    order: int
