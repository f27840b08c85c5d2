"""Reading the log of another site for an inbox, by a connection to its PostgreSQL that may do nothing but read.

Ids are dense and nothing comes below one that can be read, so what is behind an id is all that is missing, and what
isn't there was removed: by retention, up to the floor of the topic's head, or by compaction. An event that is missing
and that neither of them has removed is said, and never passed over.

A place is the id of the last event, the incarnation of its topic, and when that event was published and logged. A topic
that was removed and made anew has another incarnation. A server that came back without its last events gives their ids
to others, of other times.
"""

import json
import struct
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from django_events.bridges.brokers import masked, options_of
from django_events.bridges.inboxes.sources import (
    CopyBeginning,
    Found,
    GoneMessages,
    InboxMessage,
    Passed,
    Places,
    SourceUnavailable,
)
from django_events.database_errors import ErrorKind, kind_of
from django_events.drafts import Draft
from django_events.exceptions import NotReady
from django_events.log import channel
from django_events.log.mirroring import TRAILER, CopiedRows
from django_events.matching import condition
from django_events.phrases import without_details
from django_events.reading.dsn import fetch_whole
from django_events.sql.limited import answering_within
from django_events.statements import SMALL, Statement, as_text, beside, log_table

SQL = beside(__name__)

SECONDS = 10.0  # for a connection, and without a word of an answer, where the settings don't say
WINDOW = 50_000  # ids that one question looks at, if most are left out, or were compacted
BATCH_BYTES = 4 * 2**20  # of a batch as it travels, whose last event may be beyond it
LOOKED_AGAIN = 3  # times, while retention removes what is read
HEADER = struct.Struct(">11sii")  # of a binary COPY
BEGIN = struct.Struct(">hiqii")  # of a row: how many fields, and the first two with their lengths
OURS = ("caused_by", "inbox", "message", "origin")  # in the metadata, of things of the other site

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SourceLog:
    """Which topic of which site is read, and which of its events."""

    topic: str
    broker: str
    types: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    where: ClassVar[None] = None  # filters of consumers have more
    metadata: ClassVar[None] = None
    vars: ClassVar[None] = None

    def __str__(self) -> str:
        return f"{self.broker} {self.topic}"

    @property
    def filtered(self) -> bool:
        """Whether it leaves events out."""
        return (self.types, self.keys) != (None, None)


class About(NamedTuple):
    """A topic's log at one moment."""

    incarnation: str
    layouts: list[tuple[int, int]]  # from which id on, how many partitions
    floor: int
    compacted_until: int
    last: int
    times: dict[str, str]  # of the events that were asked for and are there

    @property
    def absent_until(self) -> int:
        return max(self.floor, self.compacted_until)

    def layout_of(self, event_id: int) -> tuple[int, int | None]:
        """Into how many partitions the log is divided at an id, and from which id on otherwise."""
        later = [first for first, _ in self.layouts if first > event_id]
        return [count for first, count in self.layouts if first <= event_id][-1], min(later, default=None)


class LogReader:
    """One connection to the database of another site, which reads one topic."""

    def __init__(self, source: SourceLog, *, copies: bool = False) -> None:
        self._source = source
        self._copies = copies
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._connection: psycopg.Connection[Any] | None = None
        self._topic_id = 0
        self._listens = False

    def open(self) -> None:
        try:
            options = self._options = _expanded(self._source.broker, options_of(self._source.broker))
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        defaults = {
            "client_encoding": "utf8",
            "application_name": "django_events inbox",
            "connect_timeout": max(int(self._seconds), 2),
        }
        with self._said():
            kind = answering_within(self._seconds, whole=False)
            self._connection = kind.connect("", autocommit=True, prepare_threshold=None, **{**defaults, **options})
        self._listen()

    def begin(self, start: str) -> Places:
        return self._begin(start)[0]

    def begin_copy(self, start: str) -> CopyBeginning:
        """`begin` for a log with the same ids."""
        places, at, about = self._begin(start)
        return CopyBeginning(places, at, self._numbers(at, about))

    def _begin(self, start: str) -> tuple[Places, int, About]:
        about = self._about()
        if start not in ("beginning", "end") and not (start.isascii() and start.isdigit() and len(start) < 19):
            raise SourceUnavailable(
                f"{start!r} is no id of an event, expected 'beginning', 'end', or one like 1042, which is not taken in."
            )
        at = {"beginning": about.floor, "end": about.last}.get(start)
        at = int(start) if at is None else at
        if at > about.last:
            raise SourceUnavailable(
                f"The inbox is to begin behind {self._named}/{at}, and the topic ends at {about.last}. "
                "To begin behind what it has now: manage.py events inbox restart NAME --from end"
            )
        if at < about.floor:
            raise SourceUnavailable(
                f"The inbox is to begin behind {self._named}/{at}, and what follows has expired up to {about.floor}. "
                "To take in what is left: manage.py events inbox restart NAME --from beginning"
            )
        return {self._source.topic: self._place(at, self._about(at))}, at, about

    def read(self, places: Places, most: int) -> Found:
        place = places[self._source.topic]
        self._forget_notices()
        about = self._proved(place)
        for _ in range(LOOKED_AGAIN):
            if about.last == place["id"]:
                return Found([], lag=0)
            begin = max(place["id"], about.floor)
            found = self._read(place, begin, about, most)
            if isinstance(found, Found):
                return found
            about = found
        raise SourceUnavailable(f"Retention removes events of {self._named} faster than they are read.")

    def _read(self, place: dict[str, Any], begin: int, about: About, most: int) -> "Found | About":
        """What is behind an id; or how the log is by now, if retention removed some of it meanwhile."""
        partitions, divided_at = about.layout_of(begin + 1)
        upper = min(about.last, begin + WINDOW, (divided_at or about.last + 1) - 1)
        batch = self._copied(begin, upper, most) if self._copies else self._messages(begin, upper, most, place)
        end = batch.ids[-1] if batch.is_cut else upper
        after = self._proved(place, end)
        is_whole = not self._source.filtered and len(batch.ids) == end - begin
        if after.floor > begin and not is_whole:
            return after
        if not self._source.filtered:
            self._refuse_gaps(begin, end, batch.ids, after)
        gone = []
        if begin > place["id"]:
            following = str(batch.ids[0]) if batch.ids else f"behind {begin}"
            gone = [
                GoneMessages(
                    self._source.topic, begin - place["id"], str(place["id"]), following, self._place(begin, after)
                )
            ]
        rows = None
        if self._copies:
            # Also where nothing is missing: numbers of partitions go on from what compaction has left up to there.
            absent = min(after.compacted_until, end) if begin < after.compacted_until else begin if gone else 0
            rows = CopiedRows(batch.rows, begin, end, partitions, batch.partitions, absent)
        reached = self._place(end, after)
        if batch.messages and batch.ids[-1] == end:
            reached = batch.messages[-1].place
        passed = Passed({self._source.topic: reached}, after.last - end, rows)
        return Found(batch.messages, gone, about.last - begin, passed)

    def wait(self, places: Places, seconds: float) -> None:
        seconds = min(seconds, self._seconds / 2)  # no word for longer would be taken for a server that is silent
        deadline = time.monotonic() + seconds
        if not self._listens:
            time.sleep(seconds)
            return
        while (left := deadline - time.monotonic()) > 0:
            with self._said():
                assert self._connection is not None  # noqa: S101
                for notice in self._connection.notifies(timeout=left, stop_after=1):
                    news = channel.read(notice.payload)
                    topic_ids = {topic_id for topic_id, _ in news.partitions} | set(news.topic_ids)
                    if news.everywhere or self._topic_id in topic_ids:
                        return

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.pgconn.finish()  # without a word to a server that may not listen

    def _forget_notices(self) -> None:
        """Those that came while batches were read are about what is read now: they would wake it once for each."""
        if self._listens:
            with self._said():
                assert self._connection is not None  # noqa: S101
                for _ in self._connection.notifies(timeout=0):
                    pass

    def _listen(self) -> None:
        """A standby takes no LISTEN, and behind a pooler it is of no use: then the log is looked at once in a while."""
        try:
            self._ask(lambda connection: connection.execute(SQL.listen.on(channel=channel.LOG).text.encode()))
            self._listens = True
        except SourceUnavailable:
            if self._connection is None or self._connection.closed:
                raise
            self._listens = False

    # --- what is asked

    def _about(self, *ids: int, known: int = 0) -> About:
        """How the log is now, with the times of these events. Its end is not below an id that is known to be there."""
        for _ in range(2):
            if not self._topic_id:
                self._topic_id = self._found()
            asked = SQL.about.on(log=log_table(self._topic_id), topic_id=self._topic_id, known=known)
            rows = self._fetch(asked, ids=[one for one in ids if one])
            for incarnation, partitions, layouts, floor, compacted, last, times in rows:
                divided = [(first, count) for first, count in json.loads(layouts)] or [(1, partitions)]
                return About(incarnation, divided, floor, compacted, last, json.loads(times))
            self._topic_id = 0  # it was removed, and may have been made anew
        raise SourceUnavailable(f"The topic {self._named} is gone.")

    def _found(self) -> int:
        rows = self._fetch(SQL.topic, topic=self._source.topic)
        if not rows:
            raise SourceUnavailable(f"The database of {self._source.broker!r} has no topic {self._source.topic!r}.")
        return int(rows[0][0])

    def _numbers(self, at: int, about: About) -> list[int]:
        """What a log that begins there has to know of the numbers before."""
        partitions, _ = about.layout_of(at + 1)
        most = max(count for _, count in about.layouts)
        if most == 1:
            return [at]
        if partitions == 1:
            raise SourceUnavailable(
                f"The topic {self._named} has one partition now, and was divided into {most}: a log with its ids and "
                "one partition can't tell their numbers. Take it in without keep_ids, as new events."
            )
        asked = SQL.numbers.on(log=log_table(self._topic_id), topic_id=self._topic_id, partitions=most)
        return [number for (number,) in self._fetch(asked, id=at)]

    def _messages(self, begin: int, upper: int, most: int, place: dict[str, Any]) -> "_Batch":
        asked = SQL.events.on(
            log=log_table(self._topic_id),
            topic_id=self._topic_id,
            after=begin,
            upper=upper,
            most=most,
            bytes=BATCH_BYTES,
            value=as_text("e", "value", small=SMALL),
            condition=condition(self._source),
        )
        rows = self._fetch(asked)
        total = rows[0][-1] if rows else 0
        messages = [self._message(row, place) for row in rows]
        return _Batch([row[0] for row in rows], total == most or len(rows) < total, messages)

    def _message(self, row: tuple[Any, ...], place: dict[str, Any]) -> InboxMessage:
        event_id, kind, key, has_value, value, body, metadata, times, _ = row
        logged_at, published_at = (datetime.fromtimestamp(float(one), UTC) for one in times.split())
        said = {"logged_at": logged_at.isoformat(), "published_at": published_at.isoformat()}
        headers, draft = {"type": kind, **said}, None
        try:
            if has_value and value is None:
                raise ValueError("it has a number of very many digits, or is nested very deep")
            given = {"body": body} if body is not None else {"value": None if value is None else json.loads(value)}
            draft = Draft(**given, type=kind, key=key, metadata=_kept(json.loads(metadata), said))
        except (ValueError, RecursionError) as error:
            headers["unreadable"] = f"Its JSON can't be read: {error}"
        return InboxMessage(
            id=str(event_id),
            log=self._source.topic,
            place={"id": event_id, "incarnation": place["incarnation"], "times": times},
            key=key,
            body=body if value is None else value.encode(),
            headers=headers,
            fields={},
            sent_at=published_at,
            draft=draft,
        )

    def _copied(self, begin: int, upper: int, most: int) -> "_Batch":
        asked = SQL.copy.on(
            log=log_table(self._topic_id),
            topic_id=self._topic_id,
            after=begin,
            upper=upper,
            most=most,
            bytes=BATCH_BYTES,
        )

        def copied(connection: psycopg.Connection[Any]) -> list[bytes]:
            with connection.cursor() as cursor, cursor.copy(asked.text.encode()) as copying:
                return [bytes(message) for message in copying]

        rows = _rows(self._ask(copied))
        begins = [BEGIN.unpack_from(row) for row in rows]
        ids = [event_id for _, _, event_id, _, _ in begins]
        # It ends with an event wherever there is one: the log here then ends where the place is.
        return _Batch(ids, bool(rows), [], rows, sorted({partition for *_, partition in begins}))

    # --- what is proved

    def _proved(self, place: dict[str, Any], *ids: int) -> About:
        """How the log is now; SourceUnavailable if a place isn't one of it."""
        about = self._about(place["id"], *ids, known=place["id"])
        if about.incarnation != place["incarnation"]:
            raise SourceUnavailable(
                f"The topic {self._named} is another one than that of which the inbox has taken in up to "
                f"{place['id']}: it was removed and made anew. {self._anew}"
            )
        if about.last < place["id"]:
            about = self._about(place["id"], *ids)  # all of it may have been removed while the end was looked for
        if about.last < place["id"]:
            raise SourceUnavailable(
                f"The topic {self._named} ends at {about.last}, and the inbox has taken in up to {place['id']}: its "
                f"database was restored from a backup, or lost what it had committed last. {self._anew}"
            )
        times = about.times.get(str(place["id"]))
        if place["times"] is not None and times is not None and times != place["times"]:
            raise SourceUnavailable(
                f"The event {self._named}/{place['id']} is another one than the one that the inbox has taken in: its "
                f"database was restored from a backup, or lost what it had committed last, and has given ids anew. "
                f"{self._anew}"
            )
        return about

    def _refuse_gaps(self, begin: int, end: int, ids: Sequence[int], about: About) -> None:
        """What is missing was compacted, or it is not known why it is missing."""
        known = max(begin, about.absent_until)
        if sum(1 for one in ids if one > known) == max(end - known, 0):
            return
        there = set(ids)
        first = next(one for one in range(known + 1, end + 1) if one not in there)
        raise SourceUnavailable(
            f"The event {self._named}/{first} is missing, and neither retention nor compaction has removed it. Nothing "
            "behind it is taken in. What is wrong there, says its manage.py events verify."
        )

    def _place(self, at: int, about: About) -> dict[str, Any]:
        return {"id": at, "incarnation": about.incarnation, "times": about.times.get(str(at))}

    @property
    def _named(self) -> str:
        return f"{self._source.broker}:{self._source.topic}"

    @property
    def _anew(self) -> str:
        if self._copies:
            return (
                "A log with its ids can't go on with other events: remove the topic here and let it be made anew, with "
                "manage.py events remove-topic --force and migrate. If what is here is right and the rest goes on "
                "behind it: manage.py events inbox restart NAME --from the last id here."
            )
        return (
            "To take in what it has now: manage.py events inbox restart NAME --from beginning, or --from the id of the "
            "last event that is not to be taken in."
        )

    # --- how it is asked

    def _fetch(self, statement: Statement, **parameters: Any) -> list[tuple[Any, ...]]:
        return self._ask(lambda connection: fetch_whole(connection, statement, **parameters))

    def _ask(self, ask: Callable[[psycopg.Connection[Any]], T]) -> T:
        with self._said():
            assert self._connection is not None  # noqa: S101
            return ask(self._connection)

    @contextmanager
    def _said(self) -> Generator[None]:
        """Whatever fails is SourceUnavailable, without secrets and without anything of a row."""
        try:
            yield
        except psycopg.Error as error:
            raise SourceUnavailable(
                f"{self._why(error)}{masked(without_details(error).strip(), self._options)}"
            ) from None

    def _why(self, error: psycopg.Error) -> str:
        where = f"The database of {self._source.broker!r}"
        kind = kind_of(error)
        if kind in (ErrorKind.FORBIDDEN, ErrorKind.ROWS_HIDDEN):
            return f"{where} doesn't let this login read the topic. Run there: manage.py events grants --role mirror. "
        if kind is ErrorKind.TABLE_GONE:
            return f"{where} has no such tables of django_events. "
        return f"{where}: "


class _Batch(NamedTuple):
    """What was read: the ids, whether there is more behind the last one, and the events themselves."""

    ids: list[int]
    is_cut: bool
    messages: list[InboxMessage]
    rows: Sequence[bytes] = ()
    partitions: Sequence[int] = ()


def _expanded(broker: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options one by one, of which the secret ones are known by their names."""
    if (dsn := options.pop("dsn", None)) is None:
        return options
    try:
        return {**conninfo_to_dict(dsn), **options}
    except psycopg.Error:
        raise NotReady(
            f"DJANGO_EVENTS['BROKERS'][{broker!r}]['dsn'] is no address of a PostgreSQL database, expected "
            "'postgresql://user:password@host:5432/name' or 'host=… dbname=… user=…'. The text is not shown: it may "
            "hold a password."
        ) from None


def _kept(metadata: Any, times: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of an event as those of a new one. What names things of the other site is put aside."""
    given = metadata if isinstance(metadata, dict) else {}
    aside = {name: given[name] for name in OURS if name in given}
    return {**{name: value for name, value in given.items() if name not in OURS}, "origin": {**aside, **times}}


def _rows(messages: Sequence[bytes]) -> list[bytes]:
    """The rows of a binary COPY: each comes in a message of its own, the header in front of the first."""
    if not messages:
        return []
    _, _, extension = HEADER.unpack_from(messages[0])
    rows = [messages[0][HEADER.size + extension :], *messages[1:]]
    return [row for row in rows if len(row) > len(TRAILER)]
