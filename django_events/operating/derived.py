"""What is derived from a log can't be moved along it as other consumers are: what was counted would count twice."""

from collections.abc import Iterable, Sequence

from django_events import declarations, models
from django_events.exceptions import Refused
from django_events.models.databases import for_database
from django_events.outcomes import Move


def refuse_derived(using: str, rows: Sequence[models.Consumer], *, verb: str) -> None:
    """Refused if one of these consumers keeps a table true: events that come again would count twice there."""
    if name := _derived(using, rows):
        raise Refused(
            f"Consumer {name!r} keeps a table in which events would count twice if they came again, so there is no "
            f"{verb} of it. Nothing was changed. To fold all of its log anew: "
            f"manage.py events rebuild {name}{for_database(using)}"
        )


def refuse_rolled_up(using: str, rows: Sequence[models.Consumer], *, verb: str) -> None:
    """Refused if one of these consumers keeps a roll-up true, which folds ranges of ids and has no event in hand."""
    if name := next(iter(sorted(_rolled_up(using, rows))), None):
        raise Refused(
            f"Consumer {name!r} is a roll-up, which has no single event to {verb}. Nothing was changed. To leave "
            f"events out: manage.py events rewind {name} --to ID{for_database(using)}, with the first one to count "
            "again"
        )


def refuse_going_back(using: str, rows: Sequence[models.Consumer], moves: Iterable[Move]) -> None:
    """Refused if a consumer that keeps a table true would get events again. It may leave some out."""
    if any(move.after < move.before for move in moves):
        refuse_derived(using, rows, verb="rewind")


def _derived(using: str, rows: Sequence[models.Consumer]) -> str | None:
    """The name of the first one that is derived: that is declared so, or has a table of figures."""
    names = {row.name for row in rows}
    declared = {one.name for one in declarations.consumers if one.derived and one.name in names}
    return next(iter(sorted(declared | _rolled_up(using, rows))), None)


def _rolled_up(using: str, rows: Sequence[models.Consumer]) -> set[str]:
    found = models.RollUp.objects.using(using).filter(name__in={row.name for row in rows})
    return set(found.values_list("name", flat=True))
