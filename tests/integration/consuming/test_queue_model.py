"""Queue consumers against a model of them: whatever people and workers do, in whatever order, both agree."""

import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_events import Backoff, Draft, Ignore, RetryLater, models, publish_many
from django_events.consuming.handling import no_attempt_left
from django_events.consuming.queues import deliveries as claims
from django_events.consuming.queues import filling
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.queues.server import redrive_some
from django_events.exceptions import InUse, LeaseLost, Refused
from django_events.models.functions import ClockTimestamp
from django_events.operations import discard, lag, pause, redrive, resume, retry_now, rewind, skip
from tests.support.fix_queues import another, deliveries, settle, values
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

COUNTS = ("handled", "failed", "ignored", "dead_lettered")
HOUR = timedelta(hours=1)
DUE, FAR = "due", "far"  # when the pause after a failure is over: now, or not while the test runs
NEVER = 1e9  # seconds
PICK = st.integers(0, 9)  # one of several, counted round
PICKS = st.sets(PICK, min_size=1, max_size=4)
BOTH = st.booleans()
ERRORS = st.sampled_from(
    [RetryLater(after=timedelta(0)), RetryLater(after=timedelta(0)), RetryLater(after=HOUR), Ignore("no")]
)
KEYS = st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=8)


def step(name, *arguments):
    """A method of the model, and what it is called with. In each example, hypothesis leaves out half of the rules."""
    return st.tuples(st.just(name), *arguments)


WITH_A_HAND = st.one_of(
    step("ack", PICK, PICKS),
    step("nack", PICK, PICK, ERRORS),
    step("begin_carefully", PICK, BOTH),
    step("let_go", PICK, st.sampled_from(["release", "die", "extend"])),
)
WITH_TIME = st.one_of(
    step("expire", PICK),
    step("end_pauses"),
    step("come_late", PICK, st.sampled_from(["settle", "count", "release", "extend"])),
)
WITH_THE_DEAD = st.one_of(
    step("redrive", PICKS, BOTH), step("redrive", PICKS, BOTH), step("make_redrives"), step("discard", PICKS)
)
AT_A_WORD = st.one_of(step("skip", PICK, BOTH), step("skip", PICK, BOTH), step("retry_now", st.none() | PICK))
BY_PEOPLE = st.one_of(step("rewind", PICK, BOTH), step("pause_and_resume", st.integers(0, 2)))


@dataclass
class Open:
    """An event that was given to the consumer and is not finished."""

    key: str | None
    token: int | None = None
    wait: str | None = None
    attempts: int = 0
    delivered: int = 0


@dataclass
class Lease:
    """What a worker has in hand; without a `hand`, the worker is dead."""

    hand: ClaimedDeliveries | None
    ids: set[int]
    careful: bool = False
    counted: set[int] = field(default_factory=set)


@dataclass
class Dead:
    attempts: int
    redriven: bool = False


class Model(RuleBasedStateMachine):
    """Everything that is known of one queue consumer of one topic, and what may be done to it."""

    def __init__(self, queue, monkeypatch):
        super().__init__()
        self.first, self.monkeypatch = queue, monkeypatch
        self.name, self.ordered = queue.subscription.consumer.name, queue.ordered
        self.consumers = models.Consumer.objects.filter(pk=queue.subscription.consumer_id)
        self.deliveries = deliveries(queue)
        self.leases_there = models.DeliveryLease.objects.filter(consumer__in=self.consumers)
        self.letters = models.DeadLetter.objects.of(self.name)
        self.history = models.PastDelivery.objects.filter(consumer__in=self.consumers)
        self.position = models.Position.objects.filter(consumer__in=self.consumers)
        self._forget_the_last_example()
        self.begin_at = self.last = self.given = models.Event.objects.of(queue.subscription.topic).count()
        self.keys: dict[int, str | None] = {}
        self.live, self.changed = True, False
        self.open: dict[int, Open] = {}
        self.leases: dict[int, Lease] = {}
        self.overdue: list[int] = []  # tokens, the longest overdue first
        self.lost: list[ClaimedDeliveries] = []
        self.dead: dict[int, Dead] = {}
        self.past = Counter[tuple[int, str]]()
        self.counts = Counter[str]()
        self.made, self.left_out = Counter[int](), Counter[int]()
        self.workers = []
        for number, seconds in enumerate((0, NEVER, NEVER)):  # until a worker goes back to the oldest, whatever it did
            monkeypatch.setattr(claims, "ROUND", seconds)
            self.workers.append(another(queue, f"worker {number}"))

    def _forget_the_last_example(self):
        for rows in (self.deliveries, self.leases_there, self.letters, self.history, models.BufferedEvent.objects):
            rows.all().delete()
        self.consumers.update(paused_at=None, max_pending=None)
        rewind(self.name, to="end")
        self.position.update(handled=0, failed=0, ignored=0, dead_lettered=0)

    # What the model knows

    def lanes(self) -> list[list[int]]:
        """The events that have to be handled one after the other, oldest first."""
        lanes: dict[object, list[int]] = {}
        for event_id in sorted(self.open):
            key = self.keys[event_id] if self.ordered else None
            lanes.setdefault(event_id if key is None else key, []).append(event_id)
        return list(lanes.values())

    def claimable(self) -> list[list[int]]:
        """Of each lane, what can be claimed: as far as nothing waits and nothing is in a hand."""
        found = []
        for lane in self.lanes():
            run = []
            for event_id in lane:
                one = self.open[event_id]
                if one.token is not None or one.wait == FAR or not (self.live or event_id <= self.given):
                    break
                run.append(event_id)
            if run:
                found.append(run)
        return found

    @property
    def hands(self) -> list[int]:
        return [token for token, lease in self.leases.items() if lease.hand is not None]

    @property
    def waiting(self) -> list[Open]:
        return [one for one in self.open.values() if one.wait == FAR]

    @property
    def expirable(self) -> list[int]:
        return [token for token in self.leases if token not in self.overdue]

    def lease(self, pick: int) -> tuple[Lease, ClaimedDeliveries]:
        lease = self.leases[nth(self.hands, pick)]
        assert lease.hand is not None
        return lease, lease.hand

    def older_dead(self, event_id: int) -> list[int]:
        if not self.ordered or (key := self.keys[event_id]) is None:
            return []
        return [other for other in self.dead if other < event_id and self.keys[other] == key]

    def redrivable(self) -> set[int]:
        held = {lane[0] for lane in self.lanes() if self.open[lane[0]].token is not None}
        busy = {self.keys[event_id] for event_id in held} - {None} if self.ordered else set()
        return {
            event_id
            for event_id, dead in self.dead.items()
            if dead.redriven
            and event_id not in self.open
            and not self.older_dead(event_id)
            and self.keys[event_id] not in busy
        }

    # What happens in the model

    def give(self, event_id: int) -> None:
        if event_id not in self.open:
            self.open[event_id] = Open(self.keys[event_id])
            self.made[event_id] += 1

    def catch_up(self) -> None:
        """How many the consumer has at once is its own business: whatever it was given, it was given in order."""
        row = self.consumers.get()
        given = self.last if row.live else row.filled_until
        assert self.given <= given <= self.last
        for event_id in range(self.given + 1, given + 1):
            self.give(event_id)
        self.live, self.given = row.live, given
        self.the_lag_is_what_is_left()

    def the_lag_is_what_is_left(self) -> None:
        left = self.open.keys() | set(range(self.given + 1, self.last + 1))
        assert lag(self.name) == len(left)

    def finish(self, event_id: int, outcome: str) -> None:
        del self.open[event_id]
        self.past[event_id, outcome] += 1
        if event_id in self.dead and self.dead[event_id].redriven and outcome != models.PastDelivery.DEAD:
            del self.dead[event_id]

    def drop(self, lease: Lease, hand: ClaimedDeliveries, out: set[int]) -> None:
        lease.ids -= out
        if not lease.ids:
            self.end(hand.token)

    def end(self, token: int) -> None:
        del self.leases[token]
        if token in self.overdue:
            self.overdue.remove(token)

    def bury(self, event_id: int, attempts: int) -> None:
        self.finish(event_id, models.PastDelivery.DEAD)
        self.dead[event_id] = Dead(attempts)
        self.counts.update(failed=1, dead_lettered=1)

    # Publishing

    @initialize(
        attempts=st.sampled_from([1, 3]),
        max_pending=st.sampled_from([None, 4]),
        believes=BOTH,
        keys=KEYS,
        failing=st.none() | PICK,
    )
    def begin(self, attempts, max_pending, believes, keys, failing):
        """`believes`: what a worker found out slowly, it believes until a step says that time is over."""
        self.monkeypatch.setattr(claims, "SLOW", -1.0 if believes else NEVER)
        self.consumers.update(max_pending=max_pending)
        self.attempts, self.max_pending = attempts, max_pending
        declared = replace(self.first.subscription.consumer, retry=Backoff(attempts=attempts))
        for worker in self.workers:
            worker.subscription = replace(worker.subscription, consumer=declared)
        self.publish(keys)
        if failing is not None:
            self.claim(0, 20)
            self.nack(0, failing, RetryLater(after=timedelta(0)))
            if self.hands:
                self.let_go(0, "release")

    @precondition(lambda self: len(self.open) < 12)
    @rule(keys=KEYS)
    def publish(self, keys):
        publish_many(self.first.subscription.topic, [Draft(value=key, key=key) for key in keys])
        was_live = self.live
        transfer_all()
        for key in keys:
            self.last += 1
            self.keys[self.last] = key
        self.catch_up()
        assert self.given == self.last or not was_live

    @precondition(lambda self: not self.live)
    @rule()
    def fill(self):
        before, at_end = self.given, self.given == self.last
        filled = [event_id for event_id in self.open if event_id <= self.given]
        room = self.max_pending is None or len(filled) <= self.max_pending // 2
        fill_some(self.first.subscription)
        self.catch_up()
        assert self.live or self.given > before or not (room or at_end), "there is room, and nothing comes"

    # Claiming

    @rule(number=st.integers(0, 2), most=st.sampled_from([1, 2, 3, 20]), anew=st.sampled_from([False, False, True]))
    def claim(self, number, most, anew=True):
        worker = self.workers[number]
        if anew:
            worker.start_over()
        for token in [token for token in self.overdue if not self.leases[token].ids]:
            if self.overdue[0] == token:  # skipped to the last: the worker that takes it over lets it go, and looks on
                self.end(token)
        believed = 0 if worker.unclaimable is None else worker.unclaimable.until
        hand = worker.claim(most)
        if self.overdue:
            self.take_over(self.overdue[0], hand)
            return
        runs = self.claimable()
        if hand is None:
            assert not [event_id for run in runs for event_id in run[:1] if event_id > believed]
            return
        assert hand.lost_token is None
        claimed = set(hand.left)
        assert 1 <= len(claimed) <= most
        led = {event_id for run in runs for event_id in run[: len(claimed.intersection(run))]}
        assert claimed == led, "it is more than what leads its key"
        self.leases[hand.token] = Lease(hand, claimed)
        for event_id in claimed:
            self.open[event_id].wait = None
        self.deliver(hand)

    def take_over(self, token: int, hand: ClaimedDeliveries | None) -> None:
        """All of it, however much was asked for: a worker died of it."""
        lease = self.leases[token]
        assert hand is not None
        assert (hand.lost_token, set(hand.left)) == (token, lease.ids)
        self.end(token)
        if lease.hand is not None:
            self.lost.append(lease.hand)
        self.leases[hand.token] = Lease(hand, set(lease.ids), careful=True)
        self.deliver(hand)

    def deliver(self, hand: ClaimedDeliveries) -> None:
        for event_id in hand.left:
            one = self.open[event_id]
            one.token = hand.token
            one.delivered += 1
            assert hand.attempts[event_id] == one.attempts

    # Settling

    @precondition(lambda self: self.hands)
    @rule(step=WITH_A_HAND)
    def use_a_hand(self, step):
        self.take_step(step)

    def take_step(self, step):
        name, *arguments = step
        self.changed = True
        getattr(self, name)(*arguments)

    def ack(self, pick, picks):
        lease, hand = self.lease(pick)
        values(hand)
        chosen = {event.id: event for event in (nth(hand.events, one) for one in picks)}
        settle(hand, *(chosen[event_id] for event_id in sorted(chosen)))
        for event_id in chosen:
            self.finish(event_id, models.PastDelivery.HANDLED)
        self.counts.update(handled=len(chosen))
        self.drop(lease, hand, set(chosen))

    def nack(self, pick, which, error):
        lease, hand = self.lease(pick)
        values(hand)
        event = nth(hand.events, which)
        one = self.open[event.id]
        attempt = one.attempts if event.id in lease.counted else one.attempts + 1
        assert event.attempt == attempt
        settle(hand, failure=hand.judge(event, error))
        out = {event.id}
        if isinstance(error, Ignore):
            self.finish(event.id, models.PastDelivery.IGNORED)
            self.counts.update(ignored=1)
        elif attempt >= self.attempts:
            self.bury(event.id, attempt)
        else:
            self.counts.update(failed=1)
            one.token, one.attempts, one.wait = None, attempt, FAR if error.after else DUE
            if self.ordered and one.key is not None:
                out |= {other for other in lease.ids if other > event.id and self.keys[other] == one.key}
            self.free(out)
        self.drop(lease, hand, out)

    def begin_carefully(self, pick, alone):
        """As workers do: what may have ended one is counted before, and after the last attempt not begun any more."""
        lease, hand = self.lease(pick)
        [event] = hand.next(1)
        careful = lease.careful or hand.attempts[event.id] > 0
        assert hand.is_careful(event) == careful
        if not careful:
            return
        if hand.attempts_of(event) >= self.attempts:
            settle(hand, failure=no_attempt_left(hand, event))
            self.bury(event.id, self.open[event.id].attempts)
            self.drop(lease, hand, {event.id})
        else:
            hand.events[0] = hand.count_attempt(event)
            self.open[event.id].attempts += 1
            lease.counted.add(event.id)
            if alone:
                hand.release_all_but(hand.events[:1])
            if alone and not lease.careful:
                self.free(lease.ids - {event.id})
                lease.ids = {event.id}

    def let_go(self, pick, how):
        lease, hand = self.lease(pick)
        match how:
            case "release" if lease.careful:  # it is the next one's to be careful with
                hand.release()
                self.lease_ends(hand.token)
                lease.hand = None
            case "release":
                hand.release()
                self.free(lease.ids)
                self.end(hand.token)
            case "die":
                lease.hand = None
            case "extend":
                hand.extend(HOUR)
                if hand.token in self.overdue:
                    self.overdue.remove(hand.token)

    def free(self, ids: set[int]) -> None:
        for event_id in ids & self.open.keys():
            self.open[event_id].token = None

    # Time, and death

    @precondition(lambda self: self.leases or self.lost or self.waiting)
    @rule(step=WITH_TIME)
    def let_time_pass(self, step):
        self.take_step(step)

    def expire(self, pick):
        if not self.expirable:
            return
        token = nth(self.expirable, pick)
        assert self.leases_there.filter(token=token).update(leased_until=ClockTimestamp())
        self.lease_ends(token)

    def lease_ends(self, token: int) -> None:
        if token in self.overdue:
            self.overdue.remove(token)
        self.overdue.append(token)

    def come_late(self, pick, late):
        if not self.lost:
            return
        hand = nth(self.lost, pick)
        values(hand)
        with pytest.raises(LeaseLost):
            match late:
                case "settle":
                    settle(hand, *hand.events)
                case "count":
                    hand.count_attempt(hand.events[0])
                case "release":
                    hand.release()
                case "extend":
                    hand.extend(HOUR)

    def end_pauses(self):
        if not self.waiting:
            return
        self.deliveries.filter(visible_at__isnull=False).update(visible_at=ClockTimestamp())
        for one in self.open.values():
            one.wait = one.wait and DUE

    # People

    @precondition(lambda self: self.changed)
    @rule(step=BY_PEOPLE)
    def intervene(self, step):
        self.take_step(step)
        self.changed = False

    @precondition(lambda self: self.open)
    @rule(step=AT_A_WORD)
    def say_a_word(self, step):
        self.take_step(step)

    def skip(self, pick, is_open):
        """Any event, also one that is none to skip."""
        event_id = nth(self.open if is_open else self.keys, pick)
        one = self.open.get(event_id)
        if event_id in self.dead or one is None or not (self.live or event_id <= self.given):
            with self.refused(Refused, True):
                skip(self.name, event_id, reason="a test", wait=timedelta(0))
            return
        if one.token is not None and one.token not in self.overdue:
            with pytest.raises(InUse):
                skip(self.name, event_id, reason="a test", wait=timedelta(0))
            return
        assert skip(self.name, event_id, reason="a test", wait=timedelta(0)).attempts == one.attempts
        self.finish(event_id, models.PastDelivery.DEAD)
        self.dead[event_id] = Dead(one.attempts)
        self.counts.update(dead_lettered=1)
        if one.token is not None:
            lease = self.leases[one.token]
            if lease.hand is not None:
                values(lease.hand)
                with pytest.raises(LeaseLost):
                    settle(lease.hand, *lease.hand.events)
            lease.hand = None
            lease.ids.remove(event_id)

    def retry_now(self, pick):
        waiting = {event_id: one for event_id, one in self.open.items() if one.wait and one.attempts}
        if pick is not None:
            event_id = nth(self.open, pick)
            waiting = {event_id: waiting[event_id]} if event_id in waiting else {}
        again = retry_now(self.name, event_id=None if pick is None else event_id)
        assert [one.deliveries for one in again] == ([len(waiting)] if waiting else [])
        for one in waiting.values():
            one.wait, one.attempts = DUE, 0

    @precondition(lambda self: self.dead)
    @rule(step=WITH_THE_DEAD)
    def care_for_the_dead(self, step):
        self.take_step(step)

    def redrive(self, picks, at_once=True):
        chosen = self.choose_dead(picks)
        refused = [
            event_id
            for event_id in chosen
            if any(not self.dead[older].redriven and older not in chosen for older in self.older_dead(event_id))
        ]
        with self.refused(Refused, refused):
            redrive(self.letters.filter(event_id__in=chosen))
        for event_id in chosen if not refused else ():
            if not self.dead[event_id].redriven:
                self.dead[event_id] = Dead(0, redriven=True)
        if at_once:
            self.make_redrives()

    def make_redrives(self):
        wanted = self.redrivable()
        assert redrive_some(self.first.subscription) == bool(wanted)
        for event_id in wanted:
            self.give(event_id)

    def discard(self, picks):
        chosen = self.choose_dead(picks)
        in_hand = {event_id for event_id in chosen & self.open.keys() if self.open[event_id].token is not None}
        with self.refused(InUse, in_hand):
            discard(self.letters.filter(event_id__in=chosen), reason="a test")
        for event_id in chosen if not in_hand else ():
            if event_id in self.open:
                self.leave_out(event_id)
            del self.dead[event_id]

    def choose_dead(self, picks: set[int]) -> set[int]:
        return {nth(sorted(self.dead), pick) for pick in picks}

    def leave_out(self, event_id: int) -> None:
        del self.open[event_id]
        self.left_out[event_id] += 1

    def rewind(self, back, in_time):
        for _ in self.expirable if in_time else ():
            self.expire(0)
        to = max(self.last + 1 - back, self.begin_at + 1)
        with self.refused(InUse, self.expirable):
            rewind(self.name, to=to, wait=timedelta(0))
        if self.expirable:
            return
        self.lost += [lease.hand for lease in self.leases.values() if lease.hand]
        for lease in self.leases.values():
            self.free(lease.ids)
        self.leases, self.overdue = {}, []
        for event_id in [event_id for event_id in self.open if event_id < to]:
            self.leave_out(event_id)
        for one in self.open.values():
            if one.attempts:
                one.attempts, one.wait = 0, None
        self.dead = {event_id: dead for event_id, dead in self.dead.items() if event_id < to}
        row = self.consumers.get()
        self.live, self.given = row.live, self.last if row.live else row.filled_until
        assert set(range(to, self.given + 1)) <= self.open.keys()
        self.the_lag_is_what_is_left()

    def pause_and_resume(self, number):
        assert pause(self.name)
        assert self.workers[number].claim(20) is None
        assert resume(self.name)
        assert not resume(self.name)
        for one in self.open.values():
            if one.wait and one.attempts:
                one.wait, one.attempts = DUE, 0

    @staticmethod
    def refused(error: type[Exception], reasons: object) -> AbstractContextManager[object]:
        return pytest.raises(error, check=lambda raised: type(raised) is error) if reasons else nullcontext()

    # What is always true

    @invariant()
    def both_agree(self):
        now = timezone.now()
        rows = {
            row.event_id: Open(
                row.key,
                row.token,
                row.visible_at and (FAR if row.visible_at > now else DUE),
                row.attempts,
                row.delivered,
            )
            for row in self.deliveries.all()
        }
        if not self.ordered:
            for event_id, row in rows.items():
                row.key = self.keys[event_id]
        assert rows == self.open
        overdue = {
            token: leased_until <= now for token, leased_until in self.leases_there.values_list("token", "leased_until")
        }
        assert overdue == {token: token in self.overdue for token in self.leases}
        letters = self.letters.values_list("event_id", "attempts", "redrive_at")
        assert {event_id: Dead(attempts, bool(at)) for event_id, attempts, at in letters} == self.dead
        assert Counter(self.history.values_list("event_id", "outcome")) == self.past

    @invariant()
    def each_is_in_one_hand_at_most(self):
        held = [event_id for lease in self.leases.values() for event_id in lease.ids]
        assert len(held) == len(set(held))
        for lease in self.leases.values():
            if lease.hand is not None:
                assert set(lease.hand.left) == lease.ids

    @invariant()
    def what_was_given_is_finished_once(self):
        ended = Counter(event_id for event_id, _ in self.past.elements())
        assert self.made == ended + self.left_out + Counter(self.open.keys())

    @invariant()
    def the_position_is_before_all_that_is_left(self):
        position = self.position.get().position
        assert position <= min([event_id - 1 for event_id in self.open] + [self.given])

    def teardown(self):
        """Whatever happened: in the end all is finished, and nothing is stuck."""
        if sys.exc_info()[0] is not None:
            models.BufferedEvent.objects.all().delete()
            return
        for number in range(1_000):
            if not (self.open or self.dead or self.leases) and self.live:
                break
            self.all_goes_on(number % 3)
        else:
            raise AssertionError(f"it is stuck: {self.open}, {self.dead}, {self.leases}")
        for worker in self.workers:
            worker.flush()
        position = self.position.get()
        assert {name: getattr(position, name) for name in COUNTS} == {name: self.counts[name] for name in COUNTS}

    def all_goes_on(self, number: int) -> None:
        self.end_pauses()
        for token in self.expirable:
            self.expire(self.expirable.index(token))
        if self.dead:
            self.redrive(set(range(len(self.dead))))
        if not self.live:
            self.fill()
        known = self.leases.keys() - self.overdue
        self.claim(number, 20)
        for token in self.leases.keys() - self.overdue - known:
            lease, hand = self.lease(self.hands.index(token))
            for _ in range(len(lease.ids)):
                values(hand)
                self.ack(self.hands.index(token), {0})
        self.both_agree()
        self.what_was_given_is_finished_once()


def nth(several, pick):
    return list(several)[pick % len(several)]


@pytest.mark.slow
@pytest.mark.requirement("S1", "S3", "S4", "S5", "S6", "S11", "D4", "D5")
@pytest.mark.timeout(900)  # a failing example is made smaller for five minutes at most
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("examples", [5, pytest.param(30, marks=pytest.mark.long)])
@pytest.mark.few(1)
def test_whatever_happens_both_agree(things, make_queue, monkeypatch, ordered, examples):
    monkeypatch.setattr(claims, "SMALLEST_WINDOW", 2)
    monkeypatch.setattr(claims, "LARGEST_WINDOW", 8)
    monkeypatch.setattr(claims, "TRUSTED", NEVER)
    monkeypatch.setattr(filling, "AT_ONCE", 3)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")  # until the connection is closed, after the test
    queue = make_queue(things, ordered=ordered, history=HOUR, lease=HOUR)

    run_state_machine_as_test(
        lambda: Model(queue, monkeypatch),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        ),
    )
