"""What an erasure refuses before anything is changed."""

from collections.abc import Mapping, Sequence

from django.db import connections

from django_events import models, sql
from django_events.exceptions import Invalid, Refused
from django_events.statements import log_table


def refuse(using: str, key: str | None, ids: Sequence[int], *, reason: str, forget_key: bool, dry_run: bool) -> None:
    """Refuse arguments that contradict each other, and a call inside a transaction."""
    if (key is None) == (not ids):
        raise Invalid("Say either a key or the ids of events. Nothing was changed.")
    if forget_key and key is None:
        raise Invalid("forget_key is about a key, and ids were given. Nothing was changed. Say the key.")
    if not reason.strip():
        raise Invalid("Events are erased for a reason, for the record: reason is empty. Nothing was changed.")
    if not dry_run and connections[using].in_atomic_block:
        raise Refused(
            "Events are erased in small transactions, so no session waits for long: not inside of one of the caller's."
            " Nothing was changed."
        )


def refuse_unreadable(ids: Sequence[object], *, texts: Mapping[str, object]) -> None:
    """Refuse values that the database would reject half way."""
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise Invalid(f"{name} is {text!r}, expected a str. Nothing was changed.")
        if text is not None and "\0" in text:
            raise Invalid(f"{name} has a NUL character, which the database can't keep. Nothing was changed.")
    for event_id in ids:
        if not isinstance(event_id, int) or isinstance(event_id, bool) or event_id < 1:
            raise Invalid(f"{event_id!r} is no id of an event, expected 1, 2, 3 … Nothing was changed.")


def refuse_unknown(using: str, topic: models.Topic, ids: Sequence[int]) -> None:
    """Refuse ids that the log has not reached."""
    if not ids:
        return
    floor = models.TopicHead.objects.using(using).get(topic=topic).id_floor
    end = sql.shared.last_id.on(log=log_table(topic.pk), topic_id=topic.pk, floor=floor)
    with sql.by_index(using):
        [[last]] = sql.fetch(using, end)
    if ids[-1] > last:
        raise Refused(
            f"There is no event {topic.name}/{ids[-1]}: the log ends at {last}. Nothing was changed. Look for the ids "
            "with: manage.py events peek."
        )
