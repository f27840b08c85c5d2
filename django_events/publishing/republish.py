"""An event of the log, published once more.

publish_again("orders", 1042)
"""

from django_events import declarations, sql
from django_events.conf import settings
from django_events.drafts import Receipt
from django_events.exceptions import NotReady
from django_events.models.events import absent
from django_events.publishing.context import CAUSED_BY, current_cause, current_context
from django_events.publishing.encoding import to_json, window
from django_events.publishing.storing import announce, explained, publishable
from django_events.statements import log_table

SQL = sql.beside(__name__)


def publish_again(
    topic: declarations.DeclaredTopic | str, event_id: int, *, dedup_key: str | None = None, using: str | None = None
) -> Receipt:
    """Publish a copy of an event that is in the log, as a new event of the same topic, for all its consumers.

    In the caller's transaction, if there is one. Type, key, value, body and metadata are copied inside the server, to
    the byte; `copy_of` in the metadata is the address of the original, and in a handler `caused_by` that of the event
    in hand. The partition follows from the key, also where the original named another one. Event.DoesNotExist says that
    the log has no such event, or not any more. Repeating it publishes another copy, unless `dedup_key` is taken: then
    nothing is published, and the receipt says so. The signal event_published is sent.
    """
    declared = declarations.registry.get(topic)
    using = publishable(using)
    dedup_window = window(dedup_key)
    context = current_context()
    why = {"copy_of": f"{declared.name}/{event_id}"}
    if current_cause() is not None:  # the original's cause isn't why there is a copy
        why[CAUSED_BY] = context[CAUSED_BY]
    with explained(using, declared):
        rows = sql.fetch(using, SQL.topic_id, topic=declared.name)
        if not rows:
            raise NotReady(
                f"Topic {declared.name!r} is declared, but not in the database {using!r} yet. "
                f"Run: manage.py migrate --database {using}"
            )
        [[topic_id]] = rows
        found = sql.fetch(
            using,
            SQL.publish_again.on(log=log_table(topic_id), topic_id=topic_id, event_id=event_id),
            topic=declared.name,
            context=to_json("event_context()", context),
            why=to_json("metadata", why),
            wake=settings.WAKE_UPS,
            dedup_key=dedup_key,
            dedup_window=dedup_window,
        )
    if not found:
        raise absent(using, declared, event_id)
    [[ticket, kind]] = found
    if ticket is not None:
        announce(using, declared, [kind])
    return Receipt(declared.name, ticket, new=ticket is not None, using=using)
