"""What the verbs of an operator return: plain tuples, so that declarations can name them without Django."""

from datetime import datetime
from typing import NamedTuple


class Move(NamedTuple):
    """A partition of a consumer, the next event it would have handled, and the one it handles now.

    So many events come again; with a minus, so many are left out. Of a queue, where some were handled and others not,
    events may come again while others are left out.
    """

    topic: str
    partition: int
    before: int
    after: int
    dead_letters: int
    events: int
    left_out: int = 0

    @property
    def again(self) -> int:
        """How many events come again."""
        return max(self.events, 0)

    @property
    def omitted(self) -> int:
        """How many events are left out."""
        return self.left_out or max(-self.events, 0)


class Snapshot(NamedTuple):
    """How many rows of a table were published to a topic, as events of which type, of about how many, and whether all
    were. None where it isn't known how many there are.
    """

    topic: str
    table: str
    type: str
    rows: int
    about: int | None
    finished: bool


class Retried(NamedTuple):
    """A topic of a consumer, and how many partitions of it, or deliveries of a queue, are tried again now."""

    topic: str
    partitions: int
    deliveries: int


class Skipped(NamedTuple):
    """An event that a consumer gave up on by hand, how often it was attempted before, and the last error of that.

    Its partition is -1 if the event is missing from the log.
    """

    topic: str
    event_id: int
    partition: int
    attempts: int
    error: str


class Replayed(NamedTuple):
    """How many chosen events of a topic a consumer handles again, or would.

    Others of those chosen are not handled yet (`pending`), not meant for it (`filtered`), or are to be handled again
    already (`waiting`).
    """

    topic: str
    events: int
    pending: int
    filtered: int
    waiting: int


class Rebuilt(NamedTuple):
    """How far a derived table is filled anew: up to which id of each topic, of how many that are to be folded.

    `finished` says that it is served now. `failed` events could not be folded; `continued` says that an earlier rebuild
    went on.
    """

    consumer: str
    table: str
    reached: dict[str, int]
    ends: dict[str, int]
    events: int
    failed: int
    continued: bool
    finished: bool

    @property
    def ids(self) -> int:
        """How many ids lie behind it."""
        return sum(self.reached.values())

    @property
    def left(self) -> int:
        """How many ids lie before it, as far as the logs went when it looked."""
        return max(sum(self.ends.values()) - self.ids, 0)


class Drift(NamedTuple):
    """A field of a key's row that is otherwise than its events say.

    The field is empty where there is a row and should be none, or the other way round.
    """

    key: str
    field: str
    there: str
    folded: str


class Drifts(NamedTuple):
    """What a check of a projection found in the rows of so many keys, as they were when it had come to these ids.

    `failed` names events of these keys that can't be folded anew.
    """

    projection: str
    reached: dict[str, int]
    keys: int
    drifts: list[Drift]
    failed: list[str]


class RemovedTopic(NamedTuple):
    """A topic that was removed, or would be: its events in the log and in the buffer, and what else goes with it.

    How far its clocks and inboxes are is forgotten: where an app declares them, `migrate` has them begin anew. It is
    not finished while a lock keeps some of its tables; maintenance drops those.
    """

    topic: str
    events: int
    buffered: int
    scheduled: int
    dedup_keys: int
    consumers: tuple[str, ...]
    dead_letters: int
    clocks: tuple[str, ...]
    inboxes: tuple[str, ...]
    finished: bool


class Repartitioned(NamedTuple):
    """A topic whose log is, or would be, divided into another number of partitions, from an event on.

    `held_back` are the consumers that read by the former number until they have handled all events before that one.
    """

    topic: str
    before: int
    after: int
    first_id: int
    held_back: tuple[str, ...]


class Subscribed(NamedTuple):
    """A subscription: whether it is new, whether anything was changed, and from which id of its topic on it is so."""

    name: str
    topic: str
    created: bool
    changed: bool
    first_id: int


class Fate(NamedTuple):
    """What one consumer has done with one event so far. The state is one of those in docs/how-to/use-the-admin.md.

    Since when it is so, and until when: when it is tried again, or the lease of its holder ends.
    """

    consumer_id: int
    consumer: str
    mode: str
    state: str
    attempts: int
    since: datetime | None
    until: datetime | None
    holder: str
    error: str
    dead_letter_id: int | None


class CausedEvent(NamedTuple):
    """An event that a handler published because of another one, the cause; and how deep it is in the tree."""

    topic: str
    id: int
    type: str
    key: str | None
    cause: str
    published_at: datetime
    logged_at: datetime
    depth: int

    @property
    def address(self) -> str:
        """`payments/12`."""
        return f"{self.topic}/{self.id}"


class Caused(NamedTuple):
    """What was published because of an event: each event is followed by those that it caused itself.

    There are `more` where the tree is larger than what was asked for. So many events were looked at, and of the topics
    that are `left_out` not all that came since.
    """

    events: list[CausedEvent]
    more: bool
    looked_at: int
    left_out: tuple[str, ...]


class Matched(NamedTuple):
    """Of a type, how many events were looked at, how many a filter matches, and the ids of the newest that it does."""

    type: str
    events: int
    matching: int
    newest: list[int]


class Searched(NamedTuple):
    """The ids that were found, newest first, and the first and the last id that were looked at."""

    ids: list[int]
    oldest: int
    newest: int


class UpTo(NamedTuple):
    """Up to which event of a topic a roll-up or a projection is true, and when that was logged.

    The id is 0 where nothing is folded yet. There is no time then, nor where that event is gone.
    """

    topic: str
    id: int
    logged_at: datetime | None


class Resharded(NamedTuple):
    """The version of the map of shards, the shards before and after, and from which to which of them keys move."""

    version: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    moved: tuple[str, ...]
