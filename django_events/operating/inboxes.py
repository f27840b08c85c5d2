"""Inboxes: registered by `migrate`; paused, begun anew and removed by hand. What was published stays.

Registering again changes nothing but the topic. A declaration of another source waits, until a person says where to
begin there: the position is of the former one.
"""

from django_events import declarations, models, sql
from django_events.declarations.declared_inbox import LONGEST_START
from django_events.declarations.limits import is_storable
from django_events.exceptions import Invalid, Refused, UnknownName, did_you_mean
from django_events.models.buffer import writable
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record_of_topic
from django_events.operating.locks import bounded

SQL = sql.beside(__name__)


def sync(using: str) -> list[str]:
    """Make and adapt what the declarations ask for; returns a line for each change."""
    declarations.inboxes.check()
    changes = [change for declared in declarations.inboxes for change in _sync(using, declared)]
    return changes + _sync_mirrors(using)


def _sync(using: str, declared: declarations.DeclaredInbox) -> list[str]:
    topics = models.Topic.objects.using(using)
    topic = topics.filter(name=declared.topic).first()
    if topic is None:
        known = topics.values_list("name", flat=True)
        raise UnknownName(
            f"Inbox {declared} is declared for topic {declared.topic!r}, at {declared.declared_at}, and the database "
            f"{using!r} has no such topic. {did_you_mean(declared.topic, known)}"
        )
    source, of = str(declared.source), f"Inbox {declared}"
    if sql.fetch(using, SQL.make, name=declared.name, topic_id=topic.pk, source=source, start=declared.start):
        return [f"{of}: registered, from {source} to {declared.topic}."]
    changes = []
    for registered, changed in sql.fetch(using, SQL.adapt, name=declared.name, topic_id=topic.pk, source=source):
        if changed:
            changes.append(f"{of}: to {declared.topic}, and it goes on where it was.")
        if registered != source:
            changes.append(
                f"{of}: declared for {source}, and its position is of {registered}. It waits until you say where to "
                f"begin: manage.py events inbox restart {declared} --from beginning"
            )
    return changes


def pause_inbox(
    inbox: declarations.DeclaredInbox | str, *, reason: str = "", by: str | None = None, using: str | None = None
) -> bool:
    """Let an inbox take in nothing more; returns whether it did until now. Repeating it changes nothing.

    A batch that its worker has read and not published yet is not published. What comes to the source waits there, for
    as long as the source keeps it.
    """
    using = writable(using)
    with bounded(using, f"Inbox {inbox}"):
        row = _locked(using, inbox)
        if row.paused_at is not None:
            return False
        # By its generation, what workers have read by now is not written any more, also if it is resumed at once.
        one = models.Inbox.objects.using(using).filter(pk=row.pk)
        one.update(paused_at=ClockTimestamp(), generation=row.generation + 1)
        record_of_topic(using, row.topic, "pause", by=by, reason=reason, inbox=row.name)
    return True


def resume_inbox(
    inbox: declarations.DeclaredInbox | str, *, reason: str = "", by: str | None = None, using: str | None = None
) -> bool:
    """Let a paused inbox go on where it was; returns whether it was paused. Repeating it changes nothing."""
    using = writable(using)
    with bounded(using, f"Inbox {inbox}"):
        row = _locked(using, inbox)
        if row.paused_at is None:
            return False
        models.Inbox.objects.using(using).filter(pk=row.pk).update(paused_at=None)
        record_of_topic(using, row.topic, "resume", by=by, reason=reason, inbox=row.name)
    return True


def _sync_mirrors(using: str) -> list[str]:
    """To mirrors nothing is published, whatever publishes; to a topic that is none any more, anything is."""
    sources = {topic: str(one.source) for topic, one in declarations.inboxes.mirrors.items()}
    publishing = [one.name for one in declarations.inboxes if not one.keep_ids]
    rows = sql.fetch(using, SQL.mirror, topics=list(sources), sources=list(sources.values()), publishing=publishing)
    return [
        f"Topic {topic}: a mirror of {source}, nothing else is published to it."
        if source
        else f"Topic {topic}: no mirror any more, what is published goes on behind its last event."
        for topic, source in rows
    ]


def restart_inbox(
    inbox: declarations.DeclaredInbox | str,
    *,
    start: str,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> None:
    """Let an inbox begin anew in its source: at its "beginning", behind its "end", or behind one of its messages.

    The source is the one that this process declares; of an inbox that it doesn't declare, the one that it has.
    What it takes in a second time is published a second time. What it has published stays.
    """
    using = writable(using)
    for declared in declarations.inboxes:
        if declared.name == str(inbox) and getattr(declared.source, "is_queue", False):
            raise Refused(
                f"Inbox {inbox} reads a queue, {declared.source}, which has no places to begin at, and has forgotten "
                "what was taken in. Nothing was changed."
            )
    if not is_storable(start) or not 0 < len(start) <= LONGEST_START:
        raise Invalid(f"start is {start!r}, expected 'beginning', 'end', or the id of a message of the source.")
    with bounded(using, f"Inbox {inbox}"):
        row = _locked(using, inbox)
        if dry_run:
            return
        details = {"inbox": row.name, "position": row.position, "start": start}
        record_of_topic(using, row.topic, "restart", by=by, reason=reason, **details)
        row.position, row.start, row.lag = None, start, None
        row.source = next((str(one.source) for one in declarations.inboxes if one.name == row.name), row.source)
        row.generation += 1  # what workers have read by now is not written any more
        row.save(using=using, update_fields=["position", "start", "lag", "source", "generation"])


def remove_inbox(
    inbox: declarations.DeclaredInbox | str,
    *,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> None:
    """Forget an inbox that no app declares any more. What it has published stays.

    Refused while an app declares it; UnknownName where there is none.
    """
    using = writable(using)
    for declared in declarations.inboxes:
        if declared.name == str(inbox):
            raise Refused(
                f"Inbox {inbox} is declared at {declared.declared_at}, so the next migrate would make it again. "
                "Nothing was changed. Remove the declaration first."
            )
    with bounded(using, f"Inbox {inbox}"):
        row = _locked(using, inbox)
        if dry_run:
            return
        record_of_topic(using, row.topic, "remove", by=by, reason=reason, inbox=row.name, position=row.position)
        row.delete(using=using)


def _locked(using: str, inbox: declarations.DeclaredInbox | str) -> models.Inbox:
    rows = models.Inbox.objects.using(using)
    row = rows.select_related("topic").select_for_update(of=("self",)).filter(name=str(inbox)).first()
    if row is None:
        known = rows.values_list("name", flat=True)
        raise UnknownName(f"The database {using!r} has no inbox {str(inbox)!r}. {did_you_mean(str(inbox), known)}")
    return row
