"""One producer of Kafka: it is handed messages, waits for the answers to them, and says what goes wrong.

producer = KafkaProducer(broker, settings_of(broker))
with producer.explained():                             # what Kafka or its client raises, as TargetUnavailable
    answers, refused = producer.answers_to(messages)   # None for each that is acknowledged
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, libversion

from django_events.bridges.brokers import masked, options_of, said, unmade
from django_events.bridges.relays.answers import UNANSWERED
from django_events.bridges.relays.targets import Overtaken, RelayMessage, TargetUnavailable
from django_events.exceptions import MessageRefused, NotReady

SECONDS = 10.0  # for the answers to a batch, where the settings don't say
GIVING_UP = 0.5  # for the client to say what it has given up
CREATION = 2.0  # seconds that a cluster may take to create a topic, where it does that by itself
ANSWERS_TAKEN = 1_000  # messages, behind which answers are taken: the client's queue has those that are not
PREFIX = "ce_"  # of attributes, as CloudEvents' binding for Kafka says
ANY_PARTITION, NOW = -1, 0  # as the client's own defaults
MOST_TOPICS = 10_000  # that are known to be there
TIMEOUT, LONGEST = "transaction.timeout.ms", 60_000  # of a transaction, where the settings don't say
# The settings of a broker that don't go to the client: one is ours, and two are other names of what is always ours.
NOT_TAKEN = {"timeout", "delivery.timeout.ms", "request.required.acks"}
REFUSED = {
    "transactional.id": "No two producers can share one: say kafka(…, transactional_id=…) where a relay uses it.",
    "default.topic.config": "It would override what is always ours: say what is in it beside it.",
}
FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}  # another one has the transactional id by now
REBOOTSTRAPS = 0x020A0000  # the version from which the client asks the configured servers again when it knows none
ENDED = {"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE"}  # what the client says of messages when their transaction failed
NO_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION"}
SILENT = logging.Logger("django_events.relays.kafka", logging.CRITICAL + 1)
# Errors about what is in a record batch, by Kafka's names; the last one is the client's own.
OF_A_BATCH = {
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_MSG",
    "_INVALID_DIFFERENT_RECORD",
}


def settings_of(broker: str) -> dict[str, Any]:
    """What the settings say of a broker; TargetUnavailable if no relay can use that."""
    try:
        options = options_of(broker)
    except NotReady as error:
        raise TargetUnavailable(str(error)) from None
    for name, why in REFUSED.items():
        if name in options:
            raise TargetUnavailable(f"DJANGO_EVENTS['BROKERS'][{broker!r}] has {name!r}. {why}")
    return options


def largest_of(options: dict[str, Any]) -> int:
    """Bytes of one message; TargetUnavailable if the settings say no number."""
    try:
        return int(options.get("message.max.bytes", 1_000_000))
    except ValueError as error:
        raise TargetUnavailable(f"message.max.bytes in the settings is no number: {error}") from None


def sends_only(options: dict[str, Any]) -> bool:
    """Whether nothing but Kafka's client is at work in `send`: it calls functions of the settings there.

    One that logs in may read its token from the database.
    """
    return not any(map(callable, options.values()))


class KafkaProducer:
    """An idempotent producer, which waits for all replicas."""

    def __init__(self, broker: str, settings: dict[str, Any], *, transactional_id: str | None = None) -> None:
        self._broker, self._settings, self._is_transactional = broker, settings, transactional_id is not None
        self._heard: list[str] = []  # what the client says of its connections
        self._handed, self._there = 0, set[str]()
        self.seconds: float = settings.get("timeout", SECONDS)
        defaults = {
            "client.id": "django-events",
            "linger.ms": 5,
            "enable.sparse.connections": False,  # else the first message waits for half a second or more, see #3848
            "queue.buffering.max.messages": 100_000,
        }
        # What keeps a relay from losing or reordering is not for the settings to say. The client gives no message up by
        # itself: one behind it, of the same key, could still be taken. `close` gives all up together.
        kept: dict[str, Any] = {
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "delivery.report.only.error": True,  # one call of ours for each message would take as long as to make it
            "partitioner": "murmur2_random",  # as Java's clients: a key has one partition
            "logger": SILENT,  # or the client writes to stderr that another producer came later
        }
        if transactional_id is not None:  # then none may take longer than its transaction
            kept["transactional.id"] = transactional_id
            kept["message.timeout.ms"] = settings.get(TIMEOUT, LONGEST)
            if libversion()[1] >= REBOOTSTRAPS:  # after it the client may wait for its coordinator for ever
                kept["metadata.recovery.strategy"] = "none"
        try:
            self.client = Producer({**defaults, **self.connecting(), **kept})
        except Exception as error:
            raise TargetUnavailable(f"Kafka {broker!r}: {unmade(error, settings)}.") from None

    def connecting(self) -> dict[str, Any]:
        """What the settings say, as a client takes it, which tells us what is wrong with its connections."""
        options = {name: value for name, value in self._settings.items() if name not in NOT_TAKEN}
        heard = self._heard  # a callback that knew this object would keep the client at work when nothing else does

        def note(error: Any) -> None:
            heard[:] = [error.str()]

        return {"log_level": 0, **options, "error_cb": note}

    def lacks(self, topic: str) -> str | None:
        """Why nothing can be sent to a topic, if it isn't there by now.

        Asking for it creates it where the cluster does that. Kafka says the same of a topic that the login may not see,
        whether it is there or not.
        """
        deadline = time.monotonic() + min(self.seconds, CREATION)
        while topic not in self._there:
            error = self.client.list_topics(topic, timeout=self.seconds).topics[topic].error
            if error is None:
                if len(self._there) >= MOST_TOPICS:
                    self._there.clear()
                self._there.add(topic)
            elif error.name() not in NO_TOPIC:
                return None
            elif error.name() == "TOPIC_AUTHORIZATION_FAILED":
                return f"its login may not see the topic {topic!r}, if there is one ({error.str()})"
            elif error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                return f"it has no topic {topic!r}"
            else:
                time.sleep(0.1)
        return None

    def answers_to(self, messages: Sequence[RelayMessage]) -> tuple[list[Any], Any]:
        """Send messages, and wait: None for each that is acknowledged, else an error, or UNANSWERED if time was up.

        They end in front of the first that the client itself refuses, if there is one: its error is returned, too.
        """
        answers: list[Any] = [None] * len(messages)

        def note(index: int, error: Any, message: Any) -> None:
            answers[index] = error

        produce = self.client.produce
        for index, message in enumerate(messages):
            named, answered = {**message.attributes, **message.headers}, partial(note, index)
            # By position: the client makes a text of each keyword, to look it up.
            of: Any = message.route.to, message.body, message.key, ANY_PARTITION, answered, None, NOW, named
            try:
                produce(*of)
            except (BufferError, KafkaException) as error:
                if (refused := self._refused(error, partial(produce, *of))) is not None:
                    del answers[index:]
                    return self._wait(answers), refused
            self._handed += 1
            if self._handed % ANSWERS_TAKEN == 0:
                self.client.poll(0)
        return self._wait(answers), None

    def _refused(self, error: Exception, hand_over: Callable[[], None]) -> Any:
        """The error with which the client refuses a message; None if it takes it as soon as there is room.

        The settings may make its queue smaller than a batch, or than a message.
        """
        deadline = time.monotonic() + self.seconds
        while isinstance(error, BufferError):
            if not len(self.client):
                return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "it is larger than the client's queue")
            if time.monotonic() > deadline:
                raise error
            self.client.poll(0.1)
            try:
                return hand_over()
            except (BufferError, KafkaException) as another:
                error = another
        return error.args[0]

    def _wait(self, answers: list[Any]) -> list[Any]:
        """The answers, when all is answered or time is up.

        The client tells errors only. So when time is up it gives up what is left, and what it says so of is not there.
        It may say so later than this returns, and then it doesn't change what is returned.
        """
        deadline = time.monotonic() + self.seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self.client.flush(min(left, 0.5)):
                self._heard.clear()  # all is answered: what was heard before is over
                return answers
        answered = list(answers)
        is_told = self.give_up()
        return [
            UNANSWERED if before is None and (now is not None or not is_told) else now
            for before, now in zip(answered, answers, strict=True)
        ]

    def give_up(self) -> bool:
        """Leave out what is still waiting: the next one sends it. Returns whether the client has said what that is."""
        with suppress(Exception):
            self.client.purge(in_queue=True, in_flight=True, blocking=False)
            return not self.client.flush(GIVING_UP)
        return False

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What Kafka's client raises in the block is said as `error_of` says it."""
        try:
            yield
        except (TargetUnavailable, Overtaken):
            raise
        except Exception as error:
            raise self.error_of(_of_kafka(error) or error) from None

    def error_of(self, error: Any, **known: Any) -> TargetUnavailable | Overtaken:
        """Why nothing can be sent: what Kafka or its client says, and what that says of its connections."""
        if isinstance(error, KafkaError):
            error = self._cause_of(error)
            if self._is_transactional and error.name() in FENCED:
                return Overtaken()
            error = error.str()
        words = error if isinstance(error, str) else said(error, self._settings)
        with suppress(Exception):  # of a producer that has ended, it raises why
            self.client.poll(0)  # the client says what it has heard while it is polled
        more = f" ({self._heard[0]})" if self._heard else ""
        return TargetUnavailable(f"Kafka {self._broker!r}: {masked(words + more, self._settings)}", **known)

    def _cause_of(self, error: KafkaError) -> KafkaError:
        """What made a transaction fail, where the client says no more than that it has dropped the messages of it.

        It says the cause to who wants to go on. No transaction can begin while one is open, or has failed.
        """
        if self._is_transactional and error.name() in ENDED:
            try:
                self.client.begin_transaction()
            except KafkaException as refused:
                cause: KafkaError = refused.args[0]
                return error if cause.name() == "_STATE" else cause
        return error

    def unanswered(self, topic: str) -> str:
        """Why there is no answer: Kafka has none for a topic that isn't there."""
        with suppress(KafkaException):
            return self.lacks(topic) or "no answer in time"
        return "no answer in time"


def _of_kafka(error: BaseException | None) -> Any:
    """The error that Kafka's client raised. One that ends a producer is the cause of another, if answers come then."""
    if isinstance(error, SystemError):
        error = error.__cause__
    return error.args[0] if isinstance(error, KafkaException) else None


def is_of_its_batch(answer: Any) -> bool:
    """Whether an answer is about the content of a record batch, which may be another message's."""
    return isinstance(answer, KafkaError) and answer.name() in OF_A_BATCH


def refusal(error: Any) -> MessageRefused:
    return MessageRefused(f"Kafka refuses it: {error.str()}")
