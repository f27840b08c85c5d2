"""Inboxes from Amazon SQS.

    inbox(payments, source=sqs_source("bank-payments.fifo"), name="payments-in")

A message is hidden from other readers for `visibility` while it is taken in, and deleted after the COMMIT. One that
comes again within `window` is recognised: by its CloudEvent's source, id and time, or by the id that SQS gave it.
A FIFO queue gives each message group in its order, also to several processes.

It needs boto3: pip install 'django-events-pg[aws]'
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import Any, ClassVar, TypeVar

from django_events.bridges.brokers import check_package, options_of, said, unmade
from django_events.bridges.inboxes.queue_sources import WINDOW, QueuedMessage, check_times, identity_of
from django_events.bridges.inboxes.sources import InboxMessage, SourceUnavailable
from django_events.bridges.relays.aws import AwsSaid, client_of, code_of, connections_of, is_fifo
from django_events.bridges.relays.aws_batches import AT_ONCE, MOST_ENTRIES
from django_events.bridges.relays.sqs import URL, is_queue
from django_events.exceptions import NotReady
from django_events.phrases import count

WAITS = 1  # second that a request waits for the first message
LONGEST_VISIBILITY = timedelta(hours=12)
Answer = TypeVar("Answer")
SHARE = 6  # of the time that messages are hidden for, a batch may take to be received


@dataclass(frozen=True, kw_only=True)
class SqsSource:
    """A queue of Amazon SQS as the source of an inbox."""

    queue: str
    broker: str = "aws"
    visibility: timedelta = timedelta(minutes=1)
    window: timedelta = WINDOW
    is_queue: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.broker} {self.queue}"

    def problems(self) -> Iterator[str]:
        if not is_queue(self.queue):
            yield f"sqs_source has {self.queue!r}, expected the name or the URL of a queue."
        yield from check_times("sqs_source", window=self.window)
        if not isinstance(self.visibility, timedelta) or not timedelta(seconds=1) <= self.visibility <= (
            LONGEST_VISIBILITY
        ):
            yield f"sqs_source has visibility={self.visibility!r}, expected a timedelta from one second to 12 hours."
        elif self.visibility.microseconds:
            yield f"sqs_source has visibility={self.visibility!r}, expected whole seconds: SQS counts no parts of them."

    def check_installed(self) -> None:
        check_package("boto3", "aws")

    def reader(self) -> "SqsReader":
        return SqsReader(self)


def sqs_source(
    queue: str, *, broker: str = "aws", visibility: timedelta = timedelta(minutes=1), window: timedelta = WINDOW
) -> SqsSource:
    """An inbox's source: a queue of Amazon SQS, by its name or URL.

    What `DJANGO_EVENTS["BROKERS"]` has under the broker's name goes to boto3. `visibility` is for how long a message is
    hidden from others while it is taken in, `window` for how long one that comes again is recognised.
    """
    return SqsSource(queue=queue, broker=broker, visibility=visibility, window=window)


class SqsReader:
    """A client of SQS, which receives."""

    in_order = False

    def __init__(self, source: SqsSource) -> None:
        self._source = source
        self.holds = source.visibility.total_seconds()
        self._options: Mapping[str, Any] = {}
        self._client: Any = None
        self._url = ""
        self._connections = AT_ONCE
        self._at_once = 1  # requests for messages; more as long as each of them brings some

    def open(self) -> None:
        try:
            self._options = options_of(self._source.broker)
        except NotReady as error:
            raise SourceUnavailable(str(error)) from None
        try:
            self._client = client_of("sqs", self._options, waits=WAITS)
        except Exception as error:
            raise SourceUnavailable(f"AWS {self._source.broker!r}: {unmade(error, self._options)}.") from None
        self._connections = connections_of(self._client)
        queue = self._source.queue
        self._url = (
            queue if URL.fullmatch(queue) else self._asked(self._client.get_queue_url, QueueName=queue)["QueueUrl"]
        )

    def receive(self, most: int) -> Sequence[QueuedMessage]:
        """The first request waits for a message, unless the queue had many. A FIFO queue gives each group to one."""
        found: list[QueuedMessage] = []
        deadline = time.monotonic() + self.holds / SHARE
        while len(found) < most and (not found or time.monotonic() < deadline):
            waits = 0 if found or self._at_once > 1 else WAITS
            answers = self._receive_side_by_side(most - len(found), waits=waits)
            errors = [one for one in answers if isinstance(one, SourceUnavailable)]
            received = [one for one in answers if not isinstance(one, SourceUnavailable)]
            found += [message for messages in received for message in messages]
            if errors and not found:
                raise errors[0]
            if not errors and all(received):
                self._at_once = min(2 * self._at_once, self._connections)
                continue
            self._at_once = 1
            if found or waits:
                break
        return found

    def acknowledge(self, messages: Iterable[QueuedMessage]) -> None:
        """What can't be deleted comes again, and is recognised. SourceUnavailable says so, when all others are."""
        failed: list[Mapping[str, Any]] = []
        answers = self._all([partial(self._delete, entries) for entries in _tens(messages)])
        for answer in answers:
            if isinstance(answer, SourceUnavailable):
                raise answer
            failed += answer.get("Failed", ())
        if failed:
            reason = AwsSaid(f"{failed[0]['Code']}: {failed[0].get('Message', '')}")
            raise SourceUnavailable(
                f"AWS {self._source.broker!r} did not delete {count(len(failed), 'message')} that are published, and "
                f"gives them again: {said(reason, self._options)}. If they were taken in for longer than visibility="
                f"{self._source.visibility}, make it longer, or batch_size smaller."
            )

    def give_back(self, messages: Iterable[QueuedMessage], after: timedelta) -> None:
        seconds = ceil(min(after, LONGEST_VISIBILITY - timedelta(minutes=1)).total_seconds())
        for entries in _tens(messages, VisibilityTimeout=seconds):
            self._asked(self._client.change_message_visibility_batch, QueueUrl=self._url, Entries=entries)

    def lag(self) -> int | None:
        name = "ApproximateNumberOfMessages"
        try:
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=[name])
        except Exception as error:
            if code_of(error).startswith("AccessDenied"):  # the right to receive is enough
                return None
            raise self._unavailable(error) from None
        return int(answer["Attributes"][name])

    def keep(self) -> None:
        """There is nothing to keep: what is given back is with the queue."""

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close()

    def _receive_side_by_side(self, most: int, *, waits: int) -> list[list[QueuedMessage] | SourceUnavailable]:
        whole, rest = divmod(most, MOST_ENTRIES)
        numbers = [*[MOST_ENTRIES] * whole, *([rest] if rest else [])]
        return self._all([partial(self._receive, number, waits=waits) for number in numbers[: self._at_once]])

    def _all(self, questions: Sequence[Callable[[], Answer]]) -> list[Answer | SourceUnavailable]:
        """The answers to all of these, which are asked side by side; an error is in the place of its answer."""
        if not questions:
            return []
        with ThreadPoolExecutor(min(len(questions), self._connections)) as pool:
            asked = [pool.submit(copy_context().run, one) for one in questions]
        answers: list[Answer | SourceUnavailable] = []
        for one in asked:
            try:
                answers.append(one.result())
            except SourceUnavailable as error:
                answers.append(error)
        return answers

    def _delete(self, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._asked(self._client.delete_message_batch, QueueUrl=self._url, Entries=entries)
        return answer

    def _receive(self, most: int, *, waits: int) -> list[QueuedMessage]:
        answer = self._asked(
            self._client.receive_message,
            QueueUrl=self._url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=waits,
            VisibilityTimeout=int(self._source.visibility.total_seconds()),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return [self._message(one) for one in answer.get("Messages", ())]

    def _message(self, found: Mapping[str, Any]) -> QueuedMessage:
        about = found.get("Attributes", {})
        group = about.get("MessageGroupId") if is_fifo(self._url) else None
        headers = {name.lower(): _text(value) for name, value in found.get("MessageAttributes", {}).items()}
        if (named := about.get("MessageGroupId")) is not None:
            headers["message-group-id"] = named
        sent = about.get("SentTimestamp")
        message = InboxMessage(
            id=found["MessageId"],
            log=self._source.queue,
            place=found["ReceiptHandle"],
            body=found.get("Body", "").encode("utf-8", "surrogatepass"),
            headers=headers,
            fields={},
            sent_at=None if sent is None else datetime.fromtimestamp(int(sent) / 1_000, UTC),
        )
        again = about.get("ApproximateReceiveCount", "1") != "1"
        return QueuedMessage(message, identity_of(headers, found["MessageId"]), group, again)

    def _asked(self, question: Callable[..., Any], **parameters: Any) -> Any:
        """What AWS answers; whatever fails is SourceUnavailable, without secrets."""
        try:
            return question(**parameters)
        except Exception as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: BaseException) -> SourceUnavailable:
        return SourceUnavailable(f"AWS {self._source.broker!r}: {said(error, self._options)}")


def _tens(messages: Iterable[QueuedMessage], **more: Any) -> Iterator[list[dict[str, Any]]]:
    """Entries of requests, as many as one takes."""
    entries = [{"Id": str(n), "ReceiptHandle": one.message.place, **more} for n, one in enumerate(messages)]
    for begin in range(0, len(entries), MOST_ENTRIES):
        yield entries[begin : begin + MOST_ENTRIES]


def _text(value: Mapping[str, Any]) -> str:
    """An attribute's value; bytes as UTF-8."""
    if (text := value.get("StringValue")) is not None:
        return str(text)
    return bytes(value.get("BinaryValue", b"")).decode("utf-8", "replace")
