"""A topic that describes its events, as the code of before has it."""

from decimal import Decimal

from pydantic import BaseModel

from django_events import schema, topic


@schema("counted")
class Counted(BaseModel):
    n: int
    share: Decimal
    parts: list[dict[str, int]] = []


things = topic("things", schemas=[Counted], undescribed="pass", schema_check="off")
