"""What is derived from a log can't be moved along it as other consumers are: what was counted would count twice."""

from collections.abc import Iterable, Sequence

from django_events import models
from django_events.exceptions import Refused
from django_events.outcomes import Move


def refuse_for_rollups(using: str, rows: Sequence[models.Consumer], *, verb: str) -> None:
    """Refused if one of these consumers keeps a roll-up true, which has no events of its own to `verb`."""
    if name := _derived(using, rows):
        raise Refused(
            f"Consumer {name!r} is a roll-up, which counts each event exactly once, and has none to {verb}. Nothing "
            f"was changed. To count anew what the log still has: manage.py events rebuild {name}. To leave events out: "
            f"manage.py events rewind {name} --to ID, with the first one to count again"
        )


def refuse_going_back(using: str, rows: Sequence[models.Consumer], moves: Iterable[Move]) -> None:
    """Refused if a consumer that keeps a roll-up true would get events again. It may leave some out."""
    if any(move.after < move.before for move in moves) and (name := _derived(using, rows)):
        raise Refused(
            f"Consumer {name!r} is a roll-up, which counts each event exactly once: to rewind it would count some "
            f"twice. Nothing was changed. To count anew what the log still has: manage.py events rebuild {name}"
        )


def _derived(using: str, rows: Sequence[models.Consumer]) -> str | None:
    """The name of the first one that is derived."""
    found = models.RollUp.objects.using(using).filter(name__in={row.name for row in rows})
    return found.values_list("name", flat=True).order_by("name").first()
