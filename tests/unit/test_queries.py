"""Queries of the log are built and compiled without a database, which tests in this folder don't have."""

from django.contrib.contenttypes.models import ContentType
from django.db.models import Count, QuerySet

from django_events.models import Event, ScheduledEvent

LOOKS_UP = "django_events_topic_id(orders)"


def text(queryset: QuerySet) -> str:
    """What Django prints of a query: the values in it are not quoted."""
    return str(queryset.query)


def test_compiling_a_query_of_the_log_asks_no_database():
    orders = Event.objects.of("orders")

    for queryset in [
        orders,
        Event.objects.since("orders", 7)[:10],
        Event.objects.timeline("orders", "7"),
        Event.objects.peek("orders"),
        orders.values("type").annotate(Count("id")),
        orders.union(Event.objects.of("payments")),
        ScheduledEvent.objects.of("orders"),
        ContentType.objects.filter(id__in=orders.values("id")),
        Event.objects.of("it's").filter(id__in=orders.values("id")),
    ]:
        assert LOOKS_UP in text(queryset)
