"""The mark never passes an id that can still commit, and it moves up once no such writer is left."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from django_events.log.mark import MOST_CANDIDATES, OpenWriters


@dataclass
class Buffer:
    """The buffer as its publishers see it: a lock, then ids, then a commit or a rollback."""

    last: int = 0
    locked: dict[str, set[int]] = field(default_factory=dict)
    visible: set[int] = field(default_factory=set)
    sessions: int = 0

    def begin(self) -> None:
        self.sessions += 1
        self.locked[f"{self.sessions}/1"] = set()

    def insert(self, writer: str) -> None:
        self.last += 1
        self.locked[writer].add(self.last)

    def end(self, writer: str, *, commit: bool) -> None:
        ids = self.locked.pop(writer)
        if commit:
            self.visible |= ids

    @property
    def writers(self) -> frozenset[str]:
        return frozenset(self.locked)

    def can_still_come(self, upto: int) -> set[int]:
        return {id for ids in self.locked.values() for id in ids if id <= upto}


ACTIONS = st.lists(
    st.one_of(
        st.just("begin"),
        st.just("note"),
        st.tuples(st.sampled_from(["insert", "insert", "commit", "rollback"]), st.integers(0, 5)),
    ),
    max_size=120,
)


@given(ACTIONS, st.booleans())
def test_no_id_that_can_still_commit_is_settled(actions, sees_everything):
    """Whatever publishers do between two notes. The newest visible id is seen, or the newest of all."""
    buffer, open_writers = Buffer(), OpenWriters()
    for action in actions:
        if action == "begin":
            buffer.begin()
        elif action == "note":
            before = open_writers.final
            seen = buffer.last if sees_everything else max(buffer.visible, default=0)
            open_writers.note(seen, buffer.writers)
            assert open_writers.final >= before
            assert open_writers.final <= seen or open_writers.final == before
        elif buffer.locked:
            verb, which = action
            writer = list(buffer.locked)[which % len(buffer.locked)]
            if verb == "insert":
                buffer.insert(writer)
            else:
                buffer.end(writer, commit=verb == "commit")
        assert not buffer.can_still_come(upto=open_writers.final)
        assert open_writers.final <= buffer.last
        assert len(open_writers._candidates) <= MOST_CANDIDATES

    for writer in list(buffer.locked):
        buffer.end(writer, commit=True)
    open_writers.note(buffer.last, buffer.writers)
    assert open_writers.final == buffer.last
    assert not open_writers._candidates


@given(st.integers(1, 4), st.integers(2, 60))
def test_it_moves_up_although_there_is_a_writer_at_every_moment(overlap, rounds):
    """Publishers that overlap like tiles: the lock is never free, yet each of them ends."""
    buffer, open_writers = Buffer(), OpenWriters()
    ended = 0
    for _ in range(rounds):
        buffer.begin()
        newest = list(buffer.locked)[-1]
        buffer.insert(newest)
        if len(buffer.locked) > overlap:
            buffer.end(next(iter(buffer.locked)), commit=True)
            ended += 1
        open_writers.note(max(buffer.visible, default=0), buffer.writers)
        assert buffer.writers

    # What was visible `overlap` rounds ago had the lock's holders of then, and they are gone.
    assert open_writers.final >= ended - overlap


def test_a_ticket_is_final_at_once_when_no_writer_holds_the_lock():
    open_writers = OpenWriters()
    open_writers.note(10, frozenset())

    assert open_writers.final == 10


def test_an_id_waits_for_each_writer_of_its_time_and_for_no_later_one():
    open_writers = OpenWriters()
    open_writers.note(10, frozenset({"1/1", "2/1"}))
    open_writers.note(10, frozenset({"2/1", "3/1"}))
    assert open_writers.final == 0
    open_writers.note(10, frozenset({"3/1"}))
    assert open_writers.final == 10


def test_a_later_id_does_not_settle_before_an_earlier_one():
    open_writers = OpenWriters()
    open_writers.note(10, frozenset({"1/1"}))
    open_writers.note(20, frozenset({"1/1", "2/1"}))
    open_writers.note(20, frozenset({"1/1"}))
    assert open_writers.final == 0
    open_writers.note(20, frozenset({"9/1"}))
    assert open_writers.final == 20


def test_seeing_less_than_before_settles_nothing_and_takes_nothing_back():
    open_writers = OpenWriters()
    open_writers.note(10, frozenset())
    open_writers.note(5, frozenset())
    open_writers.note(0, frozenset({"1/1"}))

    assert open_writers.final == 10


def test_an_endless_transaction_costs_no_more_than_a_bounded_memory():
    """When it ends at last, the next note settles what was seen meanwhile."""
    open_writers = OpenWriters()
    for seen in range(1, 10 * MOST_CANDIDATES):
        open_writers.note(seen, frozenset({"1/1", f"2/{seen}"}))
        assert len(open_writers._candidates) <= MOST_CANDIDATES
    assert open_writers.final == 0
    open_writers.note(seen, frozenset({"3/1"}))
    assert open_writers.final == MOST_CANDIDATES
    open_writers.note(seen, frozenset({"4/1"}))
    assert open_writers.final == seen
