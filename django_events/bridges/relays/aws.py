"""What bridges to SQS and SNS share: a client, requests side by side, and what is said of their answers.

FIFO queues and topics keep the order of a message group, and drop what has the deduplication id of something that they
took within five minutes. An event's group is its key. `aws_batches` says which messages a request has.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from django_events.bridges.brokers import options_of, said, unmade
from django_events.bridges.relays.answers import UNANSWERED, Unroutable, judged
from django_events.bridges.relays.aws_batches import MOST_BYTES, AwsBatch, RequestPace
from django_events.bridges.relays.targets import Newest, RelayMessage, TargetUnavailable
from django_events.exceptions import MessageRefused, NotReady
from django_events.received import ReceivedEvent

SECONDS = 10.0  # for a connection and for an answer, where the settings don't say
THROTTLED_FOR = timedelta(seconds=1)
SLOWER_AFTER = 0.25  # seconds, where AWS wants fewer requests than go side by side
FORMS = ("cloudevent", "value")  # a message has at most ten attributes, too few for those of a CloudEvent
ALLOWED_ID = re.compile(r"[!-~]{1,128}")  # of groups and deduplication ids
NOT_TAKEN = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NONCHARACTERS = str.maketrans({"\ufffe": "\\ufffe", "\uffff": "\\uffff"})
# Codes of errors that are about one message, unless the text names where it was to go. Of any other one no message is
# to blame.
OF_MESSAGE = {"InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "BatchRequestTooLong"}
OF_TARGET = re.compile("TopicArn|TargetArn|QueueUrl|MessageGroupId|MessageDeduplicationId")
NOT_THERE = {"QueueDoesNotExist", "NonExistentQueue", "NotFound"}
# The first line is SQS's, and the second SNS's.
THROTTLED = {"Throttling", "ThrottlingException", "RequestThrottled", "OverLimit", "KmsThrottled"}
THROTTLED |= {"Throttled", "ThrottledException", "KMSThrottling", "KMSThrottlingException"}


class AwsSaid(Exception):
    """What AWS says of a message, or of a request."""


class AwsBridge:
    """A client of one service of AWS. What differs is how a request is made."""

    largest: int | None = MOST_BYTES
    sends_only = True
    service = ""

    def __init__(self, broker: str, named: str | Callable[[ReceivedEvent], str]) -> None:
        self._broker = broker
        self._named = named
        self._options: Mapping[str, Any] = {}
        self._client: Any = None
        self._pace = RequestPace()

    def open(self) -> None:
        try:
            self._options = options_of(self._broker)
        except NotReady as error:
            raise TargetUnavailable(str(error)) from None
        try:
            self._client = client_of(self.service, self._options)
        except Exception as error:
            raise TargetUnavailable(f"AWS {self._broker!r}: {unmade(error, self._options)}.") from None
        self._pace = RequestPace(connections_of(self._client))

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        batch = AwsBatch(messages, [self._entry(index, message) for index, message in enumerate(messages)])
        try:
            with ThreadPoolExecutor(self._pace.most) as pool:
                while self._send_side_by_side(batch, pool):
                    self._pace.slow_down()
                    time.sleep(SLOWER_AFTER)
        except TargetUnavailable as error:
            return judged(messages, batch.answers, error)
        return batch.answers

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close()

    def address(self, name: str) -> str:
        """Where requests for a name go. Several threads ask at once."""
        return name

    def ask(self, address: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Send a request, and return the answer of AWS. Several threads ask at once."""
        raise NotImplementedError

    def entry(self, text: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """A message as it is in a request."""
        raise NotImplementedError

    def _entry(self, index: int, message: RelayMessage) -> dict[str, Any] | MessageRefused:
        try:
            text = text_of(message)
        except MessageRefused as error:
            return error
        named = {"content-type": message.headers["content-type"]}
        named |= {f"ce_{name}": value for name, value in message.attributes.items()}
        named |= {name: value for name, value in message.headers.items() if name != "content-type"}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in named.items() if value}
        made = {"Id": str(index), **self.entry(text, attributes)}
        if is_fifo(message.route.to):
            made["MessageGroupId"] = group_of(message)
            made["MessageDeduplicationId"] = once_of(message)
        return made

    def _send_side_by_side(self, batch: AwsBatch, pool: Executor) -> bool:
        """Send what waits; returns whether that has to go on with fewer requests at once, because AWS wants less.

        After an error nothing more is sent, and what is under way is waited for: then TargetUnavailable is raised.
        """
        under_way: dict[Future[Mapping[str, Any]], list[int]] = {}
        errors: list[TargetUnavailable] = []
        most = 0
        while True:
            while not errors and len(under_way) < self._pace.at_once and (together := batch.take()):
                asking = partial(self._asked, *batch.request(together))
                under_way[pool.submit(copy_context().run, asking)] = together
            if not under_way:
                break
            most = max(most, len(under_way))
            for asked in wait(under_way, return_when=FIRST_COMPLETED).done:
                together = under_way.pop(asked)
                try:
                    self._note(batch, together, asked)
                    self._pace.note_answer()
                except TargetUnavailable as error:
                    errors.append(error)
                batch.give_back(together)
        if errors and not (most > 1 and all(error.asked_for is not None for error in errors)):
            raise next((error for error in errors if error.asked_for is not None), errors[0])
        return bool(errors)

    def _asked(self, name: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return self.ask(self.address(name), entries)

    def _note(self, batch: AwsBatch, together: Sequence[int], asked: Future[Mapping[str, Any]]) -> None:
        """Note what AWS says of these messages; TargetUnavailable if it is of more than one message."""
        answers, (name, _) = batch.answers, batch.request(together)
        try:
            answer = asked.result()
        except Exception as error:
            code = code_of(error)
            is_of_target = code in NOT_THERE or _is_of_target(code, str(error))
            if is_of_target and callable(self._named):
                for index in together:
                    answers[index] = self._unroutable(name, error)
            elif is_of_target:
                raise self._unavailable(error, code) from None
            elif code in OF_MESSAGE and len(together) > 1:
                batch.alone.update(together)
            elif code in OF_MESSAGE:
                answers[together[0]] = MessageRefused(f"AWS refuses it: {said(error, self._options)}")
            else:
                raise self._unavailable(error, code) from None
            return
        for one in answer.get("Successful", ()):
            answers[int(one["Id"])] = None
        failed: tuple[Exception, str] | None = None
        for one in answer.get("Failed", ()):
            reason, code = AwsSaid(f"{one['Code']}: {one.get('Message', '')}"), one["Code"].rpartition(".")[2]
            if callable(self._named) and _is_of_target(code, str(reason)):
                answers[int(one["Id"])] = self._unroutable(name, reason)
            elif code in OF_MESSAGE and one.get("SenderFault") and not _is_of_target(code, str(reason)):
                answers[int(one["Id"])] = MessageRefused(f"AWS refuses it: {said(reason, self._options)}")
            else:
                failed = reason, code
        if failed is not None:
            raise self._unavailable(*failed)
        if any(answers[index] is UNANSWERED for index in together):
            raise self._unavailable(AwsSaid("an answer without a word about some of the messages"), "")

    def _unroutable(self, name: str, error: Exception) -> Unroutable:
        return Unroutable(f"AWS can't send it to {name!r}: {said(error, self._options)}")

    def _unavailable(self, error: Exception, code: str) -> TargetUnavailable:
        after = THROTTLED_FOR if code in THROTTLED else None
        return TargetUnavailable(f"AWS {self._broker!r}: {said(error, self._options)}", after=after)


def client_of(service: str, options: Mapping[str, Any], *, waits: float = 0.0) -> Any:
    """A client of a service, in a session of its own: sessions are not for several threads."""
    from boto3.session import Session
    from botocore.config import Config

    options = dict(options)
    seconds = options.pop("timeout", SECONDS)
    # The relay's own pauses are for what fails. The client's would make a batch last for longer than its lease.
    config = Config(connect_timeout=seconds, read_timeout=seconds + waits, retries={"total_max_attempts": 1})
    if (given := options.pop("config", None)) is not None:
        config = config.merge(given)
    return Session().client(service, config=config, **options)


def connections_of(client: Any) -> int:
    """How many requests of a client may go at once: as many as it keeps connections for."""
    most: int = client.meta.config.max_pool_connections
    return most


def code_of(error: Exception) -> str:
    """The code of an error of AWS, without the name of its service; nothing if it is another error."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return str(code).rpartition(".")[2]


def _is_of_target(code: str, text: str) -> bool:
    """Whether an error is about the queue or the topic. AWS has the same codes for a part of a message."""
    return code in OF_MESSAGE and OF_TARGET.search(text) is not None


def is_fifo(name: str) -> bool:
    return name.endswith(".fifo")


def group_of(message: RelayMessage) -> str:
    """The message group: the key, or a digest of one that can be none. What has no key has no order."""
    key = message.key or message.address
    return key if ALLOWED_ID.fullmatch(key) else sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def once_of(message: RelayMessage) -> str:
    """The deduplication id: the event and the relay.

    An id of another database, or of a log that was made anew, is another event. So its time is part of it.
    """
    about = message.attributes
    whole = f"{message.address}@{about.get('time', '')}/{about.get('relay', '')}"
    return whole if ALLOWED_ID.fullmatch(whole) else sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def text_of(message: RelayMessage) -> str:
    """The payload as text; MessageRefused if it is none that AWS takes."""
    try:
        text = "null" if message.body is None else message.body.decode()
    except UnicodeDecodeError:
        raise MessageRefused("Its body is no text, and AWS takes nothing else: use form='cloudevent'.") from None
    if "json" in message.headers["content-type"]:
        text = text.translate(NONCHARACTERS)  # these two are in texts only, where they may be escaped
    if (found := NOT_TAKEN.search(text)) is not None:
        raise MessageRefused(f"It has the character U+{ord(found[0]):04X}, which AWS doesn't take.")
    if not text:
        raise MessageRefused("It is empty, and AWS takes no empty message: use form='cloudevent'.")
    return text
