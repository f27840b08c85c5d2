"""What bridges to SQS and SNS share: a client, requests of up to ten messages, and what is said of their answers.

FIFO queues and topics keep the order of a message group, and drop what has the deduplication id of something that they
took within five minutes. An event's group is its key. A request has a group once: an entry of it may fail alone, and
then nothing later of its key may have gone in front of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

from django_events.bridges.brokers import options_of, said, unmade
from django_events.bridges.relays.answers import UNANSWERED, Unroutable, judged
from django_events.bridges.relays.targets import Newest, RelayMessage, TargetUnavailable
from django_events.exceptions import MessageRefused, NotReady
from django_events.received import ReceivedEvent

SECONDS = 10.0  # for a connection and for an answer, where the settings don't say
MOST_ENTRIES = 10  # of a request
MOST_BYTES = 2**18  # of a request with several messages: what SNS and older queues take
THROTTLED_FOR = timedelta(seconds=1)
FORMS = ("cloudevent", "value")  # a message has at most ten attributes, too few for those of a CloudEvent
ALLOWED_ID = re.compile(r"[!-~]{1,128}")  # of groups and deduplication ids
NOT_TAKEN = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NONCHARACTERS = str.maketrans({"\ufffe": "\\ufffe", "\uffff": "\\uffff"})
# Codes of errors that are about one message, unless the text names where it was to go. Of any other one no message is
# to blame.
OF_MESSAGE = {"InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "BatchRequestTooLong"}
OF_TARGET = re.compile("TopicArn|TargetArn|QueueUrl|MessageGroupId|MessageDeduplicationId")
NOT_THERE = {"QueueDoesNotExist", "NonExistentQueue", "NotFound"}
THROTTLED = {"Throttling", "ThrottlingException", "RequestThrottled", "ThrottledException", "OverLimit", "KmsThrottled"}


class AwsSaid(Exception):
    """What AWS says of a message, or of a request."""


class AwsBridge:
    """A client of one service of AWS. What differs is how a request is made."""

    largest: int | None = MOST_BYTES
    service = ""

    def __init__(self, broker: str, named: str | Callable[[ReceivedEvent], str]) -> None:
        self._broker = broker
        self._named = named
        self._options: Mapping[str, Any] = {}
        self._client: Any = None

    def open(self) -> None:
        try:
            self._options = options_of(self._broker)
        except NotReady as error:
            raise TargetUnavailable(str(error)) from None
        try:
            self._client = client_of(self.service, self._options)
        except Exception as error:
            raise TargetUnavailable(f"AWS {self._broker!r}: {unmade(error, self._options)}.") from None

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        entries: list[Any] = [self._entry(index, message) for index, message in enumerate(messages)]
        answers: list[Any] = [one if isinstance(one, Exception) else UNANSWERED for one in entries]
        alone: set[int] = set()  # a request with several of them was refused as a whole
        try:
            while waiting := [index for index, answer in enumerate(answers) if answer is UNANSWERED]:
                together = self._together(messages, entries, waiting, alone)
                self._request(messages[together[0]].route.to, [entries[index] for index in together], answers, alone)
        except TargetUnavailable as error:
            return judged(messages, answers, error)
        return answers

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close()

    def address(self, name: str) -> str:
        """Where requests for a name go."""
        return name

    def ask(self, address: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Send a request, and return the answer of AWS."""
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

    def _together(
        self, messages: Sequence[RelayMessage], entries: Sequence[Any], waiting: Sequence[int], alone: set[int]
    ) -> list[int]:
        """The messages of the next request: of one queue, a group of it once, the oldest first."""
        first, size = waiting[0], 0
        to, fifo = messages[first].route.to, is_fifo(messages[first].route.to)
        together: list[int] = []
        groups: set[str] = set()
        for index in waiting:
            message = messages[index]
            if message.route.to != to or len(together) == MOST_ENTRIES:
                continue
            if fifo and (group := entries[index]["MessageGroupId"]) in groups:
                continue
            if together and (index in alone or first in alone or size + message.size > MOST_BYTES):
                if not fifo:
                    continue
                groups.add(group)  # what is behind it in its group waits, too
                continue
            together.append(index)
            size += message.size
            if fifo:
                groups.add(group)
        return together

    def _request(self, name: str, entries: Sequence[Mapping[str, Any]], answers: list[Any], alone: set[int]) -> None:
        """Send some messages, and note the answers; TargetUnavailable if there are none."""
        indexes = [int(entry["Id"]) for entry in entries]
        try:
            answer = self.ask(self.address(name), entries)
        except Exception as error:
            code = code_of(error)
            is_of_target = code in NOT_THERE or _is_of_target(code, str(error))
            if is_of_target and callable(self._named):
                for index in indexes:
                    answers[index] = self._unroutable(name, error)
            elif is_of_target:
                raise self._unavailable(error, code) from None
            elif code in OF_MESSAGE and len(entries) > 1:
                alone.update(indexes)
            elif code in OF_MESSAGE:
                answers[indexes[0]] = MessageRefused(f"AWS refuses it: {said(error, self._options)}")
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
        if any(answers[index] is UNANSWERED for index in indexes):
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
        text = b"null".decode() if message.body is None else message.body.decode()
    except UnicodeDecodeError:
        raise MessageRefused("Its body is no text, and AWS takes nothing else: use form='cloudevent'.") from None
    if "json" in message.headers["content-type"]:
        text = text.translate(NONCHARACTERS)  # these two are in texts only, where they may be escaped
    if (found := NOT_TAKEN.search(text)) is not None:
        raise MessageRefused(f"It has the character U+{ord(found[0]):04X}, which AWS doesn't take.")
    if not text:
        raise MessageRefused("It is empty, and AWS takes no empty message: use form='cloudevent'.")
    return text
