"""Relays and inboxes that would send or take what is not theirs, or that lack a broker or its client."""

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register

from django_events import conf
from django_events.declarations import DeclaredInbox, DeclaredRelay, consumers, inboxes, registry
from django_events.exceptions import Invalid, Refused, did_you_mean


@register(Tags.compatibility)
def check_relays(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """Two relays into one stream: each takes what the other one sent for what it has sent itself."""
    filled: dict[Any, DeclaredRelay] = {}
    for relay in consumers:
        to: Any = getattr(relay, "to", None)
        stream = getattr(to, "stream", None)  # of Redis and JetStream; Kafka compares nothing
        if not isinstance(relay, DeclaredRelay) or not isinstance(stream, Hashable) or stream is None:
            continue
        place = type(to), getattr(to, "broker", ""), stream, relay.partitioned
        if (other := filled.setdefault(place, relay)) is not relay and other.name != relay.name:
            yield Error(
                f"Relays {other.name!r} and {relay.name!r} fill the same stream, {stream!r} of {place[1]!r}: each "
                "would take for sent what it has not.",
                hint=f"Give each a stream of its own. It is declared at {relay.declared_at}.",
                id="django_events.E019",
            )


@register(Tags.compatibility)
def check_inboxes(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    topics, wrong = {topic.name for topic in registry}, set()
    taken: list[DeclaredInbox] = []
    for inbox, problem in inboxes.problems():
        wrong.add(inbox.name)
        yield Error(problem, hint=f"It is declared at {inbox.declared_at}.", id="django_events.E020")
    for inbox in inboxes:
        if inbox.topic not in topics:
            yield Error(
                f"Inbox {inbox.name!r} is of topic {inbox.topic!r}, which no installed app declares.",
                hint=f"{did_you_mean(inbox.topic, topics)} It is declared at {inbox.declared_at}.",
                id="django_events.E020",
            )
        if inbox.name in wrong:
            continue
        # A queue gives each message to one of them, and a transform may leave out what another inbox takes.
        if inbox.transform is None and not getattr(inbox.source, "is_queue", False):
            # What sources say of themselves is for people: those of the same topic may take other types of its events.
            if other := next((one for one in taken if (one.source, one.topic) == (inbox.source, inbox.topic)), None):
                yield Error(
                    f"Inboxes {other.name!r} and {inbox.name!r} take the same source, {inbox.source}, into topic "
                    f"{inbox.topic!r}: each of its messages would become two events.",
                    hint=f"Leave one of them out. It is declared at {inbox.declared_at}.",
                    id="django_events.E020",
                )
            taken.append(inbox)
        try:
            inbox.source.check_installed()
        except Refused as error:  # a warning: it stops this inbox, and must not stop the others
            hint = "It will not be served; the others will."
            yield checks.Warning(f"Inbox {inbox.name!r} can't read: {error}", hint=hint, id="django_events.W002")


@register(Tags.compatibility)
def check_brokers(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterable[CheckMessage]:
    """A broker that the settings don't have. Where they have none, as in a process that only publishes, all is well."""
    relays = [(f"Relay {one.name!r}", one.to, one.declared_at) for one in consumers if isinstance(one, DeclaredRelay)]
    sources = [(f"Inbox {one.name!r}", one.source, one.declared_at) for one in inboxes]
    known = _brokers()
    for what, bridge, declared_at in [*relays, *sources]:
        broker: object = getattr(bridge, "broker", None)
        if known and isinstance(broker, str) and broker not in known:
            yield checks.Warning(
                f"{what} is of the broker {broker!r}, which DJANGO_EVENTS['BROKERS'] doesn't have.",
                hint=f"{did_you_mean(broker, known)} It is declared at {declared_at}.",
                id="django_events.W010",
            )


def _brokers() -> dict[str, Any]:
    """The brokers in the settings; none where their value can't be used, which another check says."""
    with suppress(Invalid):
        return conf.settings.BROKERS
    return {}
