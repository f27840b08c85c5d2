"""What waits in the buffer, as one look of a transfer sees it: the topics with events, and up to which ticket.

looks = Looks("default", known, final, schedule, setbacks, batch_size=5_000)
with sql.batch("default", looks.question()) as [rows]:
    turn = looks.answered(rows)
"""

from typing import NamedTuple

from django_events import declarations, sql
from django_events.log.ends import Known, Outdated
from django_events.log.mark import FinalTickets
from django_events.log.schedule import Schedule
from django_events.log.setbacks import TopicSetbacks

SQL = sql.beside(__name__)


class Pending(NamedTuple):
    """What one topic has in the buffer: `events` of them up to the ticket `upper`, and more unless complete.

    It fails if its last batch could not be moved, of this transfer or of another one. A mirror's events stay there.
    """

    topic_id: int
    topic: str
    events: int
    upper: int
    complete: bool
    fails: bool
    mirror: bool


class Turn(NamedTuple):
    """What one batch takes, and which tickets were final when it was looked for."""

    final: int
    pending: list[Pending]


class Looks:
    """The looks of one transfer at the buffer of a database, by what it knows of its topics."""

    def __init__(
        self,
        using: str,
        known: dict[int, Known],
        final: FinalTickets,
        schedule: Schedule,
        setbacks: TopicSetbacks,
        *,
        batch_size: int,
        only: int | None = None,
    ) -> None:
        self.using = using
        self._known = known
        self._final = final
        self._schedule = schedule
        self._setbacks = setbacks
        self._batch_size = batch_size
        self._only = only
        self._fingerprint: str | None = None

    @property
    def buffer_file(self) -> str | None:
        """The file of the buffer, for which the marks hold; None before the first look."""
        return None if self._fingerprint is None else self._fingerprint.split()[1]

    def question(self, *, only: int | None = None) -> sql.Question:
        """What to ask, of all topics or of one."""
        return SQL.pending, {
            "topic_ids": list(self._known),
            "marks": [known.mark for known in self._known.values()],
            "only": self._only if only is None else only,
            "batch_size": self._batch_size,
            "scheduled_from": self._schedule.asked(),
        }

    def answered(self, rows: sql.Rows, *, only: int | None = None) -> Turn:
        """What can be moved; Outdated if all that is remembered of topics is worth nothing."""
        final = self._final.upper  # nothing is noted between the question and this
        fingerprint = rows[0][0]
        if self._fingerprint not in (None, fingerprint):
            self._setbacks.forget()
            raise Outdated
        self._fingerprint = fingerprint
        self._schedule.answered(rows[0][-1])
        pending = [Pending(*row[1:-1]) for row in rows if row[1] is not None]
        for p in pending:
            self._known.setdefault(p.topic_id, Known(p.topic))
        if only is None:
            waiting = {p.topic_id for p in pending}
            if self._setbacks:
                self._setbacks.keep(waiting)
            for topic_id, known in self._known.items():
                if topic_id not in waiting:
                    known.mark = max(known.mark, final)
        ours = [p for p in pending if not p.mirror and not self.is_declared_mirror(p.topic_id)]
        return Turn(final, [p for p in ours if not self._setbacks.rest(p.topic_id)])

    def is_declared_mirror(self, topic_id: int) -> bool:
        """Publishing is refused there; but what was published before that may be committed or due only now."""
        mirrors = declarations.inboxes.mirrors
        return bool(mirrors) and topic_id in self._known and self._known[topic_id].name in mirrors
