"""How events of before are read today. Spark's executors import this module, too: it knows nothing of Django."""

from typing import Any

from django_events import upcaster


@upcaster("order.placed", 1)
def with_lines(value: dict[str, Any]) -> dict[str, Any]:
    """An order of one thing is an order of one line."""
    line = {"sku": value["sku"], "quantity": value["quantity"]}
    return {**{name: value[name] for name in ("order", "customer", "total")}, "lines": [line]}
