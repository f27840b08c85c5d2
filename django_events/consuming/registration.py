"""Declared consumers become rows, on every `migrate`; they stay until they are unregistered.

Doing it again changes nothing, and several processes may do it at once.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, OperationalError, transaction
from django.db.models import Max, Min, Q

from django_events import declarations, models, sql
from django_events.consuming import log_positions
from django_events.consuming.queues import filter_terms
from django_events.consuming.streams import layouts
from django_events.consuming.subscribed import SUBSCRIBE
from django_events.consuming.waiting import wait_again
from django_events.exceptions import InUse, Invalid, Refused, UnknownName, did_you_mean
from django_events.matching import FILTER, decides, expression, is_pattern
from django_events.models.functions import ClockTimestamp
from django_events.statements import log_table

SQL = sql.beside(__name__)

ALL = models.Position.ALL
PATIENCE = "2s"  # with a transaction of a program that claims or settles: the transfer of the topic waits as well
PROVEN_BY_HISTORY = {*FILTER, "history"}  # see models.Consumer.changed_at


def sync(using: str) -> list[str]:
    """Register and adapt what the declarations ask for; returns a line for each change.

    Each consumer of a topic has a transaction of its own, under the topic's head.
    """
    declarations.consumers.check()
    changes: list[str] = []
    for declared in declarations.consumers:
        changes += register(using, declared)
    return changes


def register(using: str, declared: declarations.DeclaredConsumer) -> list[str]:
    """Register and adapt this one, as `sync` does all; returns a line for each change."""
    check_filter(using, declared)
    if declared.outcomes is not None:
        _find_topic(using, declared.outcomes, declared)
    changes: list[str] = []
    for name in declared.topics:
        with holding_topic(using, name, declared) as topic:
            changes += adapt(using, declared, topic)
    return changes


@contextmanager
def holding_topic(using: str, name: str, declared: declarations.DeclaredConsumer) -> Iterator[models.Topic]:
    """A transaction that has a topic's head locked: no transfer and no retention changes its log meanwhile."""
    with sql.committed(using):
        topic = _find_topic(using, name, declared)
        sql.fetch(using, sql.shared.lock_head, topic_id=topic.pk)
        yield models.Topic.objects.using(using).select_related("head").get(pk=topic.pk)


def _find_topic(using: str, name: str, declared: declarations.DeclaredConsumer) -> models.Topic:
    topics = models.Topic.objects.using(using)
    topic = topics.filter(name=name).first()
    if topic is None:
        known = topics.values_list("name", flat=True)
        raise UnknownName(
            f"Consumer {declared} is declared for topic {name!r}, at {declared.declared_at}, and the database "
            f"{using!r} has no such topic. {did_you_mean(name, known)}"
        )
    return topic


def check_filter(using: str, declared: declarations.DeclaredConsumer) -> None:
    """Have PostgreSQL evaluate the predicates on values of every kind; Invalid if it can't."""
    _check_predicate(using, declared, "where", declared.where)
    _check_predicate(using, declared, "metadata", declared.metadata)


def _check_predicate(using: str, declared: declarations.DeclaredConsumer, option: str, predicate: str | None) -> None:
    if predicate is None:
        return
    where = f"Consumer {declared}, declared at {declared.declared_at}, has {option}={predicate!r}, which"
    given = dict(declared.vars or {})
    try:
        with transaction.atomic(using):
            named = filter_terms.variables(filter_terms.canonical(using, predicate))
            if missing := sorted(named - set(given)):
                raise Invalid(f"{where} names ${missing[0]}, and vars has no such value: {', '.join(given) or 'none'}.")
            answers = sql.fetch(using, sql.shared.try_predicate, where=predicate, vars=json.dumps(given))
    except DatabaseError as error:
        problem = sql.said(error).splitlines()[0]
        raise Invalid(f"{where} PostgreSQL can't use as a jsonpath predicate: {problem}.") from error
    if not decides(predicate, answers):
        raise Invalid(
            f"{where} is neither true nor false for any value, so no event would match. A predicate compares: "
            "'$.total > 100' and not '$ ? (@.total > 100)', '$.paid == true' and not '$.paid'."
        )


def adapt(using: str, declared: declarations.DeclaredConsumer, topic: models.Topic) -> list[str]:
    """Register it for a topic whose head is locked, or change what is registered; returns a line for each change."""
    described = _described(declared)
    rows = models.Consumer.objects.using(using).select_related("topic")
    # Locked, or a worker that makes deliveries from the log would go by the former filter beyond where this one counts.
    row = rows.filter(name=declared.name, topic=topic).select_for_update(of=["self"], no_key=True).first()
    _refuse_subscription(row, declared)
    if row is None:
        _refuse_name_of_query(using, declared, topic)
        start = log_positions.begin(using, topic, declared.start)
        row = models.Consumer(
            name=declared.name, topic=topic, mode=declared.mode, partitioned=declared.partitioned, **described
        )
        row.filled_until = start - 1
        row.live = declared.mode == "queue" and start == log_positions.find(using, topic, "end")
        row.save(using=using)
        if row.mode == "queue":
            filter_terms.write(using, row)
        _add_positions(using, row, start - 1)
        layouts.arrange(using, row)
        wait_again(using, row)
        is_other = isinstance(declared.start, int) and start != declared.start
        why = f", the end of the log that is nearer to {declared.start}" if is_other else ""
        return [f"Consumer {row}: registered, begins at {start}{why}."]
    _refuse_other_mode(using, row, declared)
    differing = [name for name, value in described.items() if _differ(getattr(row, name), value)]
    changes = [
        f"{name} {getattr(row, name)} → {described[name]}" for name in differing if not name.endswith("_expressions")
    ]
    end = log_positions.find(using, topic, "end")
    if not PROVEN_BY_HISTORY.isdisjoint(differing):  # under the head: what was logged before went by the former ones
        models.Consumer.objects.using(using).filter(pk=row.pk).update(changed_at=ClockTimestamp())
    if not {*FILTER, "ordered", "outcomes"}.isdisjoint(differing):
        row.revision += 1  # workers that know another one claim nothing
    if not set(FILTER).isdisjoint(differing):
        changes.append(_change_filter(using, row, end))
    reordered = "ordered" in differing
    if reordered:
        _change_order(using, row, declared)
        in_order = f"in the order of keys from {topic}/{end} on"
        changes.append(in_order if declared.ordered else "in no order of keys any more, what is pending as well")
    if row.deliveries.using(using).filter(event_id__gte=end).exists():
        _forget_deliveries(using, row)
    if beyond := [p.pk for p in row.positions.using(using) if p.position >= end]:
        # The topic was made anew, and its ids began again: from there, all that comes would be left out.
        row.positions.using(using).filter(pk__in=beyond).update(
            position=0, number=0, attempted=None, careful_until=0, failing_since=None
        )
        _forget_deliveries(using, row)
        row.former_filters = None
        changes.append("its topic was made anew, begins at 1 again")
    changes += _change_positions(using, row, declared, end)
    if changes:
        for name, value in described.items():
            setattr(row, name, value)
        row.save(using=using, update_fields=[*described, "revision", "former_filters"])  # workers write the rest
    if row.mode == "queue" and not set(FILTER).isdisjoint(differing):
        filter_terms.write(using, row)
    if reordered:
        wait_again(using, row)
    return [f"Consumer {row}: {', '.join(changes)}."] if changes else []


def _differ(former: Any, value: Any) -> bool:
    """Whether an option changes. For Python True is 1, and for a predicate it is not."""
    if isinstance(former, dict | list) and isinstance(value, dict | list):
        return json.dumps(former, sort_keys=True) != json.dumps(value, sort_keys=True)
    return bool(former != value)


def _described(declared: declarations.DeclaredConsumer) -> dict[str, Any]:
    """The columns of a consumer's row that follow its declaration."""
    return {
        "types": _listed(declared.types),
        "keys": _listed(declared.keys),
        "where": declared.where,
        "metadata": declared.metadata,
        "vars": None if declared.vars is None else dict(declared.vars),
        "type_expressions": _expressions(declared.types),
        "key_expressions": _expressions(declared.keys),
        "ordered": declared.ordered,
        "delay": declared.delay,
        "history": declared.history,
        "max_pending": declared.max_pending,
        "outcomes": declared.outcomes,
        "lease": declared.lease,
        "retry": declared.retry.as_row(),
    }


def _listed(patterns: tuple[str, ...] | None) -> list[str] | None:
    return None if patterns is None else list(patterns)


def _expressions(patterns: tuple[str, ...] | None) -> list[str] | None:
    """The patterns among these texts as regular expressions, for the trigger, which compares plain texts itself."""
    return [expression(pattern) for pattern in patterns or () if is_pattern(pattern)] or None


def _refuse_other_mode(using: str, row: models.Consumer, declared: declarations.DeclaredConsumer) -> None:
    if row.mode != declared.mode:
        lowest = row.positions.using(using).aggregate(lowest=Min("position"))["lowest"] or 0
        raise Refused(
            f"Consumer {row} is declared with mode={declared.mode!r}, at {declared.declared_at}, and was registered "
            f"with mode={row.mode!r}: how far it is can't be said in the other way. Nothing was changed. Declare "
            f"mode={row.mode!r} again, or give it another name, with start={lowest + 1} to go on where this one is."
        )


def _refuse_subscription(row: models.Consumer | None, declared: declarations.DeclaredConsumer) -> None:
    """Refuse the name of a subscription for a declaration of an app."""
    if row is not None and row.subscribed and declared.declared_at != SUBSCRIBE:
        raise Refused(
            f"Consumer {row} is declared at {declared.declared_at}, and a subscription has the name. Nothing was "
            f"changed. Give it another name, or, if the subscription is needed no more, run: manage.py events "
            f"unsubscribe {row.name} --execute"
        )


def _refuse_name_of_query(using: str, declared: declarations.DeclaredConsumer, topic: models.Topic) -> None:
    """Refuse the name of a streaming query of Spark on another topic: `events pause NAME` would mean both."""
    rows = models.Consumer.objects.using(using).select_related("topic")
    if query := rows.filter(name=declared.name, mode="spark").first():
        raise Refused(
            f"Consumer {declared} is declared for topic {topic.name!r}, at {declared.declared_at}, and a streaming "
            f"query of Spark has the name, on topic {query.topic.name!r}. Nothing was changed. Give it another name, "
            f"or, if the query is gone for good, run: manage.py events unregister {declared.name} --topic "
            f"{query.topic.name} --execute"
        )


def _change_filter(using: str, row: models.Consumer, end: int) -> str:
    """Keep the former filter for the events before the first that the new one is for; says which one that is.

    A queue has deliveries of what was judged by the former one. A stream reads up to the end of the log by it, unless
    it was stopped: then the filter itself may be what is repaired.
    """
    first_id = end
    if row.mode == "queue":
        first_id = end if row.live else row.filled_until + 1
    elif row.failure or row.positions.using(using).filter(stopped_at__isnull=False).exists():
        row.former_filters = None
        return "its filter is other from its positions on, because it was stopped"
    else:
        lowest = row.positions.using(using).aggregate(lowest=Min("position"))["lowest"] or 0
        former = [one for one in row.former_filters or () if one["until"] > lowest]
        if end - 1 > max([lowest, *(one["until"] for one in former)]):
            former.append({"until": end - 1, **{name: getattr(row, name) for name in FILTER}})
        row.former_filters = former or None
    return f"its filter is other from {row.topic}/{first_id} on, events below it are judged by the former"


def _change_order(using: str, row: models.Consumer, declared: declarations.DeclaredConsumer) -> None:
    """Change whether keys are in order, from the end of the log on, while workers are at work.

    What they have in hand stays theirs. In order, a key goes on behind the deliveries of the key that are in hand.
    """
    stand_still = sql.shared.stand_still, {"consumer_ids": [row.pk]}
    try:
        # Redriven deliveries have keys or not, so none is made meanwhile. Who settles locks the lease first, as here.
        with sql.batch(using, stand_still, lock_timeout=PATIENCE):
            if declared.ordered:  # what it has was made without keys
                sql.fetch(using, SQL.lock_leases, consumer_id=row.pk)
                sql.fetch(using, SQL.add_keys.on(log=log_table(row.topic_id)), consumer_id=row.pk)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        raise InUse(
            f"A program claims or settles deliveries of consumer {row} in a transaction that is open for longer than "
            f"{PATIENCE}. Nothing was changed. Try again when that has ended."
        ) from error


def _forget_deliveries(using: str, row: models.Consumer) -> None:
    """Delete the deliveries of a consumer whose topic's ids began again: they are of other events."""
    row.deliveries.using(using).all().delete()
    row.delivery_leases.using(using).all().delete()
    models.Consumer.objects.using(using).filter(pk=row.pk).update(live=False, filled_until=0)


def _change_positions(using: str, row: models.Consumer, declared: declarations.DeclaredConsumer, end: int) -> list[str]:
    """Have the positions follow the topic's partitions, and whether the consumer reads each of them by itself."""
    there = row.positions.using(using).aggregate(lowest=Min("position"), layout=Max("layout"))
    beginning = row.topic.all_layouts[there["layout"] or 0].first_id
    _add_positions(using, row, max(there["lowest"] or 0, beginning - 1))
    changes, partitions = [], _read_now(using, row)
    before = row.partitioned
    if (declared.partitioned != before) != (row.turns_at is not None):
        if declared.partitioned == before:
            row.turns_at = None
        else:  # partitions all come to the end of the log; one position for all is at one id at any time
            row.turns_at = end if before else _next_turn(using, row, end)
            if before:
                beyond = Q(barrier=None) | Q(barrier__gt=end)  # also where a worker has a lease
                row.positions.using(using).filter(beyond).update(barrier=end)
        row.save(using=using, update_fields=["turns_at"])
        changes.append(f"partitioned {before} → {declared.partitioned}")
    layouts.arrange(using, row)
    if row.turns_at is not None and changes:
        changes[-1] += f" at {row.turns_at}, when all before it is handled"
    if row.partitioned and before and (now := _read_now(using, row)) != partitions:
        changes.append(f"partitions {partitions} → {now}")
    return changes


def _next_turn(using: str, row: models.Consumer, end: int) -> int:
    """Where a consumer that reads all partitions together can turn: here, or behind what a worker has in hand."""
    position = row.positions.using(using).get()
    return position.position + 1 if position.token is None else min(end, position.position + 1 + layouts.AHEAD)


def _read_now(using: str, row: models.Consumer) -> int:
    """In how many partitions it is read now."""
    return row.positions.using(using).filter(layout__isnull=False).count()


def _add_positions(using: str, row: models.Consumer, position: int) -> None:
    """Positions in the partitions where it has none, at an id."""
    needed = row.topic.partitions_from(row.topic.layout_at(position + 1))
    partitions = range(needed) if row.partitioned else [ALL]
    there = set(row.positions.using(using).values_list("partition", flat=True))
    models.Position.objects.using(using).bulk_create(
        models.Position(
            consumer_id=row.pk,
            partition=partition,
            position=position,
            number=log_positions.number_at(using, row.topic, partition, position),
        )
        for partition in partitions
        if partition not in there
    )


def next_id(using: str, topic: models.Topic) -> int:
    """The id of the next event that comes into a topic's log, whose head is locked."""
    return log_positions.find(using, topic, "end")


def refuse_in_use(using: str, row: models.Consumer) -> None:
    """Raise InUse while a worker has a lease of it, or claims some."""
    if row.mode == "queue" and not sql.fetch(using, SQL.stand_still_now, consumer_id=row.pk)[0][0]:
        raise InUse(
            f"A worker claims deliveries of consumer {row} now. Nothing was changed. Stop its workers and try again."
        )
    if leases := sql.fetch(using, SQL.current_leases, consumer_id=row.pk):
        partition, holder = leases[0]
        where = "" if partition == ALL else f"in partition {partition} "
        raise InUse(
            f"Consumer {row} is handling events now, {where}by {holder}. Nothing was changed. "
            "Stop its workers and try again."
        )
