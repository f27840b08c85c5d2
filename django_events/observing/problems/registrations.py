"""Where the code that looks and the database disagree: kinds `not registered`, `declared otherwise`, `undeclared`."""

from collections.abc import Iterator

from django.utils.translation import gettext

from django_events import declarations, models
from django_events.consuming.subscriptions import declared_otherwise as differing_options
from django_events.consuming.subscriptions import made_by_of
from django_events.observing.findings import Finding
from django_events.observing.problems.situation import Declared, Situation
from django_events.observing.problems.telling import of_consumer, problem, unregister


def not_registered(seen: Situation) -> Iterator[Finding]:
    for consumer, topic in sorted(seen.declared - {(one.consumer, one.topic) for one in seen.standings}):
        what = gettext("declared at %(place)s, and not registered in the database %(database)s.") % {
            "place": declarations.consumers.get(consumer).declared_at,
            "database": repr(seen.using),
        }
        yield problem("not registered", consumer, topic, None, what, f"manage.py migrate --database {seen.using}")


def declared_otherwise(seen: Situation) -> Iterator[Finding]:
    """Consumers whose filter is another one in the code that looks: it is older than what is registered, or newer."""
    names = {consumer for consumer, _ in seen.declared}
    rows = (
        models.Consumer.objects.using(seen.using).filter(name__in=names).exclude(mode="spark").select_related("topic")
    )
    derived = made_by_of(seen.using, declarations.consumers)
    for row in rows.order_by("name", "topic__name"):
        here = declarations.consumers.get(row.name)
        if (row.name, row.topic.name) in seen.declared and (differing := differing_options(row, here, derived)):
            what = gettext(
                "declared at %(place)s with %(options)s as registered: workers of this code leave it alone."
            ) % {
                "place": here.declared_at,
                "options": differing,
            }
            remedy = gettext("Run the code that was registered; or register this one: %(command)s") % {
                "command": f"manage.py migrate --database {seen.using}"
            }
            yield problem("declared otherwise", row.name, row.topic.name, None, what, remedy)


def undeclared(seen: Situation) -> Iterator[Finding]:
    served = seen.declared | subscribed(seen.using)
    for one in seen.standings:
        if one.mode != "spark" and (one.consumer, one.topic) not in served:
            what = gettext("no installed app declares it: no worker serves it, and %(topic)s is kept for it.") % {
                "topic": one.topic
            }
            yield of_consumer(one, "undeclared", what, unregister(seen.using, one))


def subscribed(using: str) -> Declared:
    """The subscriptions, which no app declares, and programs serve."""
    rows = models.Consumer.objects.using(using).filter(subscribed=True)
    return set(rows.values_list("name", "topic__name"))
