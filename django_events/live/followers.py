"""The listeners for which a tailer reads one topic, found by what their filters ask for.

    followers = Followers(topic, listener)
    for wanted, events in followers.fitting(portion).items():
        for listener in followers.of(wanted): ...

An event costs some look-ups by its key and its type, and work for the listeners that it fits, however many others there
are. Those it doesn't fit aren't touched: their position in the topic is `position`, which moves on when all that fit
have been offered their events. Only the tailer's thread changes it.
"""

from collections.abc import Iterator, Sequence

from django_events.live.feeds import Feed
from django_events.live.reading import LiveFilter, Tailed
from django_events.matching import ONE, REST, is_pattern
from django_events.received import ReceivedEvent

Term = tuple[str, str]
ANY: Term = ("any", "")  # of filters that may fit whatever the key and the type are
KEY, KEY_BEGIN, TYPE, TYPE_BEGIN = "key", "begin of the key", "type", "begin of the type"


class FilterIndex:
    """Filters by their terms: an event that a filter fits has one of these at least, see decision 0058."""

    def __init__(self) -> None:
        self._by_term: dict[Term, dict[LiveFilter, None]] = {}

    def add(self, wanted: LiveFilter) -> None:
        for term in terms(wanted):
            self._by_term.setdefault(term, {})[wanted] = None

    def discard(self, wanted: LiveFilter) -> None:
        for term in terms(wanted):
            filters = self._by_term.get(term, {})
            filters.pop(wanted, None)
            if not filters:
                self._by_term.pop(term, None)

    def fitting(self, event: ReceivedEvent) -> Iterator[LiveFilter]:
        """The filters whose types and keys fit an event, each once."""
        found: dict[LiveFilter, None] = {}
        for term in _terms_of(event):
            found |= self._by_term.get(term, {})
        return (wanted for wanted in found if wanted.fits(event))


def terms(wanted: LiveFilter) -> set[Term]:
    """What an event must have one of, so that a filter can fit it: of keys that are literal, or else of types.

    A key is for few events in most topics, a type for many. Of a pattern like `42.>` the first token is literal.
    """
    for patterns, whole, begin in ((wanted.keys, KEY, KEY_BEGIN), (wanted.types, TYPE, TYPE_BEGIN)):
        if patterns is not None and not any(_first(pattern) in (ONE, REST) for pattern in patterns):
            return {(begin, _first(one)) if is_pattern(one) else (whole, one) for one in patterns}
    return {ANY}


def _terms_of(event: ReceivedEvent) -> Iterator[Term]:
    yield ANY
    for text, whole, begin in ((event.key, KEY, KEY_BEGIN), (event.type, TYPE, TYPE_BEGIN)):
        if text is not None:
            yield whole, text
            yield begin, _first(text)


def _first(text: str) -> str:
    return text.partition(".")[0]


class Followers:
    """The listeners that a tailer reads one topic for. It begins with one of them."""

    def __init__(self, topic: Tailed, position: int) -> None:
        self.topic = topic
        self.position = position  # up to which id all followers were offered what fits them
        self.joining: dict[Feed, None] = {}  # those that have not seen all up to there
        self._index = FilterIndex()
        self._listeners: dict[LiveFilter, dict[Feed, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __iter__(self) -> Iterator[Feed]:
        return (listener for listeners in self._listeners.values() for listener in listeners)

    @property
    def begin(self) -> int:
        """Behind which id to read: that of the follower that is least far."""
        return min([self.position, *(one.fed(self.topic) for one in self.joining)])

    def join(self, listener: Feed) -> None:
        if listener.wanted not in self._listeners:
            self._listeners[listener.wanted] = {}
            self._index.add(listener.wanted)
        self._listeners[listener.wanted][listener] = None
        self.joining[listener] = None
        self._settle(listener)

    def drop(self, listener: Feed) -> None:
        self.joining.pop(listener, None)
        if (listeners := self._listeners.get(listener.wanted)) is None:
            return
        listeners.pop(listener, None)
        if not listeners:
            del self._listeners[listener.wanted]
            self._index.discard(listener.wanted)

    def of(self, wanted: LiveFilter) -> list[Feed]:
        return list(self._listeners.get(wanted, ()))

    def fitting(self, events: Sequence[ReceivedEvent]) -> dict[LiveFilter, list[ReceivedEvent]]:
        """The events that fit each filter, by type and key, for the filters that one at least fits."""
        fitting: dict[LiveFilter, list[ReceivedEvent]] = {}
        for event in events:
            for wanted in self._index.fitting(event):
                fitting.setdefault(wanted, []).append(event)
        return fitting

    def move_on(self, position: int) -> None:
        """All that fit have been offered the events up to there."""
        self.position = max(self.position, position)
        for listener in list(self.joining):
            self._settle(listener)

    def _settle(self, listener: Feed) -> None:
        """One that is as far as the others has their position from now on."""
        if listener.fed(self.topic) >= self.position:
            del self.joining[listener]
            listener.follow(self.topic, self)
