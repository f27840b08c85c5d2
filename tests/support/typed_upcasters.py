"""An upcaster as Spark's executors import it: without Django."""

from typing import Any

from django_events import upcaster


@upcaster("order.billed", 1)
def with_currency(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "currency": "EUR"}
