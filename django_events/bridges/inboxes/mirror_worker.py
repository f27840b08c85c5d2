"""The worker of a mirror, an inbox that keeps the ids of another site's log: its rows go into our log as they are.

worker = MirrorWorker("default", orders_from_berlin)
run(worker, stop)
"""

from typing import Any

from django.db import DatabaseError

from django_events import sql
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.bridges.inboxes.taking_in import InboxRow, Intake, copy_in
from django_events.declarations import DeclaredInbox
from django_events.exceptions import EventsError
from django_events.log.mirroring import MirroredLog


class MirrorWorker(InboxWorker):
    """Serves one mirror on one database, in one thread."""

    def __init__(self, using: str, inbox: DeclaredInbox, *, once: bool = False) -> None:
        super().__init__(using, inbox, once=once)
        self._log = MirroredLog(using, inbox.topic)

    def reset(self) -> None:
        super().reset()
        self._log.forget()

    def _reason_to_wait(self, row: InboxRow) -> str:
        return ""  # it writes the log beside the buffer, and what consumers have not passed is in the other site's, too

    def _new_reader(self) -> Any:
        return self._source.copying_reader()

    def _beginning(self, reader: Any, start: str) -> Intake:
        begins = reader.begin_copy(start)
        return Intake(begins_at=begins.places, begins=begins)

    def _written(self, row: InboxRow, intake: Intake) -> bool:
        written = self._copied(row, intake)
        if written and intake.rows is not None:
            self._log.told(intake.rows)
        return written

    def _copied(self, row: InboxRow, intake: Intake) -> bool:
        """Copy it in; once more where a segment was missing, or a queue consumer's filter failed and is stopped now."""
        try:
            return copy_in(self.using, row, self._log, intake)
        except EventsError:
            self._log.forget()
            raise
        except DatabaseError as error:
            self._log.forget()
            kind = sql.kind_of(error)
            was_dropped = kind is sql.ErrorKind.NO_SEGMENT  # by retention, which has cut the last segment
            if not was_dropped and not (kind.of_log and intake.rows is not None and self._log.quarantined(intake.rows)):
                raise
        return copy_in(self.using, row, self._log, intake)
