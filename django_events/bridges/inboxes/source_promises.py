"""The promises of an inbox's source and its reader, checked with a real broker.

    check_source(FromMainframe(), put=mainframe.put, stop=mainframe.stop, start=mainframe.start)

The source has to be empty. What is checked stands in `sources`, and what the inbox relies on in `inbox_worker`.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django_events.bridges.inboxes.queue_promises import QueuePromises
from django_events.bridges.inboxes.reading_promises import ReadingPromises
from django_events.bridges.inboxes.sources import Found, GoneMessages, InboxMessage, Places
from django_events.bridges.promises import SOON, NotChecked, Promise, in_a_thread
from django_events.declarations.declared_inbox import InboxSource

AT_ONCE = 7  # messages of a batch, so that some are left
NONSENSE = "no such message"  # as the start of an inbox


def check_source(
    source: InboxSource,
    *,
    put: Callable[[Sequence[bytes]], Any],
    remove: Callable[[int], Any] | None = None,
    replace: Callable[[], Any] | None = None,
    stop: Callable[[], Any] | None = None,
    start: Callable[[], Any] | None = None,
    secrets: Sequence[str] = (),
    seconds: float = 30.0,
    is_text: bool = False,
) -> dict[str, str]:
    """Check that an inbox's source keeps the promises of `django_events.bridges.inboxes.sources`, by its real broker.

    Of a queue these are the promises of `django_events.bridges.inboxes.queue_sources`, for which `remove` and `replace`
    say nothing, and `is_text` that it takes no other bodies than texts.

    `put` adds messages of these bodies to the empty source, in this order. `remove` removes its oldest messages, so
    many. `replace` deletes what the source reads, and makes it anew, empty. `stop` and `start` are of the broker, and
    `seconds` how long it may take to be back, or to have what was put. `secrets` may be in no error. Returns what
    became of each promise; AssertionError says which are broken.
    """
    given = {"stop": stop, "start": start, "secrets": secrets, "seconds": seconds}
    if getattr(source, "is_queue", False):
        return QueuePromises(source, put=put, is_text=is_text, **given).check(source)
    return SourcePromises(source, put=put, remove=remove, replace=replace, is_text=is_text, **given).check(source)


class SourcePromises(ReadingPromises):
    """They share the messages that were put so far, whose bodies are numbers: the first of these may be removed."""

    of = "a source (django_events.bridges.inboxes.sources)"
    calls = ("open", "begin", "read", "wait", "close")

    def __init__(self, source: Any, *, remove: Any, replace: Any, **options: Any) -> None:
        super().__init__(source, **options)
        self._remove = remove
        self._replace = replace
        self._removed = 0

    @Promise
    def declared(self) -> None:
        """What `check` and the workers ask of the source before anything is read."""
        self.close(self.expect_declared(), "was never opened")

    @Promise
    def order(self) -> None:
        """From the beginning on, each message comes once, in the order of its log, with its bytes."""
        self._add(20)
        reader, places = self._begun("beginning")
        self._same_numbers(self._read_on(reader, places, 20), range(self._removed, self._put), "from the beginning on")
        self._close(reader)

    @Promise
    def messages(self) -> None:
        """What a message says of itself."""
        reader, places = self._begun("beginning")
        found = self._read_on(reader, places, self._put - self._removed)
        addresses = [one.address for one in found]
        self.expect(len(set(addresses)) == len(addresses), f"two messages have the same address: {sorted(addresses)}")
        for one in found:
            self.expect(isinstance(one, InboxMessage), f"read() gave {one!r}, expected an InboxMessage")
            self.expect(
                one.sent_at is None or (isinstance(one.sent_at, datetime) and one.sent_at.tzinfo is not None),
                f"sent_at of {one.address} is {one.sent_at!r}, expected a time with its zone, or None",
            )
            self.expect(
                all(isinstance(text, str) and name == name.lower() for name, text in one.headers.items()),
                f"headers of {one.address} are {dict(one.headers)}, expected texts by names in small letters",
            )
            self.expect(one.key is None or isinstance(one.key, str), f"the key of {one.address} is {one.key!r}")
        self._close(reader)

    @Promise
    def places(self) -> None:
        """They are JSON, and behind each message another reader goes on with the next one."""
        reader, places = self._begun("beginning")
        self._expect_json(places, "begin() gave")
        found = self._read_on(reader, dict(places), self._put - self._removed)
        for index in {0, len(found) // 2, len(found) - 1}:
            behind = dict(places)
            for one in found[: index + 1]:
                behind[one.log] = one.place_behind
            self._expect_json(behind, f"behind {found[index].address} there is")
            other = self._opened()
            rest = self._read_on(other, json.loads(json.dumps(behind)), len(found) - index - 1)
            self._same(rest, found[index + 1 :], f"another reader behind {found[index].address}")
            self._close(other)
        self._close(reader)

    @Promise
    def no_position(self) -> None:
        """A reader that is given places which it has left reads from there again."""
        reader, places = self._begun("beginning")
        first = self._read_on(reader, dict(places), self._put - self._removed)
        again = self._read_on(reader, dict(places), len(first))
        self._same(again, first, "asked for the beginning again, the same reader")
        self._close(reader)

    @Promise
    def start(self) -> None:
        """Behind the end, and behind a message by its id; what is no message is said."""
        self._add(5)
        reader, end = self._begun("end")
        self.expect(not self._read(reader, end).messages, "begun at the end, read() gives older messages")
        self._add(3)
        later = self._read_on(reader, dict(end), 3)
        self._same_numbers(later, range(self._put - 3, self._put), "begun at the end")
        if len({one.log for one in later} | set(end)) == 1:
            begun = self._begin(reader, later[0].id)
            self._same(self._read_on(reader, begun, 2), later[1:], f"begun behind the message {later[0].id}")
        self.must_be_unavailable(f"begin({NONSENSE!r})", lambda: reader.begin(NONSENSE))
        self._close(reader)

    @Promise
    def most(self) -> None:
        """A reading has no more messages than are asked for."""
        reader, places = self._begun("beginning")
        for most in (1, 3):
            found = self._read(reader, places, most).messages
            self.expect(len(found) <= most, f"read() gave {len(found)} messages, and was asked for {most}")
        self._close(reader)

    @Promise
    def nothing(self) -> None:
        """Where there is nothing, reading waits for nothing, and waiting ends in time."""
        reader, places = self._begun("end")
        for _ in range(2):
            began = time.monotonic()
            found = self._read(reader, places)
            took = time.monotonic() - began
            self.expect(not found.messages and not found.gone, f"at the end, read() gave {found}")
            self.expect(took < SOON, f"at the end, read() took {took:.1f} s, and has to wait for nothing")
        began = time.monotonic()
        with self.only_unavailable("wait()"):
            reader.wait(dict(places), 0.3)
        took = time.monotonic() - began
        self.expect(took < 0.3 + SOON, f"wait() for 0.3 s took {took:.1f} s, with nothing to come")
        self._close(reader)

    @Promise
    def waiting(self) -> None:
        """A message ends the waiting, and is read afterwards."""
        reader, places = self._begun("end")
        self.expect(not self._read(reader, places).messages, "at the end, read() gave messages")
        adding = threading.Timer(0.1, lambda: self._add(1))
        adding.start()
        began = time.monotonic()
        with self.only_unavailable("wait()"):
            reader.wait(dict(places), self.seconds)
        took = time.monotonic() - began
        adding.join()
        self.expect(took < self.seconds * 0.9, f"wait() took {took:.1f} s, and a message came after 0.1 s")
        found = self._read_on(reader, dict(places), 1)
        self._same_numbers(found, range(self._put - 1, self._put), "after it was waited for")
        self._close(reader)

    @Promise
    def lag(self) -> None:
        """If a source can say how many messages are behind the places, it says so."""
        self._add(10)
        reader, places = self._begun("beginning")
        there = self._put - self._removed
        found = self._read(reader, places, AT_ONCE)
        if found.lag is None:
            raise NotChecked("lag is None: the source can't tell")
        self.expect(
            found.lag == there, f"lag is {found.lag} behind the beginning, and {there} messages are there, unread"
        )
        _, end = self._begin(reader, "beginning"), self._begin(reader, "end")
        lag = self._read(reader, end).lag
        self.expect(lag == 0, f"lag is {lag} behind the end")
        self._close(reader)

    @Promise
    def thread(self) -> None:
        """A reader works in the thread that opens it, whichever that is."""

        def work() -> None:
            reader, places = self._begun("beginning")
            self._read_on(reader, places, self._put - self._removed)
            self._close(reader)

        in_a_thread(work)

    @Promise
    def gone(self) -> None:
        """Messages that were removed before they were read are told, and counted, once."""
        self.needs(self._remove, "remove")
        self._add(10)
        reader, places = self._begun("beginning")
        before = self._read_on(reader, places, self._put - self._removed - 10)
        if len({one.log for one in before} | set(places)) != 1:
            raise NotChecked("the source has several logs, so the oldest messages are not those of one")
        removed = self._put - 10 - self._removed + 4
        self._remove(removed)
        self._removed += removed
        other = self._opened()
        for one, which in ((other, "another reader"), (reader, "the reader that was open")):
            found = self._read(one, places)
            told = sum(gone.messages for gone in found.gone)
            self.expect(
                told == 4, f"four messages were removed before they were read, and {which} tells {told}: {found.gone}"
            )
            for gone in found.gone:
                self.expect(isinstance(gone, GoneMessages), f"gone has {gone!r}, expected GoneMessages")
            further = {**places, **{gone.log: gone.place for gone in found.gone}}
            self._expect_json(further, "behind what is gone there is")
            rest = self._read_on(one, further, 6)
            self._same_numbers(rest, range(self._put - 6, self._put), "behind what is gone")
        self._close(other)
        self._close(reader)

    @Promise
    def outage(self) -> None:
        """While the broker is away SourceUnavailable is raised, and afterwards it goes on from the same places."""
        self.needs(self._stop, "stop")
        self.needs(self._start, "start")
        self._add(3)
        reader, places = self._begun("beginning")
        before = self._read_on(reader, places, self._put - self._removed)
        closed = self._source.reader()
        self._stop()
        try:
            self.must_be_unavailable("read()", lambda: reader.read(dict(places), AT_ONCE))

            def all_of_it() -> None:
                closed.open()
                closed.begin("beginning")

            self.must_be_unavailable("open() or begin()", all_of_it)
            self.close(reader, "lost its broker")
            self.close(closed, "could not reach its broker")
        finally:
            self._start()
        reader = self.until_it_is_back(self._source.reader)
        self._add(2)
        self._same_numbers(self._read_on(reader, places, 2), range(self._put - 2, self._put), "after an outage")
        self.expect(before, "there were messages before the outage")
        self._close(reader)

    @Promise
    def closing(self) -> None:
        """`close` is called in any state, raises nothing and waits for nothing."""
        self.check_close(self._source.reader)

    @Promise
    def replaced(self) -> None:
        """A log that was made anew, and has more messages than the former one, is not taken for it."""
        self.needs(self._replace, "replace")
        self._add(3)
        reader, places = self._begun("beginning")
        self._read_on(reader, places, self._put - self._removed)
        self._replace()
        there, self._put, self._removed = self._put, 0, 0
        self._add(there + 5)
        other = self._opened()
        self.must_be_unavailable("read() from places of a log that was made anew", lambda: other.read(places, AT_ONCE))
        self.must_be_unavailable("read() by a reader that was open before", lambda: reader.read(places, AT_ONCE))
        self.close(reader, "found another log")
        self.close(other, "found another log")
        reader, places = self._begun("beginning")
        self._same_numbers(self._read_on(reader, places, self._put), range(self._put), "from the new beginning on")
        self._close(reader)

    def _begin(self, reader: Any, start: str) -> Places:
        with self.only_unavailable("begin()"):
            places = reader.begin(start)
        self.expect(
            isinstance(places, dict) and all(isinstance(log, str) for log in places),
            f"begin() gave {places!r}, expected places by the names of logs",
        )
        return dict(places)

    def _begun(self, start: str) -> tuple[Any, Places]:
        reader = self._opened()
        return reader, self._begin(reader, start)

    def _read(self, reader: Any, places: Places, most: int = AT_ONCE) -> Found:
        with self.only_unavailable("read()"):
            found: Found = reader.read(dict(places), most)
        self.expect(isinstance(found, Found), f"read() gave {found!r}, expected Found")
        return found

    def _read_on(self, reader: Any, places: Places, number: int) -> list[InboxMessage]:
        """Read so many messages, batch by batch, moving these places; fewer if they don't come in time."""
        messages: list[InboxMessage] = []
        deadline = time.monotonic() + self.seconds
        while True:
            found = self._read(reader, places, min(AT_ONCE, max(number - len(messages), 1)))
            self.expect(not found.gone, f"read() tells that messages are gone, and none was removed: {found.gone}")
            for one in found.messages:
                places[one.log] = one.place_behind
            messages += found.messages
            if len(messages) >= number or (not found.messages and time.monotonic() > deadline):
                return messages
            if not found.messages:
                with self.only_unavailable("wait()"):
                    reader.wait(dict(places), 0.1)

    def _same_numbers(self, found: Sequence[InboxMessage], numbers: range, when: str) -> None:
        """All of these once, and those of each log in their order."""
        by_log: dict[str, list[int]] = {}
        for one in found:
            try:
                number = self._number(one.body)
            except (TypeError, ValueError):
                self.expect(False, f"{when}, {one.address} has the body {one.body!r:.60}, which was not put so")
            by_log.setdefault(one.log, []).append(number)
        there = sorted(number for log in by_log.values() for number in log)
        self.expect(
            there == list(numbers), f"{when}, it reads the messages {there}, expected each of {list(numbers)} once"
        )
        for log, got in by_log.items():
            self.expect(got == sorted(got), f"{when}, it reads {got} of {log!r}, which is not the order of the log")

    def _same(self, found: Sequence[InboxMessage], expected: Sequence[InboxMessage], when: str) -> None:
        """The same messages, and those of each log in the same order."""
        for log in {one.log for one in [*found, *expected]}:
            got, wanted = ([one.address for one in some if one.log == log] for some in (found, expected))
            self.expect(got == wanted, f"{when} reads {got}, expected {wanted}")

    def _expect_json(self, places: Places, what: str) -> None:
        try:
            same = json.loads(json.dumps(places)) == places
        except (TypeError, ValueError):
            same = False
        self.expect(same, f"{what} {places!r}, which is not the same after it was JSON")

    def _close(self, reader: Any) -> None:
        self.close(reader, "has read")

    def _number(self, body: bytes | None) -> int:
        if body is None or not body.startswith(self._prefix):
            raise ValueError(body)
        return int(body.removeprefix(self._prefix))
