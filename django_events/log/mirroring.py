"""The log of a mirror: it has the events of another site's log, under the same ids. No transfer writes it.

    log = MirroredLog(using, topic)
    log.begin(5_000, numbers=[2_500, 2_500])       # both in the transaction that notes how far it is
    log.append(rows)

The lock of the topic is the same that a transfer takes, and what comes has to follow where the log ends: so of two
processes that have read the same events one writes them, and the primary key would refuse what is there already.
"""

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from django.db import connections

from django_events import models, sql, telemetry
from django_events.exceptions import Refused
from django_events.log import channel, segments
from django_events.log.quarantine import quarantine_failing
from django_events.phrases import count
from django_events.statements import log_table

SQL = sql.beside(__name__)

HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)  # of a binary COPY without options
TRAILER = b"\xff\xff"
TOPIC_ID = struct.Struct(">hii")  # how many fields a row has, and the first of them with its length
FIELDS = struct.Struct(">h")
IDS = struct.Struct(">hiq")
# As a transfer's: ids that were read must not be taken back by a crash, and a batch is done however long it takes.
WRITING = {"synchronous_commit": "local", "statement_timeout": "0", "lock_timeout": "5s"}


class CopiedRows(NamedTuple):
    """A range of another site's log: what is in it, as a binary COPY has it."""

    rows: Sequence[bytes]  # each of the columns of an event, in their order
    after: int
    last: int
    partitions: int  # into how many the log is divided there
    found_in: Sequence[int]  # the partitions that have some of these events
    absent_until: int  # up to there, what isn't in the log was compacted, or done without; 0 if nothing is missing


class MirroredLog:
    """The log of one topic on one database, for one thread."""

    def __init__(self, using: str, topic: str) -> None:
        self.using = using
        self.topic = topic
        self._row: models.Topic | None = None
        self._room = 0

    def forget(self) -> None:
        """What is known of the topic and its segments may be wrong."""
        self._row, self._room = None, 0

    @property
    def _anew(self) -> str:
        return f"To begin anew, its consumers too: manage.py events remove-topic {self.topic} --force, and migrate."

    def begin(self, at: int, numbers: Sequence[int]) -> None:
        """Let the log begin behind an id, or go on behind it; Refused if it has other events. In a transaction."""
        topic = self._locked()
        end, _ = self._end(topic)
        if end not in (0, at):
            raise Refused(
                f"The log of topic {self.topic!r} ends at {end} here, and can't go on behind {at}: it keeps the ids "
                "of its source. If what is here is right: manage.py events inbox restart NAME --from "
                f"{end}. {self._anew}"
            )
        if sql.fetch(self.using, SQL.waits, topic_id=topic.pk)[0][0]:
            raise Refused(
                f"Events wait to be published to topic {self.topic!r}, which is to have the events of its source only: "
                "no transfer moves them as long as it is declared as a mirror. Take keep_ids=True away, run: manage.py "
                f"migrate --database {self.using}, let them be moved to the log and read, and give the mirror a topic "
                "of its own."
            )
        if end == 0 and at > 0:
            for segment in segments.segments(self.using, topic.pk):
                if segment.end <= at + 1:
                    segments.drop(self.using, topic, segment)
            sql.fetch(self.using, SQL.begin, topic_id=topic.pk, id=at, numbers=json.dumps(list(numbers)))

    def append(self, came: CopiedRows) -> None:
        """Add what came behind the end of the log; Refused if it doesn't follow. In a transaction."""
        topic = self._locked()
        end, partitions = self._end(topic)
        if came.after < end or (came.after > end and came.absent_until < came.after):
            raise Refused(
                f"The log of topic {self.topic!r} ends at {end} here, and the inbox has taken in up to {came.after}: "
                f"something else has written to it, or the topic was made anew. {self._anew}"
            )
        if partitions != came.partitions and came.rows:
            raise Refused(
                f"The source is divided into {count(came.partitions, 'partition')} behind {came.after}, and topic "
                f"{self.topic!r} here into {partitions}: declare it with partitions={came.partitions}, and run: "
                f"manage.py migrate --database {self.using}"
            )
        if topic.compact and came.after > end:
            raise Refused(
                f"Topic {self.topic!r} is compacted here, and the events from {end + 1} to {came.after} are gone: its "
                f"consumers couldn't tell what is missing. Declare it without compact=True. {self._anew}"
            )
        if came.rows and came.last > self._room:
            self._make_room(topic, came)
        self._copy(topic.pk, came.rows)
        if came.absent_until > end:
            kept = sum(1 for row in came.rows if _id_of(row) <= came.absent_until)
            sql.fetch(
                self.using,
                SQL.note_absent,
                topic_id=topic.pk,
                after=end,
                until=came.absent_until,
                came=kept,
            )
        if came.rows:
            told = ",".join(f"{topic.pk}:{partition}" for partition in came.found_in)
            payload = told if len(told) <= channel.LONGEST_PAYLOAD else ""
            sql.fetch(self.using, SQL.tell, channel=channel.LOG, payload=payload)

    def quarantined(self, came: CopiedRows) -> bool:
        """Whether a batch failed because of queue consumers' filters, which are stopped now. Not in a transaction."""
        topic = self._topic()
        with sql.committed(self.using, **WRITING):
            self._locked()
            self._make_room(topic, came)
            return quarantine_failing(self.using, {topic.pk: came.after}, lambda: self._copy(topic.pk, came.rows))

    def told(self, came: CopiedRows) -> None:
        """After the commit."""
        if telemetry.MOVED.observed and came.rows:
            telemetry.MOVED.tell(len(came.rows), self.using, self.topic)

    def _topic(self) -> models.Topic:
        if self._row is None:
            topics = models.Topic.objects.using(self.using).select_related("head")
            self._row = topics.filter(name=self.topic).first()
        if self._row is None:
            raise self._removed()
        return self._row

    def _removed(self) -> Refused:
        return Refused(f"Topic {self.topic!r} was removed. Run: manage.py migrate --database {self.using}")

    def _locked(self) -> models.Topic:
        topic = self._topic()
        if not sql.fetch(self.using, sql.shared.lock_head, topic_id=topic.pk):
            self.forget()
            raise self._removed()
        return topic

    def _end(self, topic: models.Topic) -> tuple[int, int]:
        asked = SQL.end.on(log=log_table(topic.pk), topic_id=topic.pk)
        [[end, partitions]] = sql.fetch(self.using, asked)
        return end, partitions

    def _make_room(self, topic: models.Topic, came: CopiedRows) -> None:
        segments.cover(self.using, topic, until=came.after + 1)
        self._room = segments.extend(self.using, topic, after=came.after, events=came.last - came.after)

    def _copy(self, topic_id: int, rows: Sequence[bytes]) -> None:
        if not rows:
            return
        connection = connections[self.using]
        (count_of,) = FIELDS.unpack_from(rows[0])
        begin = TOPIC_ID.pack(count_of + 1, 4, topic_id)
        # Django leaves the errors of a COPY as the driver's: a caller expects them as Django's.
        with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(SQL.copy.text) as copying:
            copying.write(b"".join([HEADER, *(begin + row[FIELDS.size :] for row in rows), TRAILER]))


def _id_of(row: bytes) -> int:
    event_id: int = IDS.unpack_from(row)[2]
    return event_id
