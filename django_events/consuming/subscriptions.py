"""A consumer on one of its topics, as it is declared here and registered in the database."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from django_events import declarations, models, sql
from django_events.consuming.unread import UnreadEvent
from django_events.exceptions import NotReady
from django_events.matching import FILTER, condition
from django_events.received import ReceivedEvent
from django_events.statements import log_table

ALL = models.Position.ALL
# How many events a worker reads at once for a handler that takes one at a time.
READ_AHEAD = 100
NEWEST = 2**63 - 1  # an id behind all others

SQL = sql.beside(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerFilter:
    """By which a stream judges events up to an id, as it is kept in its row."""

    until: int
    types: list[str] | None
    keys: list[str] | None
    where: str | None
    metadata: str | None = None
    vars: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """What a worker has to know to serve a consumer on one of its topics, by the layout that it is read by now.

    `first_id` and `partitions` are those of the layout. A consumer that reads all partitions together has no `layout`.
    `outdated` says what is declared otherwise than it is registered: then its events are left to workers of the code
    that was registered. `former` are the filters by which a stream judges the events up to an id, the oldest first. One
    that `expires` is a subscription that goes when nothing serves it for long.
    """

    using: str
    consumer: declarations.DeclaredConsumer
    consumer_id: int
    topic: str
    topic_id: int
    log: str
    layout: int | None
    first_id: int
    partitions: int
    whole: bool
    match: sql.Statement
    former: tuple[tuple[int, sql.Statement], ...] = ()
    revision: int
    ordered: bool
    tells_outcomes: bool = False
    outdated: str = ""
    expires: bool = False
    positions: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{self.consumer.name!r} of {self.topic!r}"

    @property
    def fields(self) -> dict[str, Any]:
        """What a log record is about, for `extra`."""
        return {"database": self.using, "consumer": self.consumer.name, "topic": self.topic}

    @property
    def most(self) -> int:
        """How many events are read at once."""
        return self.consumer.batch_size or READ_AHEAD

    def received(self, rows: Iterable[Sequence[Any]]) -> list[ReceivedEvent]:
        """Events as its handler gets them."""
        return ReceivedEvent.of_rows(rows, topic=self.topic, consumer=self.consumer.name, database=self.using)

    def unread(self, row: Sequence[Any]) -> UnreadEvent:
        """An event whose payload was not read."""
        return UnreadEvent(self.topic, row, consumer=self.consumer.name, database=self.using)

    @property
    def is_queue(self) -> bool:
        """Whether its events have deliveries, instead of a position in each partition."""
        return self.consumer.mode == "queue"

    @property
    def redrive_due(self) -> sql.Statement:
        """Part of a condition on a dead letter `d`: it can be handled again now, in the partition of a position `p`."""
        its_partition = SQL.partition_by_layout.on(first_id=self.first_id, partitions=self.partitions)
        return SQL.redrive_due.on(its_partition=its_partition)

    @property
    def is_dense(self) -> bool:
        """Whether every id is an event for it, so that a range of ids is as many events."""
        return self.whole and not self.filtered

    @property
    def filtered(self) -> bool:
        """Whether there may be events in the topic that are not for it."""
        return self.consumer.filtered or bool(self.former)

    def events_of(self, partition: int) -> sql.Statement:
        """Part of a condition on an event `e`: it is one that a worker of this partition reads."""
        if self.whole:
            return sql.shared.in_topic.on(topic_id=self.topic_id)
        return sql.shared.in_partition.on(partition=partition)

    @property
    def filter_from(self) -> int:
        """The first id that the filter of now is for."""
        return self.former[-1][0] + 1 if self.former else 1

    def filter_behind(self, position: int) -> tuple[sql.Statement, int]:
        """By which filter the next events are judged, and up to which id."""
        return next(((match, until) for until, match in self.former if position < until), (self.match, NEWEST))


def subscriptions(using: str, consumers: Iterable[declarations.DeclaredConsumer]) -> list[Subscription]:
    """All topics of these consumers; NotReady if one of them isn't registered."""
    consumers = list(consumers)
    rows = _rows(using, {(consumer.name, topic) for consumer in consumers for topic in consumer.topics})
    derived = made_by_of(using, consumers)
    return [_subscription(using, consumer, topic, rows, derived) for consumer in consumers for topic in consumer.topics]


class _Registered(NamedTuple):
    """A consumer with its topic, and its positions."""

    row: models.Consumer
    positions: list[models.Position]


_Rows = dict[tuple[str, str], _Registered]  # by consumer and topic


def _rows(using: str, wanted: Set[tuple[str, str]]) -> _Rows:
    """What is registered of these consumers and topics."""
    rows = _of_one_moment(using, wanted)
    if wanted - rows.keys():  # not registered, or since a moment ago, or row-level security hides their positions
        consumers = models.Consumer.objects.using(using).filter(name__in={name for name, _ in wanted})
        known = {(one.name, one.topic.name): _Registered(one, []) for one in consumers.select_related("topic")}
        rows = known | _of_one_moment(using, wanted)
    return rows


def _of_one_moment(using: str, wanted: Set[tuple[str, str]]) -> _Rows:
    """Consumers and their positions by one statement.

    A worker that took the layout from one moment, and from another whether partitions are read together, would read
    all of them in each, or none.
    """
    rows: _Rows = {}
    found = models.Position.objects.using(using).filter(consumer__name__in={name for name, _ in wanted})
    for position in found.select_related("consumer__topic").order_by("consumer_id", "partition"):
        name = position.consumer.name, position.consumer.topic.name
        rows.setdefault(name, _Registered(position.consumer, [])).positions.append(position)
    return rows


def made_by_of(using: str, consumers: Iterable[declarations.DeclaredConsumer]) -> dict[str, Any]:
    """What the tables of the roll-ups among these consumers were made by, by name."""
    names = [one.name for one in consumers if isinstance(one, declarations.DeclaredRollUp)]
    if not names:
        return {}
    return dict(models.RollUp.objects.using(using).filter(name__in=names).values_list("name", "made_by"))


def _subscription(
    using: str,
    consumer: declarations.DeclaredConsumer,
    topic: str,
    rows: _Rows,
    derived: dict[str, Any],
) -> Subscription:
    row, positions = rows.get((consumer.name, topic), (None, []))
    if row is None or row.mode != consumer.mode:
        how = "is not registered" if row is None else f"is registered with mode={row.mode!r}"
        raise NotReady(
            f"Consumer {consumer.name!r} {how} for topic {topic!r} in the database {using!r}. "
            f"Run: manage.py migrate --database {using}"
        )
    index = next((position.layout for position in positions if position.layout is not None), None)
    layout = row.topic.all_layouts[-1 if index is None else index]
    return Subscription(
        using=using,
        consumer=consumer,
        consumer_id=row.pk,
        topic=topic,
        topic_id=row.topic_id,
        log=log_table(row.topic_id),
        layout=index,
        first_id=layout.first_id,
        partitions=layout.partitions,
        whole=not row.partitioned or row.topic.is_undivided,
        match=condition(consumer),
        former=_former(row, positions),
        revision=row.revision,
        ordered=row.ordered,
        tells_outcomes=row.outcomes is not None,
        expires=row.expires_after is not None,
        outdated=declared_otherwise(row, consumer, derived),
        positions=tuple((p.pk, p.partition) for p in positions if p.layout is not None or p.partition == ALL),
    )


def declared_otherwise(row: models.Consumer, consumer: declarations.DeclaredConsumer, derived: dict[str, Any]) -> str:
    """What of the filter is declared here otherwise than it is registered; empty if nothing is.

    Of a roll-up also what its table is made by: see `made_by_of`.
    """
    said = [filter_otherwise(row, consumer)]
    if isinstance(consumer, declarations.DeclaredRollUp):
        said.append(consumer.differs_from(derived.get(consumer.name, {})))
    return ", ".join(filter(None, said))


def filter_otherwise(row: models.Consumer, consumer: declarations.DeclaredConsumer) -> str:
    """What of the filter is declared here otherwise than it is registered; empty if nothing is."""
    here = {name: getattr(consumer, name) for name in FILTER}
    declared = {name: list(value) if isinstance(value, tuple) else value for name, value in here.items()}
    differing = [name for name, value in declared.items() if value != getattr(row, name)]
    return ", ".join(f"{name}={declared[name]!r} instead of {getattr(row, name)!r}" for name in differing)


def refuse_outdated(found: Iterable[Subscription]) -> None:
    """NotReady for a caller who wants all to be served, where one is declared otherwise than it is registered."""
    for one in found:
        if one.outdated:
            raise NotReady(
                f"Consumer {one} is declared with {one.outdated}, as it is registered in the database {one.using!r}. "
                f"Run: manage.py migrate --database {one.using}"
            )


def judged(row: models.Consumer, after: int, upper: int) -> Iterator[tuple[sql.Statement, int, int]]:
    """By which filter the events behind an id are judged, up to another one: each with where it begins and ends."""
    for one in [FormerFilter(**former) for former in row.former_filters or ()]:
        if after < one.until and after < upper:
            yield condition(one), after, min(one.until, upper)
            after = one.until
    if after < upper:
        yield condition(row), after, upper


def _former(row: models.Consumer, positions: Sequence[models.Position]) -> tuple[tuple[int, sql.Statement], ...]:
    lowest = min((position.position for position in positions), default=0)
    former = [FormerFilter(**one) for one in row.former_filters or ()]
    return tuple((one.until, condition(one)) for one in former if one.until > lowest)
