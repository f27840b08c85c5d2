"""Where customers order. The page shows what has become of an order at once: it waits for its own writes."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from django_events import reads_own_writes, sse
from django_events.models import Event
from testproject.shop import events, orders
from testproject.shop.models import OrderStatus, Product

SHOWN = 10


@reads_own_writes(events.follow, events.earnings, timeout=timedelta(seconds=2))
def counter(request: HttpRequest) -> HttpResponse:
    """The newest orders, and what was taken today; a POST orders."""
    if request.method == "POST":
        return _order(request)
    now = timezone.now()
    days = events.earnings.between(now - timedelta(days=1), now).every("1 day").order_by("-bucket")[:1]
    context = {
        "products": Product.objects.order_by("sku"),
        "orders": OrderStatus.objects.order_by("-order_id")[:SHOWN],
        "today": days[0] if days else None,
        "late": not request.reads_own_writes,  # type: ignore[attr-defined]  # the middleware says so
        "placed": request.GET.get("placed", ""),
    }
    return render(request, "shop/counter.html", context)


def live(request: HttpRequest) -> HttpResponse:
    """What happens to orders, as it happens: the newest events, and those that `stream` sends behind them."""
    newest = list(Event.objects.peek(events.orders, limit=SHOWN))
    last = newest[0].id if newest else 0
    return render(request, "shop/live.html", {"events": newest, "position": f"orders/{last}"})


stream = sse(events.orders, authorize=lambda request: {})


def _order(request: HttpRequest) -> HttpResponse:
    product = Product.objects.filter(sku=request.POST.get("sku", "")).first()
    if product is None:
        return HttpResponse("There is no such product.", status=400)
    customer = request.POST.get("customer", "")[:100] or "a guest"
    try:
        order = orders.place_order(customer, product, 1)
    except orders.OutOfStock:
        orders.restock(product, 200)
        order = orders.place_order(customer, product, 1)
    return redirect(f"/?placed={order.pk}")
