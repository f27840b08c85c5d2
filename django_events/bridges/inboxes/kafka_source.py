"""Inboxes from topics of Kafka.

    inbox(payments, source=kafka_source("bank.payments"), name="payments-in")

Each partition is read behind an offset that the inbox remembers. Nothing is committed at the broker, and no consumer
group is joined. Offsets have gaps that are no loss: transactions and compaction leave them. What was removed before it
was taken in is what is below the first offset that a partition still has.

The offset alone doesn't prove that the log is the same one. So the inbox also remembers the id of the topic, which one
that was made anew has not, where the brokers tell it (Kafka 2.8), and a digest of the last message of each partition
that it took in: whenever a partition is begun again, that message is read once more, as long as it is there.

It needs confluent-kafka: pip install 'django-events-pg[kafka]'
"""

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from operator import methodcaller
from typing import Any, NamedTuple

from django_events.bridges.brokers import check_package, options_of, said, unmade
from django_events.bridges.inboxes.sources import (
    Found,
    GoneMessages,
    InboxMessage,
    Places,
    SourceUnavailable,
    by_name,
    moment_of,
)
from django_events.bridges.relays.kafka import NAME
from django_events.exceptions import NotReady

SECONDS = 10.0  # for an answer, where the settings don't say
LOOKS = 0.1  # seconds between two looks whether all is there that was there when a reading began
FOLLOWS = 0.02  # seconds within which a message has to come to be of the same batch as the one before
BATCH_BYTES = 32 * 2**20  # of a batch, whose last message may be beyond it
NO_ID = (0, 0)  # of brokers that don't tell the ids of topics

Headers = Sequence[tuple[str, bytes | None]]
_ASKED_FOR_HEADERS = methodcaller("headers")


@dataclass(frozen=True, kw_only=True)
class KafkaSource:
    """A topic of a Kafka as the source of an inbox."""

    topic: str
    broker: str = "kafka"

    def __str__(self) -> str:
        return f"{self.broker} {self.topic}"

    def problems(self) -> Iterator[str]:
        if not isinstance(self.topic, str) or not NAME.fullmatch(self.topic):
            yield f"kafka_source has {self.topic!r}, expected the name of a topic."

    def check_installed(self) -> None:
        check_package("confluent_kafka", "kafka")

    def reader(self) -> "KafkaReader":
        return KafkaReader(self)


def kafka_source(topic: str, *, broker: str = "kafka") -> KafkaSource:
    """An inbox's source: a topic of the Kafka that `DJANGO_EVENTS["BROKERS"]` has under this name, all its partitions.

    The options there are librdkafka's, like "bootstrap.servers".
    """
    return KafkaSource(topic=topic, broker=broker)


class _Range(NamedTuple):
    """What a partition has."""

    first: int  # the offset of the oldest message that is left, or a gap in front of it
    end: int  # the next offset behind all that is committed


class KafkaReader:
    """Two clients of a Kafka: one asks what partitions there are and what they have, the other one reads.

    A broker answers what comes by one connection in turn, and a question for messages waits until there are some.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._admin: Any = None
        self._consumer: Any = None
        self._next: dict[int, int] = {}  # by partition, the offset from which on messages have not been given out
        self._reached: dict[int, int] = {}  # by partition, the end as the consumer found it
        self._proofs: dict[int, tuple[int, str]] = {}  # by partition, the message that has to come first
        self._waited_for: deque[tuple[int, InboxMessage]] = deque()  # read, and not given out
        self._tells_ids = False  # whether the cluster can be asked for ids of topics
        self._topic_id: str | None = None
        self._told = ""  # what the client says about its connections

    def open(self) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        try:
            options = self._options = options_of(self._source.broker)
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        defaults = {"client.id": "django-events", "group.id": "django-events", "check.crcs": True, "log_level": 0}
        # The client must not choose where to read, or remember it. It says where a partition ends, and what no
        # transaction has committed it keeps back.
        needed: dict[str, Any] = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "error_cb": self._note,
        }
        try:
            self._consumer = confluent_kafka.Consumer({**defaults, **options, **needed})
            asking: dict[str, Any] = {"client.id": "django-events", "log_level": 0, **options, "error_cb": self._note}
            self._admin = AdminClient(asking)
        except Exception as error:
            raise SourceUnavailable(f"Kafka {self._source.broker!r}: {unmade(error, options)}.") from None
        try:
            cluster = self._consumer.list_topics(self._source.topic, timeout=self._seconds)
        except Exception as error:
            raise self._unavailable(error) from None
        self._tells_ids = cluster.controller_id in cluster.brokers  # without a controller no broker answers that

    def begin(self, start: str) -> Places:
        topic_id, partitions = self._about()
        ranges = self._ranges(partitions)
        if start == "beginning":
            nexts = {partition: one.first for partition, one in ranges.items()}
        elif start == "end":
            nexts = {partition: one.end for partition, one in ranges.items()}
        elif (moment := _moment(start)) is not None:
            nexts = self._nexts_at(moment, ranges)
        else:
            nexts = self._nexts_behind(start, ranges)
        return {self._log(partition): _place(offset, topic_id) for partition, offset in nexts.items()}

    def read(self, places: Places, most: int) -> Found:
        topic_id, ranges, gone = self._go_to(places)
        messages = self._collect(most, ranges)
        if messages and self._about()[0] != topic_id:
            raise SourceUnavailable(f"The topic {self._source.topic!r} was made anew while it was read.")
        left = sum(max(one.end - self._at(partition), 0) for partition, one in ranges.items())
        return Found(messages, gone, len(messages) + left)

    def wait(self, places: Places, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        if any(self._next.get(partition) != place["next"] for partition, place in _of_partitions(places).items()):
            self._go_to(places)
        while not self._waited_for and (left := deadline - time.monotonic()) > 0:
            if (message := self._polled(left)) is not None:
                self._waited_for.append(message)

    def close(self) -> None:
        with suppress(Exception):
            if self._consumer is not None:
                self._consumer.close()
        self._consumer = self._admin = None

    def _about(self) -> tuple[str | None, list[int]]:
        """The id of the topic, if the brokers tell it, and its partitions; SourceUnavailable if there is none."""
        from confluent_kafka import KafkaException, TopicCollection

        name = self._source.topic
        try:
            if not self._tells_ids:  # all topics, because a question for one may make it
                about = self._admin.list_topics(timeout=self._seconds).topics.get(name)
                if about is None:
                    raise SourceUnavailable(f"Kafka {self._source.broker!r} has no topic {name!r}.")
                return None, sorted(about.partitions)
            asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=self._seconds)
            found = asked[name].result(self._seconds + 1)
        except KafkaException as error:
            if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                raise SourceUnavailable(f"Kafka {self._source.broker!r} has no topic {name!r}.") from None
            raise self._unavailable(error) from None
        except SourceUnavailable:
            raise
        except Exception as error:
            raise self._unavailable(error) from None
        bits = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
        return None if bits == NO_ID else str(found.topic_id), sorted(one.id for one in found.partitions)

    def _ranges(self, partitions: Sequence[int]) -> dict[int, _Range]:
        firsts = self._offsets(partitions, _spec().earliest())
        ends = self._offsets(partitions, _spec().latest())
        return {partition: _Range(firsts[partition], ends[partition]) for partition in partitions}

    def _offsets(self, partitions: Sequence[int], spec: Any) -> dict[int, int]:
        """An offset of each partition; -1 where there is none."""
        from confluent_kafka import IsolationLevel, TopicPartition

        wanted = {TopicPartition(self._source.topic, partition): spec for partition in partitions}
        try:
            asked = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._seconds
            )
            return {one.partition: answer.result(self._seconds + 1).offset for one, answer in asked.items()}
        except Exception as error:
            raise self._unavailable(error) from None

    def _nexts_at(self, moment: datetime, ranges: Mapping[int, _Range]) -> dict[int, int]:
        """In each partition the first message of this moment or a later one, or the end."""
        found = self._offsets(list(ranges), _spec().for_timestamp(int(moment.timestamp() * 1_000)))
        return {partition: one.end if found[partition] < 0 else found[partition] for partition, one in ranges.items()}

    def _nexts_behind(self, start: str, ranges: Mapping[int, _Range]) -> dict[int, int]:
        """Behind the messages that a person names: `1042` in a topic of one partition, `0/1042,1/end` in others."""
        if len(ranges) == 1 and _is_number(start):
            start = f"{next(iter(ranges))}/{start}"
        nexts: dict[int, int] = {}
        for part in start.split(","):
            text, _, at = part.strip().removeprefix(f"{self._source.topic}/").partition("/")
            if not (_is_number(text) and (_is_number(at) or at in ("beginning", "end"))):
                raise SourceUnavailable(
                    f"{start!r} is no place in a topic, expected 'beginning', 'end', a time with its zone, like "
                    "2026-11-27T00:00Z, or the last message of each partition that is not read, like 0/1042,1/end."
                )
            first, end = ranges.get(int(text), _Range(0, 0))
            nexts[int(text)] = first if at == "beginning" else end if at == "end" else int(at) + 1
        if set(nexts) != set(ranges):
            raise SourceUnavailable(
                f"The inbox is to begin behind {start}, and the topic {self._source.topic!r} has the partitions "
                f"{', '.join(map(str, ranges))}: name each of them, like 0/1042, 0/beginning or 0/end."
            )
        for partition, offset in nexts.items():
            if offset > ranges[partition].end:
                raise SourceUnavailable(
                    f"The inbox is to begin behind {offset - 1} of {self._log(partition)!r}, which ends at "
                    f"{ranges[partition].end - 1}. To begin behind what it has now: "
                    "manage.py events inbox restart NAME --from end"
                )
        return nexts

    def _refuse_another(
        self, mine: Mapping[int, dict[str, Any]], topic_id: str | None, ranges: Mapping[int, _Range]
    ) -> None:
        """SourceUnavailable if the topic is not the one of which these places are, as far as can be seen by now."""
        for partition, place in mine.items():
            if topic_id is None and place["topic_id"] is not None:
                raise SourceUnavailable(
                    f"Kafka {self._source.broker!r} doesn't tell the id of the topic {self._source.topic!r} now, so "
                    "that it is the same one can't be proved."
                )
            if place["topic_id"] not in (None, topic_id):
                raise SourceUnavailable(
                    f"The topic {self._source.topic!r} has the id {topic_id}, and the inbox has taken in messages of "
                    f"{place['topic_id']}: it was deleted and made anew. {_ANEW}"
                )
            if partition not in ranges:
                raise SourceUnavailable(
                    f"The topic {self._source.topic!r} has no partition {partition}, and the inbox has taken in "
                    f"messages of it: it was deleted and made anew. {_ANEW}"
                )
            if ranges[partition].end < place["next"]:
                raise SourceUnavailable(
                    f"{self._log(partition)!r} ends at {ranges[partition].end - 1}, and the inbox has taken in up to "
                    f"{place['next'] - 1}: it was deleted and made anew, or its brokers have lost messages. {_ANEW}"
                )

    def _go_to(self, places: Places) -> tuple[str | None, dict[int, _Range], list[GoneMessages]]:
        """Let the consumer read behind these places, if it doesn't by now; what there is, and what is gone."""
        mine = _of_partitions(places)
        topic_id, partitions = self._about()
        ranges = self._ranges(partitions)
        self._refuse_another(mine, topic_id, ranges)
        self._topic_id = topic_id
        gone, nexts = [], {}
        for partition, (first, _) in ranges.items():
            # A partition that is not among the places was added since: all its messages are new.
            passed = mine[partition]["next"] if partition in mine else 0
            nexts[partition] = max(passed, first)
            if first > passed:
                behind = str(passed - 1) if passed else "the beginning"
                place = _place(first, topic_id)
                gone.append(GoneMessages(self._log(partition), first - passed, behind, str(first), place, "offset"))
        if nexts != self._next:
            self._assign(nexts, mine, ranges)
        return topic_id, ranges, gone

    def _assign(
        self, nexts: Mapping[int, int], mine: Mapping[int, dict[str, Any]], ranges: Mapping[int, _Range]
    ) -> None:
        """Begin anew in all partitions, after a look at the last message of each that was taken in."""
        self._next = {}
        self._waited_for.clear()
        self._proofs = {
            partition: (place["last"], place["digest"])
            for partition, place in mine.items()
            if place["last"] is not None and ranges[partition].first <= place["last"]
        }
        if self._proofs:
            self._begin_at({partition: offset for partition, (offset, _) in self._proofs.items()})
            self._prove()
        self._begin_at(nexts)
        self._next = dict(nexts)

    def _begin_at(self, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        self._reached = {}
        try:
            self._consumer.assign([TopicPartition(self._source.topic, *one) for one in offsets.items()])
        except Exception as error:
            raise self._unavailable(error) from None

    def _prove(self) -> None:
        """Until each message that has to come first has come, or is known to be gone. What comes besides is left."""
        deadline = time.monotonic() + self._seconds
        while self._proofs:
            if self._polled(LOOKS) is None and time.monotonic() > deadline:
                raise self._unavailable(TimeoutError("no messages in time, and there are some"))

    def _at(self, partition: int) -> int:
        """The offset behind what was given out, and behind gaps at the end."""
        return max(self._next[partition], self._reached.get(partition, 0))

    def _is_behind(self, ranges: Mapping[int, _Range]) -> bool:
        return any(self._at(partition) < one.end for partition, one in ranges.items())

    def _collect(self, most: int, ranges: Mapping[int, _Range]) -> list[InboxMessage]:
        """Messages as they come, until all is there that was there before; SourceUnavailable if they don't come."""
        messages: list[InboxMessage] = []
        size, deadline = 0, time.monotonic() + self._seconds
        is_behind = self._is_behind(ranges)
        while len(messages) < most and size < BATCH_BYTES and (self._waited_for or is_behind):
            message = self._waited_for.popleft() if self._waited_for else self._polled(FOLLOWS if messages else LOOKS)
            if message is not None:
                partition, found = message
                self._next[partition] = int(found.id) + 1
                messages.append(found)
                size += len(found.body or b"")
                # Mostly there are more in the same partition: then the others need not be looked at.
                is_behind = self._at(partition) < ranges[partition].end or self._is_behind(ranges)
            elif messages:
                break
            elif time.monotonic() > deadline:
                raise self._unavailable(TimeoutError("no messages in time, and there are some"))
            else:  # what came may have been the word that a partition ends
                is_behind = self._is_behind(ranges)
        return messages

    def _polled(self, seconds: float) -> tuple[int, InboxMessage] | None:
        """The next message, if there is one in time; SourceUnavailable if it is not what was taken in before."""
        try:
            message = self._consumer.poll(seconds)
        except Exception as error:
            raise self._unavailable(error) from None
        if message is None:
            return None
        if (told := message.error()) is not None:
            if told.name() == "_PARTITION_EOF":
                self._reached[message.partition()] = message.offset()
                self._proofs.pop(message.partition(), None)  # the message is gone: it proves nothing
            elif message.topic() is None:  # about no partition, as that the group's coordinator can't be found
                self._told = told.str()
            else:
                raise self._unavailable(ClientSaid(f"{message.topic()}/{message.partition()}: {told.str()}"))
            return None
        partition, offset = message.partition(), message.offset()
        headers, unreadable = _headers(message)
        if (proof := self._proofs.pop(partition, None)) is not None and offset == proof[0]:
            if _digest(message, headers) == proof[1]:
                return None
            raise SourceUnavailable(
                f"Message {offset} of {self._log(partition)!r} is not the one that the inbox has taken in: the topic "
                f"was deleted and made anew, or its brokers have lost messages, and given their offsets to others. "
                f"{_ANEW}"
            )
        return partition, self._message(message, partition, offset, headers, unreadable)

    def _message(
        self, message: Any, partition: int, offset: int, headers: Headers, unreadable: dict[str, str]
    ) -> InboxMessage:
        named = by_name(headers)
        fields: Any = named if None not in named.values() else {name: value or b"" for name, value in named.items()}
        try:
            texts = {name.lower(): value.decode() for name, value in fields.items()}
        except UnicodeDecodeError:
            texts = {name.lower(): value.decode("utf-8", "replace") for name, value in fields.items()}
        key = message.key()
        kind, milliseconds = message.timestamp()
        return InboxMessage(
            str(offset),
            self._log(partition),
            partial(_place_behind, message, headers, self._topic_id),
            None if key is None else key.decode("utf-8", "backslashreplace"),
            message.value(),
            texts | unreadable if unreadable else texts,
            fields,
            sent_at=moment_of(milliseconds / 1_000) if kind else None,
        )

    def _log(self, partition: int) -> str:
        return f"{self._source.topic}/{partition}"

    def _note(self, error: Any) -> None:
        """What librdkafka says about its connections, which tells more than that there was no answer."""
        self._told = error.str()

    def _unavailable(self, error: BaseException) -> SourceUnavailable:
        if isinstance(error, SourceUnavailable):
            return error
        more = f" ({said(ClientSaid(self._told), self._options)})" if self._told else ""
        return SourceUnavailable(f"Kafka {self._source.broker!r}: {said(error, self._options)}{more}")


class ClientSaid(Exception):
    """What Kafka or its client says."""


_ANEW = (
    "To take in what it has now: manage.py events inbox restart NAME --from beginning, or --from the time or the last "
    "messages behind which to begin."
)


def _spec() -> Any:
    """What stands for an offset in a question. The client's types don't know it."""
    return import_module("confluent_kafka.admin").OffsetSpec


def _of_partitions(places: Places) -> dict[int, dict[str, Any]]:
    """Places by partition."""
    return {int(log.rpartition("/")[2]): place for log, place in places.items()}


def _place(offset: int, topic_id: str | None, *, last: int | None = None, digest: str | None = None) -> dict[str, Any]:
    return {"next": offset, "topic_id": topic_id, "last": last, "digest": digest}


def _place_behind(message: Any, headers: Headers, topic_id: str | None) -> dict[str, Any]:
    return _place(message.offset() + 1, topic_id, last=message.offset(), digest=_digest(message, headers))


def _digest(message: Any, headers: Headers) -> str:
    """Sixteen digits that another message in the same place would not have."""
    parts = (str(message.timestamp()[1]).encode(), message.key(), message.value())
    said = [b"\0" if part is None else b"\1%d:" % len(part) + part for part in parts]
    for name, value in headers:
        said += name.encode(), b"\0", value or b""
    return hashlib.blake2b(b"".join(said), digest_size=8).hexdigest()


def _headers(message: Any) -> tuple[Headers, dict[str, str]]:
    """The headers of a message, and if they have a name that the client can't decode, none, and why.

    Then the client returns a broken list with an error set. A call through another function is looked at for that,
    and raises a SystemError. A direct one that runs often isn't looked at, and the list ends the process. So does the
    list that a second call returns: all headers are asked for once, and here.
    """
    try:
        return _ASKED_FOR_HEADERS(message) or (), {}
    except (SystemError, UnicodeDecodeError):
        return (), {"unreadable": "A header of it has a name that is no UTF-8, so none of its headers can be read."}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _moment(start: str) -> datetime | None:
    """The time that a start names, with its zone."""
    if _is_number(start):
        return None
    with suppress(ValueError):
        moment = datetime.fromisoformat(start)
        if moment.tzinfo is not None:
            return moment
    return None
