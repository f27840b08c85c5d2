"""The promises of a source without places and its reader, checked with a real broker.

    check_source(FromLetterbox(), put=letterbox.put, stop=letterbox.stop, start=letterbox.start)

The queue has to be empty. What is checked stands in `queue_sources`, and what the inbox relies on in `queue_worker`.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django_events.bridges.inboxes.queue_sources import QueuedMessage, QueueInUse
from django_events.bridges.inboxes.reading_promises import ReadingPromises
from django_events.bridges.inboxes.sources import InboxMessage
from django_events.bridges.promises import SOON, NotChecked, Promise, in_a_thread

AT_ONCE = 7  # messages of a batch, so that some are left
FIRST_WAITS = 1.0  # seconds, at most
AT_ONCE_AGAIN, LATER = timedelta(0), timedelta(seconds=1)


class QueuePromises(ReadingPromises):
    """Each puts messages of its own, and acknowledges all of them. Their bodies are numbers."""

    of = "a source (django_events.bridges.inboxes.queue_sources)"
    calls = ("open", "receive", "acknowledge", "give_back", "lag", "keep", "close", "in_order", "holds")

    @Promise
    def declared(self) -> None:
        """What `check` and the workers ask of the source before anything is received."""
        reader = self.expect_declared()
        window = getattr(self._source, "window", None)
        self.expect(isinstance(window, timedelta) and window, f"window is {window!r}, expected a timedelta above 0")
        in_order, holds = reader.in_order, reader.holds
        self.expect(isinstance(in_order, bool), f"in_order is {in_order!r}, expected True or False")
        self.expect(isinstance(holds, int | float) and holds > 0, f"holds is {holds!r}, expected seconds above 0")
        self.close(reader, "was never opened")

    @Promise
    def nothing(self) -> None:
        """Of an empty queue nothing is received, within a second."""
        reader = self._opened()
        for _ in range(2):
            began = time.monotonic()
            found = self._receive(reader, AT_ONCE)
            took = time.monotonic() - began
            self.expect(not found, f"receive() of an empty queue gave {found}")
            self.expect(took < FIRST_WAITS + SOON, f"receive() of an empty queue took {took:.1f} s, expected 1 at most")
        self._close(reader)

    @Promise
    def order(self) -> None:
        """Each message comes once, with its bytes, and each group in its order."""
        numbers = self._add(20)
        reader = self._opened()
        self._take_all(reader, numbers, "of a queue with 20 messages")
        self.expect(not self._receive(reader, AT_ONCE), "behind the last message, receive() gives others")
        self._close(reader)

    @Promise
    def messages(self) -> None:
        """What a message says of itself."""
        numbers = self._add(5)
        reader = self._opened()
        found = self._take_all(reader, numbers, "of a queue with 5 messages")
        for one in found:
            message = one.message
            self.expect(isinstance(message, InboxMessage), f"receive() gave {message!r}, expected an InboxMessage")
            self.expect(
                message.sent_at is None or (isinstance(message.sent_at, datetime) and message.sent_at.tzinfo),
                f"sent_at of {message.address} is {message.sent_at!r}, expected a time with its zone, or None",
            )
            self.expect(
                all(isinstance(text, str) and name == name.lower() for name, text in message.headers.items()),
                f"headers of {message.address} are {dict(message.headers)}, expected texts by names in small letters",
            )
            self.expect(
                all(text is None or isinstance(text, str) for text in (message.key, one.identity, one.group)),
                f"the key, the identity and the group of {message.address} are {(message.key, one.identity, one.group)}"
                ", expected a text or None each",
            )
        identities = [one.identity for one in found if one.identity is not None]
        self.expect(
            len(set(identities)) == len(identities), f"two messages have the same identity: {sorted(identities)}"
        )
        self._close(reader)

    @Promise
    def most(self) -> None:
        """Not more messages are received than are asked for."""
        numbers = self._add(6)
        reader = self._opened()
        found = [one for most in (1, 3) for one in self._receive(reader, most)]
        self._acknowledge(reader, found)
        self._take_all(reader, [n for n in numbers if n not in self._numbers(found)], "of the rest of a queue")
        self._close(reader)

    @Promise
    def forgotten(self) -> None:
        """What is acknowledged doesn't come again; what isn't comes again, in its order, and is recognised."""
        numbers = self._add(6)
        reader = self._opened()
        found = self._receive_all(reader, numbers, "of a queue with 6 messages")
        gone, left = found[:2], found[2:]
        self._acknowledge(reader, gone)
        self._close(reader)
        reader = self._opened()
        again = self._take_all(reader, self._numbers(left), "when 2 of 6 messages were acknowledged, another reader")
        before = {self._number(one): one.identity for one in found}
        for one in again:
            self.expect(
                one.identity == before[self._number(one)],
                f"the identity of {one.message.address} was {before[self._number(one)]!r}, and is {one.identity!r} "
                "when it comes again",
            )
        self._close(reader)

    @Promise
    def given_back(self) -> None:
        """What is given back comes again, in its order; also if it is to come later."""
        for after in (AT_ONCE_AGAIN, LATER):
            numbers = self._add(6)
            reader = self._opened()
            found = self._receive_all(reader, numbers[:4], "of the first 4 of 6 messages", most=4)
            self._acknowledge(reader, found[:1])
            with self.only_unavailable("give_back()"):
                reader.give_back(found[1:], after)
            left = [n for n in numbers if n not in self._numbers(found[:1])]
            again = self._take_all(reader, left, f"when 3 messages were given back to come again after {after}")
            self.expect(
                not reader.in_order or self._numbers(again) == left,
                f"3 messages were given back, and it receives {self._numbers(again)}, expected them in front: {left}",
            )
            self._close(reader)

    @Promise
    def twin(self) -> None:
        """What a reader has in hand, no other one gets; QueueInUse says that it gets nothing at all."""
        numbers = self._add(6)
        reader, other = self._opened(), self._opened()
        deadline = time.monotonic() + self.seconds + reader.holds
        while not (found := self._receive(reader, 2)):
            self.expect(time.monotonic() < deadline, "of a queue with 6 messages, it receives none")
        try:
            with self.only_unavailable("receive()"):
                others = list(other.receive(AT_ONCE))
        except QueueInUse:
            others = []
        twice = set(self._numbers(found)) & set(self._numbers(others))
        self.expect(not twice, f"two readers have the messages {sorted(twice)} in hand at the same time")
        self._acknowledge(other, others)
        self._acknowledge(reader, found)
        self._close(other)
        done = self._numbers([*found, *others])
        self._take_all(reader, [n for n in numbers if n not in done], "when another reader has gone")
        self._close(reader)

    @Promise
    def lag(self) -> None:
        """If a source can say about how many messages there are, it says so."""
        reader = self._opened()
        if self._lag(reader) is None:
            self._close(reader)
            raise NotChecked("lag() is None: the source can't tell")
        numbers = self._add(10)
        self._expect_lag(reader, 10, "with 10 messages in the queue")
        self._take_all(reader, numbers, "of a queue with 10 messages")
        self._expect_lag(reader, 0, "when all are acknowledged")
        self._close(reader)

    @Promise
    def keeping(self) -> None:
        """While an inbox rests, what is in hand can be acknowledged, and `keep` waits for nothing."""
        numbers = self._add(3)
        reader = self._opened()
        found = self._receive_all(reader, numbers, "of a queue with 3 messages")
        for _ in range(3):
            began = time.monotonic()
            with self.only_unavailable("keep()"):
                reader.keep()
            took = time.monotonic() - began
            self.expect(took < SOON, f"keep() took {took:.1f} s, and has to wait for nothing")
        self._acknowledge(reader, found)
        self._close(reader)

    @Promise
    def thread(self) -> None:
        """A reader works in the thread that opens it, whichever that is."""
        numbers = self._add(2)

        def work() -> None:
            reader = self._opened()
            self._take_all(reader, numbers, "in another thread")
            self._close(reader)

        in_a_thread(work)

    @Promise
    def outage(self) -> None:
        """While the broker is away SourceUnavailable is raised, and afterwards nothing is missing."""
        self.needs(self._stop, "stop")
        self.needs(self._start, "start")
        reader = self._opened()
        self._receive(reader, AT_ONCE)
        numbers = self._add(3)
        closed = self._source.reader()
        self._stop()
        try:

            def until_it_is_noticed() -> None:
                deadline = time.monotonic() + self.seconds
                while time.monotonic() < deadline:  # what was on its way before may still be received
                    reader.receive(AT_ONCE)

            self.must_be_unavailable("receive()", until_it_is_noticed)

            def all_of_it() -> None:
                closed.open()
                closed.receive(AT_ONCE)

            self.must_be_unavailable("open() or receive()", all_of_it)
            self.close(reader, "lost its broker")
            self.close(closed, "could not reach its broker")
        finally:
            self._start()
        reader = self.until_it_is_back(self._source.reader)
        self._take_all(reader, numbers, "after an outage")
        self._close(reader)

    @Promise
    def closing(self) -> None:
        """`close` is called in any state, raises nothing and waits for nothing."""
        self.check_close(self._source.reader)

    def _receive(self, reader: Any, most: int) -> list[QueuedMessage]:
        with self.only_unavailable("receive()"):
            found = list(reader.receive(most))
        self.expect(len(found) <= most, f"receive() gave {len(found)} messages, and was asked for {most}")
        for one in found:
            self.expect(isinstance(one, QueuedMessage), f"receive() gave {one!r}, expected QueuedMessages")
        return found

    def _receive_all(
        self, reader: Any, numbers: Sequence[int], when: str, *, most: int = AT_ONCE, takes: bool = False
    ) -> list[QueuedMessage]:
        """So many messages, batch by batch; fewer if they don't come in time. Are they these, each group in order?"""
        found: list[QueuedMessage] = []
        deadline = time.monotonic() + self.seconds + reader.holds
        while len(found) < len(numbers) and time.monotonic() < deadline:
            batch = self._receive(reader, min(most, len(numbers) - len(found)))
            if takes:
                self._acknowledge(reader, batch)
            found += batch
        there = self._numbers(found)
        self.expect(
            sorted(there) == sorted(numbers), f"{when}, it receives {there}, expected each of {list(numbers)} once"
        )
        for group in {one.group for one in found if one.group is not None}:
            got = self._numbers([one for one in found if one.group == group])
            self.expect(got == sorted(got), f"{when}, it receives {got} of the group {group!r}, which is not its order")
        return found

    def _take_all(self, reader: Any, numbers: Sequence[int], when: str) -> list[QueuedMessage]:
        return self._receive_all(reader, numbers, when, takes=True)

    def _acknowledge(self, reader: Any, messages: Sequence[QueuedMessage]) -> None:
        if messages:
            with self.only_unavailable("acknowledge()"):
                reader.acknowledge(messages)

    def _lag(self, reader: Any) -> int | None:
        with self.only_unavailable("lag()"):
            found: int | None = reader.lag()
        self.expect(found is None or isinstance(found, int), f"lag() is {found!r}, expected a number or None")
        return found

    def _expect_lag(self, reader: Any, expected: int, when: str) -> None:
        deadline = time.monotonic() + self.seconds
        while (found := self._lag(reader)) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        self.expect(found == expected, f"{when}, lag() is {found}")

    def _numbers(self, messages: Sequence[QueuedMessage]) -> list[int]:
        return [self._number(one) for one in messages]

    def _number(self, one: QueuedMessage) -> int:
        body = one.message.body or b""
        said = body.removeprefix(self._prefix)
        self.expect(
            body.startswith(self._prefix) and said.isdigit(),
            f"{one.message.address} has the body {one.message.body!r:.60}, which was not put so",
        )
        return int(said)

    def _close(self, reader: Any) -> None:
        self.close(reader, "has received")
