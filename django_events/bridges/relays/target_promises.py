"""The promises of a relay's target and its bridge, checked with a real broker.

    check_target(ToMainframe(), received=mainframe.addresses, stop=mainframe.stop, start=mainframe.start)

The target has to be empty. What is checked stands in `targets`, and what the relay relies on in `relaying`.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import count, islice
from typing import Any

from django.db import connections

from django_events.bridges.promises import BrokenPromise, NotChecked, Promise, Promises, in_a_thread
from django_events.bridges.relays.messages import message_of, names_of
from django_events.bridges.relays.targets import Newest, Overtaken, RelayMessage, Route, TargetUnavailable
from django_events.contracts.cloudevents import Names
from django_events.declarations import DeclaredRelay, RelayTarget
from django_events.declarations.declared_relay import forms_of
from django_events.exceptions import MessageRefused
from django_events.received import ReceivedEvent

TOPIC = "conformance"
AT_ONCE = 20  # messages of a batch
MANY = 90  # of several keys


def check_target(
    target: RelayTarget,
    *,
    received: Callable[[], Sequence[str]],
    refused: Callable[[RelayMessage], RelayMessage] | None = None,
    stop: Callable[[], Any] | None = None,
    start: Callable[[], Any] | None = None,
    secrets: Sequence[str] = (),
    seconds: float = 30.0,
    in_order: bool = True,
) -> dict[str, str]:
    """Check that a relay's target keeps the promises of `django_events.bridges.relays.targets`, by its real broker.

    `received` gives the addresses of all messages that the empty target got, in its order. `refused` makes of a message
    one that the target refuses for itself. `stop` and `start` are of the broker, and `seconds` how long it may take
    to be back. `secrets` may be in no error. `in_order` is whether the target has an order, that of each key. Returns
    what became of each promise; AssertionError says which are broken.
    """
    given = {"stop": stop, "start": start, "secrets": secrets, "seconds": seconds}
    return TargetPromises(target, received=received, refused=refused, in_order=in_order, **given).check(target)


class TargetPromises(Promises):
    """Each has messages of its own, with ids above those of the ones before."""

    of = "a bridge (django_events.bridges.relays.targets)"
    unavailable = TargetUnavailable

    def __init__(self, target: Any, *, received: Any, refused: Any, in_order: bool, **options: Any) -> None:
        super().__init__(**options)
        self._target = target
        self._received = received
        self._refused = refused
        self._in_order = in_order
        self._relay = DeclaredRelay(name=TOPIC, topics=(TOPIC,), handler=None, to=target, form=forms_of(target)[0])
        self._ids = count(1)
        self._bridge = target.bridge  # what makes the bridges that are checked

    @Promise
    def declared(self) -> None:
        """What `check` and the workers ask of the target before anything is sent."""
        self.expect(
            isinstance(self._target, RelayTarget), "it needs the methods problems, check_installed, route and bridge"
        )
        problems = list(self._target.problems())
        self.expect(not problems, f"problems() says {problems}")
        self._target.check_installed()
        route = self._message().route
        self.expect(
            isinstance(route, Route) and isinstance(route.to, str) and isinstance(route.log, str),
            f"route() returned {route!r}, expected a Route of two texts",
        )
        one, other = self._target.bridge(), self._target.bridge()
        self.expect(one is not other, "bridge() returned the same bridge twice: each thread needs one of its own")
        missing = [name for name in ("open", "newest", "send", "close", "largest") if not hasattr(one, name)]
        self.expect(not missing, f"its bridge has no {', '.join(missing)}")
        prefix = getattr(one, "prefix", "")
        self.expect(isinstance(prefix, str), f"prefix is {prefix!r}, expected a text")
        self.expect(
            one.largest is None or isinstance(one.largest, int), f"largest is {one.largest!r}, expected bytes or None"
        )
        self.close(one, "was never opened")
        self.close(other, "was never opened")

    @Promise
    def empty(self) -> None:
        """An empty log is told as one."""
        log = self._message().route.log
        if not log:
            raise NotChecked("route() names no log")
        bridge = self._opened()
        newest = bridge.newest(log)
        self._close(bridge)
        if newest is None:
            raise NotChecked("newest() can't tell")
        self.expect(newest == Newest(0), f"newest() of a target that has nothing is {newest}, expected Newest(0)")

    @Promise
    def order(self) -> None:
        """A batch is there when `send` returns, in its order; so are the next one, and one of another bridge."""
        bridge = self._opened()
        for _ in range(2):
            self._send_all(bridge, self._messages(AT_ONCE))
        self._close(bridge)
        bridge = self._opened()
        self._send_all(bridge, self._messages(1))
        self._close(bridge)

    @Promise
    def keys(self) -> None:
        """Each key of a batch is in its order, however they take turns."""
        bridge = self._opened()
        keys = [f"key {number * number % 11}" for number in range(MANY)]
        self._send_all(bridge, [self._message(key=key) for key in keys])
        self._close(bridge)

    @Promise
    def content(self) -> None:
        """Payloads and keys of all kinds are taken."""
        bridge = self._opened()
        self._send_all(bridge, [self._message(body=b"\xff\0"), self._message(body=b""), self._message(value=None)])
        self._send_all(bridge, [self._message(key="Zoë % /\n"), self._message(key="k" * 500), self._message(key="")])
        self._send_all(bridge, [self._message(type="größer.als"), self._message(metadata={"traceparent": "00-a-b-01"})])
        self._send_all(bridge, [self._message(key=None)])
        self._close(bridge)

    @Promise
    def sends_only(self) -> None:
        """A bridge that says so asks no database of Django's in `send`: the next batch is read there meanwhile."""
        bridge, messages = self._opened(), self._messages(2)
        if not getattr(bridge, "sends_only", False):
            self._close(bridge)
            raise NotChecked("it doesn't say so")

        def refuse(*asked: Any) -> Any:
            raise BrokenPromise("it says sends_only, and its send() asked a database of Django's")

        with ExitStack() as stack:
            for one in connections.all():
                stack.enter_context(one.execute_wrapper(refuse))
            with self.only_unavailable("send()"):
                self._none_refused(bridge.send(messages), messages)
        self._close(bridge)

    @Promise
    def thread(self) -> None:
        """A bridge works in the thread that opens it, whichever that is."""

        def work() -> None:
            bridge = self._opened()
            self._send_all(bridge, self._messages(2))
            self._close(bridge)

        in_a_thread(work)

    @Promise
    def newest(self) -> None:
        """What a log has is told by a bridge that has sent nothing itself."""
        self._needs_a_log()
        message = self._sent(2)[-1]
        newest = self._newest()
        self.expect(
            newest.event_id == message.event_id,
            f"newest() says {newest.event_id} after event {message.event_id} was sent",
        )
        self.expect(newest.address in ("", message.address), f"newest() says {newest.address!r} of {message.address!r}")
        self.expect(newest.relay in ("", TOPIC), f"newest() says that {newest.relay!r} sent it, and it was {TOPIC!r}")
        time = message.attributes[self._names.time]
        self.expect(
            newest.published_at in (None, datetime.fromisoformat(time)),
            f"newest() says {newest.published_at}, and the message {time}",
        )

    @Promise
    def overtaken(self) -> None:
        """A bridge that doesn't know what another one has sent doubles nothing, and leaves nothing out.

        It may find that out by itself, or raise Overtaken, whether it has sent those that are missing or not.
        """
        self._needs_a_log()
        for ahead in (1, 2, 3):  # of three; two in front of a stale bridge is not the same as one
            messages = self._messages(3)
            expected, log = [one.address for one in messages], messages[0].route.log
            slow, fast = self._opened(), self._opened()
            self._send_all(fast, messages[:ahead])
            with suppress(Overtaken), self.only_unavailable("send()", Overtaken):
                self._none_refused(slow.send(messages), messages)
            when = f"another bridge was {ahead} of 3 messages ahead of one that sent them too"
            there = self._there(expected)
            self.expect(
                there == expected[: len(there)] and len(there) >= ahead,
                f"{when}, and the target has {there}: something is doubled, or left out",
            )
            newest, last = slow.newest(log), messages[len(there) - 1]
            self.expect(
                newest is not None and newest.event_id == last.event_id,
                f"{when}, and newest() says {newest} then, expected {last.event_id}",
            )
            if left := messages[len(there) :]:
                self._send_all(slow, left)
            self._close(slow)
            self._close(fast)

    @Promise
    def refused(self) -> None:
        """One message that the target refuses for itself is said as that, and no neighbour is lost."""
        self.needs(self._refused, "refused")
        bridge = self._opened()
        messages = self._messages(3)
        sent = [messages[0], self._refused(messages[1]), messages[2]]
        with self.only_unavailable("send()"):
            answers = list(bridge.send(sent))
        self.expect(
            len(answers) in (2, 3) and answers[0] is None and isinstance(answers[1], MessageRefused),
            f"send() of three messages, the second of which can't be taken, returned {answers}, expected None, a "
            "MessageRefused, and perhaps None",
        )
        self._said_all(answers)
        self.expect(answers[2:] in ([], [None]), f"send() says {answers[2:]} of a message behind one that is refused")
        taken = [messages[0], *messages[2:][: len(answers) - 2]]
        self._has_once(taken)
        left = [one for one in messages if one not in taken]
        self.expect(
            not {one.address for one in left} & set(self._received()),
            "a message that was refused, or that is left out of the answers, is there",
        )
        self._close(bridge)
        if len(answers) == 2:
            bridge = self._opened()
            self._send_all(bridge, messages[2:])
            self._close(bridge)

    @Promise
    def redriven(self) -> None:
        """A dead letter comes behind events of higher ids, and doesn't hide which one is the newest."""
        late = self._message(redriven=True)
        above = self._sent(2)[-1]
        bridge = self._opened()
        self._send_all(bridge, [late])
        self._close(bridge)
        there = self._there([late.address, above.address])
        expected = self._as_ordered([above.address, late.address])
        self.expect(self._as_ordered(there) == expected, f"a dead letter was sent last, and the target has {there}")
        if self._tells():
            newest = self._newest()
            self.expect(
                newest.event_id == above.event_id,
                f"newest() says {newest.event_id} behind a dead letter, and the newest event is {above.event_id}",
            )
        self._sent(2)

    @Promise
    def outage(self) -> None:
        """While the broker is away TargetUnavailable is raised, and what it took by then is not sent twice."""
        self.needs(self._stop, "stop")
        self.needs(self._start, "start")
        messages = self._messages(5)
        bridge, closed = self._opened(), self._target.bridge()
        self._stop()
        try:
            error: Any = self.must_be_unavailable("send()", lambda: bridge.send(messages))
            self.expect(
                0 <= error.acknowledged < len(messages),
                f"send() says that {error.acknowledged} of {len(messages)} are acknowledged, with the broker stopped",
            )

            def all_of_it() -> None:
                closed.open()
                closed.newest(messages[0].route.log)
                closed.send(messages)

            self.must_be_unavailable("open(), newest() or send()", all_of_it)
            self.close(bridge, "lost its broker")
            self.close(closed, "could not reach its broker")
        finally:
            self._start()
        bridge = self.until_it_is_back(self._target.bridge)
        newest = bridge.newest(messages[0].route.log) if messages[0].route.log else None
        known = -1 if newest is None else newest.event_id
        if left := [one for one in messages[error.acknowledged :] if one.event_id > known]:
            with self.only_unavailable("send()"):
                self._none_refused(bridge.send(left), left)
        there = self._there([one.address for one in messages])
        first, expected = self._as_ordered(list(dict.fromkeys(there))), [one.address for one in messages]
        self.expect(first == self._as_ordered(expected), f"after an outage {there} are there, of five messages")
        self.expect(newest is None or len(there) == 5, f"after an outage {there} are there, and newest() told of them")
        self._close(bridge)

    @Promise
    def shared(self) -> None:
        """Bridges that share something keep the same, of each other too, and one that is closed takes nothing along."""
        of_process = self._target.bridges() if hasattr(self._target, "bridges") else None
        if of_process is None:
            return
        missing = [name for name in ("bridge", "close") if not hasattr(of_process, name)]
        self.expect(not missing, f"what bridges() returned has no {', '.join(missing)}")
        self._bridge = of_process.bridge
        try:
            self._keep_by_turns()
            for again in (self.keys, self.thread, self.overtaken, self.redriven):
                with suppress(NotChecked):
                    again()
        except BrokenPromise as error:
            raise BrokenPromise(f"of the bridges that bridges() makes: {error}") from error
        finally:
            self._bridge = self._target.bridge
            self.close(of_process, "was shared")
        self.close(of_process, "was shared, and closed before")
        self.close(self._target.bridges(), "was shared by none")
        self._sent(1)

    @Promise
    def closing(self) -> None:
        """`close` is called in any state, raises nothing and waits for nothing."""
        self.check_close(self._target.bridge)

    def _keep_by_turns(self) -> None:
        """Two send by turns, in two threads; then one of them is closed, and the other one goes on."""
        one, other = self._opened(), self._opened()
        self.expect(one is not other, "the same bridge was made twice: each thread needs one of its own")
        for _ in range(2):
            self._send_knowing(one, self._messages(2))
            in_a_thread(lambda: self._send_knowing(other, self._messages(2)))
        self._close(one)
        in_a_thread(lambda: self._send_knowing(other, self._messages(2)))
        self._close(other)

    def _send_knowing(self, bridge: Any, messages: Sequence[RelayMessage]) -> None:
        """Send what comes behind that of another bridge, as the relay does: when it was overtaken, it asks first."""
        try:
            with self.only_unavailable("send()", Overtaken):
                self._none_refused(bridge.send(messages), messages)
        except Overtaken:
            bridge.newest(messages[0].route.log)
            there = self._there([one.address for one in messages])
            with self.only_unavailable("send()"):
                self._none_refused(bridge.send(messages[len(there) :]), messages[len(there) :])
        self._has_once(messages)

    def _message(self, *, event_id: int | None = None, redriven: bool = False, **given: Any) -> RelayMessage:
        """The next event, as the relay would send it."""
        now = datetime.now(UTC)
        body, key, metadata = given.get("body"), given.get("key", "one"), json.dumps(given.get("metadata", {}))
        event_id = next(self._ids) if event_id is None else event_id
        value = json.dumps(given.get("value", {"n": event_id})) if body is None else None
        kind = given.get("type", "conformance.checked")
        columns = (event_id, 0, event_id, kind, key, value, body, metadata, now, now)
        event = ReceivedEvent(TOPIC, columns, consumer=TOPIC)
        route = self._target.route(event, 0)
        message = message_of(event, self._relay, route, redriven=redriven, names=self._names)
        assert message is not None  # noqa: S101
        return message

    @cached_property
    def _names(self) -> Names:
        bridge = self._target.bridge()
        with suppress(Exception):  # what it is that closing raises, others find out
            bridge.close()
        return names_of(bridge)

    def _messages(self, number: int) -> list[RelayMessage]:
        return [self._message() for _ in range(number)]

    def _opened(self) -> Any:
        """A bridge that knows what the target has, as the relay asks it before it sends."""
        bridge = self._bridge()
        with self.only_unavailable("open()"):
            bridge.open()
        route = self._message(event_id=0).route
        if route.log:
            with self.only_unavailable("newest()"):
                bridge.newest(route.log)
        return bridge

    def _close(self, bridge: Any) -> None:
        self.close(bridge, "has sent")

    def _sent(self, number: int) -> list[RelayMessage]:
        bridge, messages = self._opened(), self._messages(number)
        self._send_all(bridge, messages)
        self._close(bridge)
        return messages

    def _there(self, addresses: Sequence[str]) -> list[str]:
        """Which of these the target has, in its order, and as often as it has them."""
        return [address for address in self._received() if address in set(addresses)]

    def _send_all(self, bridge: Any, messages: Sequence[RelayMessage]) -> None:
        """Send, and look whether all is there, once, and in its order."""
        with self.only_unavailable("send()"):
            self._none_refused(bridge.send(messages), messages)
        there = self._there([one.address for one in messages])
        missing = [one.address for one in messages if one.address not in there]
        self.expect(
            not missing and len(there) == len(messages),
            f"send() of {_few([one.address for one in messages])} returned, and the target got {_few(there)}: "
            f"{_few(missing)} are missing, or some are there twice",
        )
        if self._in_order:  # no target promises an order of several keys
            for key in {one.key for one in messages if one.key is not None}:
                expected = [one.address for one in messages if one.key == key]
                got = [address for address in there if address in set(expected)]
                self.expect(
                    got == expected,
                    f"send() returned, and the target got {_few(got)} of the key {key!r}, expected {_few(expected)}",
                )

    def _as_ordered(self, addresses: list[str]) -> list[str]:
        """As the target has them; sorted if it has no order."""
        return addresses if self._in_order else sorted(addresses)

    def _none_refused(self, answers: Any, messages: Sequence[RelayMessage]) -> None:
        answers = list(answers)
        self._said_all(answers)
        self.expect(
            answers == [None] * len(messages),
            f"send() of {len(messages)} messages returned {_few(answers)}, expected None for each",
        )

    def _said_all(self, answers: Sequence[Exception | None]) -> None:
        for answer in answers:
            if answer is not None:
                self.said(answer)

    def _has_once(self, messages: Sequence[RelayMessage]) -> None:
        for message in messages:
            times = list(self._received()).count(message.address)
            self.expect(times == 1, f"{message.address} is there {times} times, expected once")

    def _tells(self) -> bool:
        log = self._message(event_id=0).route.log
        if not log:
            return False
        bridge = self._opened()
        found = bridge.newest(log)
        self._close(bridge)
        return found is not None

    def _needs_a_log(self) -> None:
        if not self._tells():
            raise NotChecked("newest() can't tell what the target has, so it is at least once")

    def _newest(self) -> Newest:
        bridge = self._opened()
        found: Newest = bridge.newest(self._message(event_id=0).route.log)
        self._close(bridge)
        return found


def _few(items: Sequence[Any]) -> str:
    shown = ", ".join(str(item) for item in islice(items, 6))
    return f"[{shown}{f', … {len(items)} in all' if len(items) > 6 else ''}]"
