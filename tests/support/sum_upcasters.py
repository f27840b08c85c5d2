"""An upcaster as Spark's executors import it, of a type whose total was called otherwise before."""

from typing import Any

from django_events import upcaster


@upcaster("order.placed", 1)
def with_total(value: dict[str, Any]) -> dict[str, Any]:
    return {"total": value["sum"]}
