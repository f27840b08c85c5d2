"""What the events of the topic have, as the code of before knows it."""

from decimal import Decimal

from pydantic import BaseModel

from django_events import schema


@schema("counted")
class Counted(BaseModel):
    n: int
    share: Decimal
    parts: list[dict[str, int]] = []
