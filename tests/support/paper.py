"""Brokers in memory that keep all promises, as a target, as a source and as a queue, and ways to break each of them."""

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from django_events.bridges.inboxes.queue_sources import QueuedMessage, QueueInUse
from django_events.bridges.inboxes.sources import Found, GoneMessages, InboxMessage, SourceUnavailable
from django_events.bridges.relays.targets import Newest, Overtaken, Route, TargetUnavailable
from django_events.exceptions import MessageRefused


class Paper:
    """What is written: entries with the numbers 1, 2, 3 …"""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.newest = 0  # the event, of relays
        self.removed = 0
        self.made = 1
        self.is_away = False
        self.lock = threading.RLock()

    @property
    def last(self) -> int:
        return self.removed + len(self.entries)

    def stop(self) -> None:
        self.is_away = True

    def start(self) -> None:
        self.is_away = False

    def put(self, bodies: Sequence[bytes]) -> None:
        with self.lock:
            self.entries += bodies

    def remove(self, entries: int) -> None:
        del self.entries[:entries]
        self.removed += entries

    def replace(self) -> None:
        self.entries, self.removed, self.made = [], 0, self.made + 1


class ToPaper:
    """A target. What it breaks is said by name."""

    def __init__(self, paper: Paper, *, breaks: str = "") -> None:
        self.paper = paper
        self.breaks = breaks
        self.only: Any = None

    def problems(self) -> Any:
        return iter(["it is wet"] if self.breaks == "problems" else [])

    def check_installed(self) -> None:
        pass

    def route(self, event: Any, partition: int | None) -> Any:
        return ("paper", "paper") if self.breaks == "route" else Route("paper", "paper")

    def bridge(self) -> "PaperBridge":
        if self.breaks == "one bridge":
            self.only = self.only or PaperBridge(self.paper, self.breaks)
            return self.only  # type: ignore[no-any-return]
        return PaperBridge(self.paper, self.breaks)


class SharedPaper(ToPaper):
    """A target whose bridges share a pen, and with it what is known of the paper."""

    def bridges(self) -> "PaperPen":
        return PaperPen(self.paper, self.breaks)


class PaperPen:
    def __init__(self, paper: Paper, breaks: str) -> None:
        self.paper, self.breaks = paper, breaks
        self.bridges: list[PaperBridge] = []
        self.is_closed = False

    def bridge(self) -> "PaperBridge":
        if self.breaks != "shares one bridge" or not self.bridges:
            self.bridges.append(PenBridge(self))
        return self.bridges[-1]

    def close(self) -> None:
        if self.breaks == "pen is closed once" and self.is_closed:
            raise AttributeError("closed")
        self.is_closed = True


class PaperBridge:
    largest = None
    sends_only = True

    def __init__(self, paper: Paper, breaks: str) -> None:
        self.paper = paper
        self.breaks = breaks
        self.prefix: Any = 7 if breaks == "prefix" else "paper-"
        self.known: int | None = None
        self.is_open = False
        self.thread = threading.get_ident()

    def open(self) -> None:
        self._ask()
        self.is_open = True
        if self.breaks == "main thread" and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal only works in main thread")

    def newest(self, log: str) -> Newest | None:
        self._ask()
        self.known = self.paper.last
        if self.breaks == "newest is behind" and self.paper.newest:
            return Newest(self.paper.newest - 1)
        if self.breaks == "empty is 1" and not self.paper.newest:
            return Newest(1)
        if self.breaks == "another relay":
            return Newest(self.paper.newest, relay="other" if self.paper.newest else "")
        return Newest(self.paper.newest)

    def send(self, messages: Sequence[Any]) -> Any:
        self._ask()
        if self.breaks == "asks the database":
            connection.cursor().execute("SELECT 1")
            if threading.current_thread() is not threading.main_thread():
                connection.close()  # nothing else does
        with self.paper.lock:
            if self.known != self.paper.last and self.breaks != "doubles":
                if self.breaks == "rest is sent":
                    self._write(messages[-1:])
                raise Overtaken
            answers: list[Exception | None] = []
            for message in messages:
                if message.body == b"too large":
                    if self.breaks == "refused stops all":
                        raise TargetUnavailable("too large")
                    answers.append(MessageRefused("It is too large."))
                    if self.breaks == "refused is there":
                        self._write([message])
                    break
                if self.breaks == "mixes keys" and len({one.key for one in messages}) > 5:
                    self._write([one for one in messages if one.key == message.key][::-1])
                    break
                if self.breaks == "no empty body" and message.body == b"":
                    answers.append(MessageRefused("It is empty."))
                    continue
                self._write([message])
                answers.append(None)
            if self.breaks == "not acknowledged":
                self.paper.entries.pop()
            if self.breaks == "reversed":
                self.paper.entries[-len(messages) :] = reversed(self.paper.entries[-len(messages) :])
            if self.breaks == "one answer short":
                return answers[:-1]
            self.known = self.paper.last
            return answers

    def _write(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self.paper.entries.append(message.address)
            if not message.redriven or self.breaks == "dead letter is newest":
                self.paper.newest = (
                    message.event_id
                    if self.breaks == "dead letter is newest"
                    else max(self.paper.newest, message.event_id)
                )

    def _ask(self) -> None:
        if self.paper.is_away:
            if self.breaks == "other error":
                raise ConnectionError("gone")
            if self.breaks == "secret":
                raise TargetUnavailable("postman:hunter-two@paper is away")
            raise TargetUnavailable("the paper is away")

    def close(self) -> None:
        if self.breaks == "close raises" and not self.is_open:
            raise AttributeError("not open")
        if self.breaks == "close twice":
            del self.paper


class PenBridge(PaperBridge):
    """One that takes all others along when it is closed, or doubles what they have sent, if that is to be broken."""

    def __init__(self, pen: PaperPen) -> None:
        super().__init__(pen.paper, "doubles" if pen.breaks == "shares doubles" else "")
        self.pen = pen

    def send(self, messages: Sequence[Any]) -> Any:
        if self.pen.is_closed:
            raise TargetUnavailable("the pen is closed")
        return super().send(messages)

    def close(self) -> None:
        super().close()
        if self.pen.breaks == "close takes all along":
            self.pen.is_closed = True


class FromPaper:
    """A source. What it breaks is said by name."""

    def __init__(self, paper: Paper, *, breaks: str = "") -> None:
        self.paper = paper
        self.breaks = breaks

    def __str__(self) -> str:
        return object.__repr__(self) if self.breaks == "no name" else "paper"

    def problems(self) -> Any:
        return iter(["it is wet"] if self.breaks == "problems" else [])

    def check_installed(self) -> None:
        pass

    def reader(self) -> "PaperReader":
        return PaperReader(self.paper, self.breaks)


class PaperReader:
    def __init__(self, paper: Paper, breaks: str) -> None:
        self.paper = paper
        self.breaks = breaks
        self.passed = 0
        self.is_open = False

    def open(self) -> None:
        self._ask()
        self.is_open = True
        if self.breaks == "main thread" and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal only works in main thread")

    def begin(self, start: str) -> Any:
        self._ask()
        if start == "beginning":
            return self._places(self.paper.removed)
        if start == "end" and self.breaks != "end is beginning":
            return self._places(self.paper.last)
        if start.isdigit() and int(start) <= self.paper.last:
            return self._places(int(start) - (self.breaks == "begins at it"))
        if self.breaks in ("nonsense", "end is beginning"):
            return self._places(0)
        raise SourceUnavailable(f"no message {start}")

    def read(self, places: Any, most: int) -> Found:
        self._ask()
        with self.paper.lock:
            return self._read(places, most)

    def _read(self, places: Any, most: int) -> Found:
        number, made = (*places["paper"],)[:2]
        if self.breaks == "keeps its position":
            number = self.passed = max(self.passed, number)
        if (made != self.paper.made or self.paper.last < number) and self.breaks != "takes another":
            raise SourceUnavailable("the paper was made anew")
        gone, first = [], max(number, self.paper.removed)
        if first > number and self.breaks != "gone is not told":
            told = first - number + (self.breaks == "gone is miscounted")
            gone = [GoneMessages("paper", told, str(number), str(first + 1), self._place(first))]
        begin = first - self.paper.removed
        most = most + 1 if self.breaks == "too many" else most
        bodies = self.paper.entries[begin : begin + most]
        if not bodies and self.breaks == "read waits":
            time.sleep(1.2)
        numbers = range(first + 1, first + 1 + len(bodies))
        messages = [self._message(number, body) for number, body in zip(numbers, bodies, strict=True)]
        if self.breaks == "reversed":
            messages.reverse()
        if self.breaks == "leaves out":
            messages = [one for one in messages if int(one.id) % 5]
        self.passed = first + len(messages)
        return Found(messages, gone, self.paper.last - first + (self.breaks == "lag"))

    def wait(self, places: Any, seconds: float) -> None:
        self._ask()
        deadline = time.monotonic() + seconds + (1.5 if self.breaks == "wait is late" else 0)
        while time.monotonic() < deadline:
            if self.breaks not in ("wait is late", "wait sleeps") and self.paper.last > places["paper"][0]:
                return
            time.sleep(0.01)

    def _message(self, number: int, body: bytes) -> InboxMessage:
        return InboxMessage(
            id="1" if self.breaks == "ids" else str(number),
            log="paper",
            place=self._place(number),
            body=body.decode("utf-8", "replace").encode() if self.breaks == "bodies" else body,
            headers={"Type": "x"} if self.breaks == "headers" else {},
        )

    def _place(self, number: int) -> Any:
        return (number, self.paper.made) if self.breaks == "places" else [number, self.paper.made]

    def _places(self, number: int) -> Any:
        return {"paper": self._place(number)}

    def _ask(self) -> None:
        if self.paper.is_away:
            if self.breaks == "other error":
                raise ConnectionError("gone")
            if self.breaks == "secret":
                raise SourceUnavailable("postman:hunter-two@paper is away")
            raise SourceUnavailable("the paper is away")

    def close(self) -> None:
        if self.breaks == "close raises" and not self.is_open:
            raise AttributeError("not open")


class Tray:
    """A queue of letters. Each is given to one reader, and back in its place when that closes."""

    def __init__(self) -> None:
        self.letters: dict[int, bytes] = {}  # by number, the oldest first
        self.hands: dict[int, Any] = {}  # by number, which reader has it
        self.last = 0
        self.is_away = False

    def stop(self) -> None:
        self.is_away = True
        self.hands.clear()

    def start(self) -> None:
        self.is_away = False

    def put(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.last += 1
            self.letters[self.last] = body


class FromTray:
    """A source that is a queue. What it breaks is said by name."""

    is_queue = True

    def __init__(self, tray: Tray, *, breaks: str = "", in_order: bool = True) -> None:
        self.tray = tray
        self.breaks = breaks
        self.in_order = in_order
        self.window: Any = 4 if breaks == "window" else timedelta(days=4)

    def __str__(self) -> str:
        return object.__repr__(self) if self.breaks == "no name" else "tray"

    def problems(self) -> Any:
        return iter(["it is wet"] if self.breaks == "problems" else [])

    def check_installed(self) -> None:
        pass

    def reader(self) -> "TrayReader":
        return TrayReader(self)


class TrayReader:
    def __init__(self, source: FromTray) -> None:
        self.tray, self.breaks, self.in_order = source.tray, source.breaks, source.in_order
        self.holds = 0.0 if self.breaks == "holds" else 1.0
        self.back: list[int] = []
        self.is_open = False

    def open(self) -> None:
        self._ask()
        self.is_open = True
        if self.breaks == "main thread" and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal only works in main thread")

    def receive(self, most: int) -> Any:
        self._ask()
        if self.breaks == "in use":
            raise QueueInUse("another one reads the tray")
        taken = set() if self.breaks == "shares" else set(self.tray.hands)
        free = [number for number in self.tray.letters if number not in taken]
        if self.breaks == "gives nothing":
            free = []
        if self.breaks == "given back behind":
            free.sort(key=lambda number: number in self.back)
        if self.breaks == "given back is lost":
            free = [number for number in free if number not in self.back]
        numbers = free[: most + (self.breaks == "too many")]
        if not numbers:
            time.sleep(2.2 if self.breaks == "waits" else 0.01)
        if self.breaks == "reversed":
            numbers.reverse()
        self.tray.hands.update(dict.fromkeys(numbers, self))
        if self.breaks == "bare":
            return [self._message(number).message for number in numbers]
        found = [self._message(number) for number in numbers]
        if self.breaks == "forgets at once":
            self._forget(numbers)
        return found

    def acknowledge(self, messages: Iterable[QueuedMessage]) -> None:
        self._ask()
        if self.breaks == "forgets nothing":
            return
        self._forget([one.message.place for one in messages])

    def give_back(self, messages: Iterable[QueuedMessage], after: timedelta) -> None:
        self._ask()
        for one in messages:
            self.tray.hands.pop(one.message.place, None)
            self.back.append(one.message.place)

    def lag(self) -> int | None:
        self._ask()
        if self.breaks == "cannot tell":
            return None
        return len(self.tray.letters) + (self.breaks == "lag")

    def keep(self) -> None:
        if self.breaks == "keep raises":
            raise AttributeError("nothing to keep")
        if self.breaks == "keep waits":
            time.sleep(1.2)

    def close(self) -> None:
        if self.breaks == "close raises" and not self.is_open:
            raise AttributeError("not open")
        if self.breaks != "keeps what it had":
            self.tray.hands = {number: hand for number, hand in self.tray.hands.items() if hand is not self}

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.tray.letters.pop(number, None)
            self.tray.hands.pop(number, None)

    def _message(self, number: int) -> QueuedMessage:
        body = self.tray.letters[number]
        identity: str | None = {"same identity": "letter", "other identity": f"letter {number} of {id(self)}"}.get(
            self.breaks, f"letter {number}"
        )
        message = InboxMessage(
            id=str(number),
            log="tray",
            place=number,
            body=body.decode("utf-8", "replace").encode() if self.breaks == "bodies" else body,
            headers={"Type": "x"} if self.breaks == "headers" else {},
        )
        return QueuedMessage(message, identity, "" if self.in_order else None)

    def _ask(self) -> None:
        if self.tray.is_away and self.breaks != "no outage":
            if self.breaks == "other error":
                raise ConnectionError("gone")
            if self.breaks == "secret":
                raise SourceUnavailable("postman:hunter-two@tray is away")
            raise SourceUnavailable("the tray is away")
