"""The topics, consumers, clocks and inboxes that this process has declared, by name."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from django_events.declarations.declared_clock import DeclaredClock
from django_events.declarations.declared_consumer import DeclaredConsumer
from django_events.declarations.declared_inbox import DeclaredInbox
from django_events.declarations.declared_topic import DeclaredTopic
from django_events.declarations.declared_upcaster import DeclaredUpcaster, named
from django_events.exceptions import Invalid, Refused, UnknownName, did_you_mean


class Declared(Protocol):
    """What topics, consumers and clocks have in common."""

    @property
    def name(self) -> str: ...

    @property
    def declared_at(self) -> str: ...

    def problems(self) -> Iterator[str]: ...


T = TypeVar("T", bound=Declared)


class Registry(Generic[T]):
    """The declarations of one kind in this process, in the order in which they were made."""

    kind: ClassVar[str]
    example: ClassVar[str]

    def __init__(self) -> None:
        self._declared: list[T] = []
        self._by_name: dict[str, T] = {}

    def add(self, one: T) -> None:
        # A module that is loaded again declares the same at the same place again.
        self._set([t for t in self._declared if (t.name, t.declared_at) != (one.name, one.declared_at)] + [one])

    def discard(self, one: T) -> None:
        self._set([t for t in self._declared if t is not one])

    def _set(self, declared: list[T]) -> None:
        self._declared = declared
        self._by_name = {one.name: one for one in reversed(declared)}

    def __iter__(self) -> Iterator[T]:
        return iter(self._declared)

    def get(self, one: T | str) -> T:
        """The declaration that is meant; the error for an unknown one names the likely one."""
        name: Any = one if isinstance(one, str) else getattr(one, "name", one)
        try:
            return self._by_name[name]
        except (KeyError, TypeError):
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise UnknownName(
                f"No installed app declares {article} {self.kind} {name!r}. {did_you_mean(str(name), self._by_name)} "
                f"Declare it in an app's events.py: {self.example.format(name)}."
            ) from None

    def check(self) -> None:
        """Raise for the first declaration that is not valid."""
        for _, problem in self.problems():
            raise Invalid(problem)

    def problems(self) -> Iterator[tuple[T, str]]:
        """Yield each wrong declaration with the reason, duplicates included."""
        places: dict[str, str] = {}
        for one in self:
            yield from ((one, problem) for problem in one.problems())
            if one.name in places:
                yield (
                    one,
                    f"{self.kind.capitalize()} {one.name!r} is declared twice: "
                    f"{places[one.name]} and {one.declared_at}.",
                )
            places.setdefault(one.name, one.declared_at)


class TopicRegistry(Registry[DeclaredTopic]):
    kind = "topic"
    example = "topic({!r})"


class ConsumerRegistry(Registry[DeclaredConsumer]):
    kind = "consumer"
    example = "@consumer(…, name={!r})"

    def problems(self) -> Iterator[tuple[DeclaredConsumer, str]]:
        """As of any; and whose outcomes come back to it, which would be events without end."""
        yield from super().problems()
        for one in self:
            if one.outcomes is not None and not self._led_to(one.outcomes).isdisjoint(one.topics):
                yield (
                    one,
                    f"Consumer {one.name!r} has outcomes={one.outcomes!r}, which leads back to what it reads: each "
                    "outcome would be another event to handle, without end. Give them a topic that it doesn't read.",
                )

        yield from self._sharing_an_id()

    def _sharing_an_id(self) -> Iterator[tuple[DeclaredConsumer, str]]:
        """Relays with one transactional id keep each other out by turns, for ever."""
        first: dict[tuple[str, str], DeclaredConsumer] = {}
        for one in self:
            to = getattr(one, "to", None)
            if (name := getattr(to, "transactional_id", None)) is None:
                continue
            other = first.setdefault((getattr(to, "broker", ""), name), one)
            if other is not one:
                yield (
                    one,
                    f"Relay {one.name!r} has the transactional_id {name!r}, as relay {other.name!r} has, and Kafka "
                    "lets only one of them write. Give each its own.",
                )

    def _led_to(self, topic: str) -> set[str]:
        """A topic, and those that get the outcomes of its consumers, and so on."""
        found, left = {topic}, [topic]
        while left:
            at = left.pop()
            further = {one.outcomes for one in self if one.outcomes is not None and at in one.topics} - found
            found |= further
            left.extend(further)
        return found


class ClockRegistry(Registry[DeclaredClock]):
    kind = "clock"
    example = "topic(…).every(…, name={!r})"


class InboxRegistry(Registry[DeclaredInbox]):
    kind = "inbox"
    example = "inbox(…, name={!r})"

    def __init__(self) -> None:
        super().__init__()
        self.mirrors: dict[str, DeclaredInbox] = {}  # by their topics

    def add(self, one: DeclaredInbox) -> None:
        super().add(one)
        self.mirrors = {inbox.topic: inbox for inbox in self if inbox.keep_ids}

    def discard(self, one: DeclaredInbox) -> None:
        super().discard(one)
        self.mirrors = {inbox.topic: inbox for inbox in self if inbox.keep_ids}

    def problems(self) -> Iterator[tuple[DeclaredInbox, str]]:
        """As of any; consumers to wait for that don't read the topic; and what else publishes to a mirror.

        A mirror has the events of another site only.
        """
        yield from super().problems()
        for inbox in self:
            yield from ((inbox, problem) for problem in self._problems_of_most_lag(inbox))
        for mirror in self.mirrors.values():
            others = [f"inbox {one.name!r}" for one in self if one.topic == mirror.topic and one is not mirror]
            others += [f"clock {one.name!r}" for one in clocks if one.topic == mirror.topic]
            others += [f"consumer {one.name!r}, by its outcomes," for one in consumers if one.outcomes == mirror.topic]
            for other in others:
                yield (
                    mirror,
                    f"Topic {mirror.topic!r} is a mirror of {mirror.source}, and {other} publishes to it: a mirror has "
                    "the events of its source only. Give the others a topic of their own.",
                )

    def _problems_of_most_lag(self, inbox: DeclaredInbox) -> Iterator[str]:
        if not isinstance(inbox.most_lag, Mapping):
            return
        readers = [one.name for one in consumers if inbox.topic in one.topics]
        for name in inbox.most_lag:
            if name not in readers:
                yield (
                    f"Inbox {inbox.name!r} has most_lag of {name!r}, and no installed app declares a consumer of that "
                    f"name that reads topic {inbox.topic!r}. {did_you_mean(str(name), readers)}"
                )

    def refuse_publishing(self, topic: str) -> None:
        """Refused if a topic is a mirror."""
        if (mirror := self.mirrors.get(topic)) is not None:
            raise Refused(
                f"Topic {topic!r} is a mirror of {mirror.source}: it has the events of that site only. Nothing was "
                "published. Publish there, or to a topic of this site."
            )


class UpcasterRegistry(Registry[DeclaredUpcaster]):
    kind = "upcaster"
    example = "@upcaster({!r}, 1)"

    def step(self, type: str, version: int) -> DeclaredUpcaster | None:
        """The upcaster of a type that takes a value from this version to the next one."""
        return self._by_name.get(named(type, version))


registry = TopicRegistry()
consumers = ConsumerRegistry()
clocks = ClockRegistry()
inboxes = InboxRegistry()
upcasters = UpcasterRegistry()
