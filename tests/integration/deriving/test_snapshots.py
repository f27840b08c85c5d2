"""The rows of a table as events: beside all who write, the last event of each key says what the row is."""

import contextlib
import itertools
import random
import threading
from argparse import ArgumentTypeError
from decimal import Decimal

import pgtrigger
import pytest
from django.db import connection, connections, transaction
from django.db.models import F, Q

from django_events import capture, models
from django_events.deriving import snapshotting
from django_events.exceptions import InUse, Invalid, LeaseLost, NotReady, Refused
from django_events.management.events.snapshotting import lookup
from django_events.operations import snapshot
from django_events.testing import published
from tests.support.fix_database import WAITS_FOR_A_LOCK
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until
from tests.support.publishing_app.models import (
    Account,
    AudioBook,
    Book,
    Captured,
    Everything,
    Loan,
    SavingsAccount,
    Seat,
    Shelf,
    Tag,
    Told,
)

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X18")]


@pytest.fixture(autouse=True)
def by_twos(monkeypatch):
    """Chunks of two rows, so that a few rows have a begin, a middle and an end."""
    monkeypatch.setattr(snapshotting, "CHUNK", 2)


def events(topic="accounts"):
    return [(event.type, event.key, event.value) for event in published(topic)]


def forget():
    models.BufferedEvent.objects.all().delete()


def accounts(*notes):
    return [Account.objects.create(note=note) for note in notes]


def folded(*, since=0):
    """What a projection makes of the log: the last event of each key."""
    transfer_all()
    state = {}
    for event in models.Event.objects.since("accounts", since):
        if event.type.endswith(".deleted"):
            state.pop(event.key, None)
        else:
            state[event.key] = (event.value["note"], event.value["balance"])
    return state


def table():
    rows = Account.objects.values_list("pk", "note", "balance")
    return {str(pk): (note, str(balance)) for pk, note, balance in rows}


# What is published


def test_the_rows_are_published_as_their_inserts_were():
    tag = Tag.objects.create(name="Ada")
    Account.objects.create(balance="12.5", owner=tag, iban="DE02", pin="1234", note="O'Brien 100%")
    Account.objects.create()
    Account.objects.create(note="third")
    created = events()
    forget()
    taken = snapshot(Account)
    assert events() == [("account.snapshot", key, value) for _, key, value in created]
    assert taken == ("accounts", Account._meta.db_table, "account.snapshot", 3, taken.about, True)
    assert {event.metadata["snapshot"] for event in published("accounts")} == {
        models.Intervention.objects.get(action="snapshot").pk
    }


@pytest.mark.parametrize("model", [Captured, Everything, Seat])
@pytest.mark.parametrize("topic", ["captured", "library"])
def test_every_kind_of_field_and_key_is_published_as_by_its_insert(model, topic):
    """By triggers for one topic, and by an outbox for the other."""
    with transaction.atomic():
        if model is Seat:
            for row, number in [("a", 2), ("a", 10), ("b", 1)]:
                Seat.objects.create(row=row, number=number, reader="O'Brien")
        else:
            Everything.objects.create(
                boolean=True,
                big=2**60,
                float=1.5,
                decimal=Decimal("1.5000"),
                text="a",
                json={"a": [1, None]},
                date="2026-01-02",
                time="03:04:05",
                datetime="2026-01-02T03:04:05Z",
                duration="1 02:03:04",
                binary=b"\0\1",
                address="::1",
                uuid="00000000-0000-0000-0000-000000000001",
            )
            Everything.objects.create()
    created = sorted((key or "", str(value)) for _, key, value in events(topic))
    forget()
    snapshot(model, topic=topic)
    assert sorted((key or "", str(value)) for _, key, value in events(topic)) == created


def test_an_outbox_says_what_its_events_are():
    with transaction.atomic():
        Told.objects.create(title="one", pages=1)
    forget()
    snapshot(Told, type="told.again")
    assert events("drafts") == [("told.again", None, {"title": "one", "pages": 1})]


def test_a_parent_and_a_child_have_snapshots_of_their_own():
    SavingsAccount.objects.create(note="saved", rate=2)
    with transaction.atomic():
        AudioBook.objects.create(title="heard", minutes=3)
        Loan.objects.create(book=Book.objects.get(), reader="ada")
    forget()
    snapshot(SavingsAccount)
    snapshot(Account)
    assert [type for type, _, _ in events()] == ["savingsaccount.snapshot", "account.snapshot"]
    assert events()[0][2] == {"account_ptr_id": Account.objects.get().pk, "rate": 2.0}
    snapshot(Book)
    snapshot(Loan)
    assert [type for type, _, _ in events("library")] == ["book.snapshot"]
    assert [type for type, _, _ in events("lending")] == ["loan.snapshot"]


def test_only_rows_that_a_capture_is_about_and_that_are_asked_for():
    Shelf.objects.create(code="a", place="x")
    Shelf.objects.create(code="b", is_open=False)
    Shelf.objects.create(code="c", label="O'Brien's NEW.label 100%")
    Shelf.objects.create(code="d")
    assert snapshot(Shelf).rows == 4
    assert [key for _, key, _ in events("shelves")] == ["a", "d"]
    forget()
    assert snapshot(Shelf, where=Q(code__gt="b") | Q(place="x")).rows == 3
    assert [key for _, key, _ in events("shelves")] == ["a", "d"]


def test_a_dry_run_publishes_nothing():
    accounts("a")
    forget()
    taken = snapshot("publishing_app.Account", where=Q(note="a"), dry_run=True)
    assert (taken.rows, taken.about, taken.finished) == (0, 1, False)
    assert events() == []
    assert not models.Intervention.objects.exists()


def test_an_empty_table_is_done():
    assert snapshot(Account).finished
    assert events() == []


# What is refused


def test_what_is_refused():
    with pytest.raises(Invalid, match="'shop' is no model"):
        snapshot("shop")
    with pytest.raises(Invalid, match="has neither an @outbox nor a capture"):
        snapshot(Tag)
    with pytest.raises(Invalid, match=r"has neither an @outbox nor a capture.* for topic 'library'"):
        snapshot(Account, topic="library")
    with pytest.raises(Invalid, match=r"has events in captured, library\. Say which topic"):
        snapshot(Seat)
    with transaction.atomic(), pytest.raises(Refused, match="A transaction is open"):
        snapshot(Account)
    for pace in ({"rows_per_second": 0}, {"most_buffered": 0}):
        with pytest.raises(Invalid, match="is 0, expected a number from 1 on"):
            snapshot(Account, **pace)


@pytest.mark.parametrize(
    "where", [Q(nothing=1), Q(pk="x"), Q(balance="much"), Q(note__isnull="true"), Q(owner=object())]
)
def test_a_condition_that_cannot_be_used_is_said_before_anything_is_begun(where):
    with pytest.raises(Invalid, match="can't be used"):
        snapshot(Account, where=where)
    assert not models.Intervention.objects.exists()


def test_conditions_of_the_command():
    assert lookup("note=a=b") == ("note", "a=b")
    assert lookup("note__isnull=True") == ("note__isnull", True)
    assert lookup("id__in=1,2") == ("id__in", ["1", "2"])
    for wrong in ("note", "note__isnull=1", "no te=1"):
        with pytest.raises(ArgumentTypeError, match="is no condition"):
            lookup(wrong)


def test_a_condition_about_a_change_is_refused():
    """No row by itself fits it, so none would be published, and that would look like an empty table."""
    triggers = capture("shelves", created=None, deleted=None, condition=pgtrigger.AnyChange("name"), name="renamed")
    with contextlib.ExitStack() as registered:
        for trigger in triggers:
            registered.enter_context(trigger.register(Tag))
        with pytest.raises(Invalid, match="a condition that compares OLD and NEW"):
            snapshot(Tag)


def test_a_trigger_that_is_not_there_is_said():
    trigger = next(one for one in Account._meta.triggers if one.name.endswith("updated"))
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {Account._meta.db_table} DISABLE TRIGGER {trigger.get_pgid(Account)}")
        try:
            with pytest.raises(NotReady, match="is not there, or disabled"):
                snapshot(Account)
        finally:
            cursor.execute(f"ALTER TABLE {Account._meta.db_table} ENABLE TRIGGER {trigger.get_pgid(Account)}")


# Stopped, killed, frozen, two at once


def stop_after(chunks):
    left = iter([False] * chunks)
    return lambda: next(left, True)


@pytest.mark.parametrize("chunks", range(4))
def test_one_that_was_stopped_goes_on_where_it_was(chunks):
    accounts("a", "b", "c", "d", "e")
    forget()
    first = snapshot(Account, stopping=stop_after(chunks))
    assert (first.rows, first.finished) == (min(2 * chunks, 5), False)
    second = snapshot(Account)
    assert (second.rows, second.finished) == (5, True)
    assert [value["note"] for _, _, value in events()] == ["a", "b", "c", "d", "e"]
    assert models.Intervention.objects.filter(action="snapshot").count() == 1


def test_a_composite_key_is_gone_on_with():
    with transaction.atomic():
        for n in range(5):
            Seat.objects.create(row="ab"[n % 2], number=n)
    for topic in ("captured", "library"):
        forget()
        snapshot(Seat, topic=topic, stopping=stop_after(1))
        snapshot(Seat, topic=topic)
        assert [value["number"] for _, _, value in events(topic)] == [0, 2, 4, 1, 3]


def test_it_begins_anew_if_that_is_asked_for():
    accounts("a", "b", "c")
    forget()
    snapshot(Account, stopping=stop_after(1))
    assert snapshot(Account, restart=True).rows == 3
    assert len(events()) == 5
    assert [one.details["state"] for one in models.Intervention.objects.order_by("pk")] == ["given up", "finished"]


def test_another_one_that_was_not_finished_is_not_gone_on_with():
    accounts("a", "b", "c")
    snapshot(Account, where=Q(note__lt="c"), stopping=stop_after(1))
    with pytest.raises(Refused, match="was not finished"):
        snapshot(Account)
    assert snapshot(Account, where=Q(note__lt="c")).finished


def killed(progress):
    raise KeyboardInterrupt


def test_two_at_once_are_one(monkeypatch):
    accounts("a", "b", "c")
    forget()

    def another(progress):
        if progress.finished:
            return
        with pytest.raises(InUse, match=r"takes the snapshot of .* and is at \d rows"):
            snapshot(Account)

    assert snapshot(Account, on_progress=another).finished
    assert len(events()) == 3


def test_one_that_was_killed_is_gone_on_with_when_its_lease_is_over(monkeypatch):
    """A process that is killed leaves nothing, but for its lease; what it had not committed is not there."""
    accounts("a", "b", "c", "d")
    forget()
    monkeypatch.setattr(snapshotting._Taking, "leave", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        snapshot(Account, on_progress=killed)
    with pytest.raises(InUse):
        snapshot(Account)
    expire()
    assert snapshot(Account).finished
    assert [value["note"] for _, _, value in events()] == ["a", "b", "c", "d"]


def expire():
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_events_intervention"
            " SET details = details || jsonb_build_object('leased_until', clock_timestamp() - interval '1 s')"
        )


def test_one_that_was_frozen_and_wakes_up_too_late_publishes_nothing(in_thread):
    accounts("a", "b", "c", "d")
    forget()
    frozen, may_go_on = threading.Event(), threading.Event()

    def freeze(progress):
        frozen.set()
        assert may_go_on.wait(60)

    late = in_thread(snapshot, Account, on_progress=freeze)
    assert frozen.wait(60)
    expire()
    assert snapshot(Account).finished
    may_go_on.set()
    with pytest.raises(LeaseLost, match="Another process takes the snapshot"):
        late.result(60)
    assert [value["note"] for _, _, value in events()] == ["a", "b", "c", "d"]


def test_one_that_freezes_within_a_chunk_undoes_it_when_it_wakes_up(in_thread, monkeypatch):
    accounts("a", "b", "c", "d")
    forget()
    frozen, may_go_on, note = threading.Event(), threading.Event(), snapshotting._Taking._note

    def freezing(work, progress):
        if threading.current_thread() is not threading.main_thread() and not frozen.is_set():
            frozen.set()
            assert may_go_on.wait(60)
        note(work, progress)

    monkeypatch.setattr(snapshotting._Taking, "_note", freezing)
    late = in_thread(snapshot, Account)
    assert frozen.wait(60)
    expire()
    assert snapshot(Account).finished
    may_go_on.set()
    with pytest.raises(LeaseLost):
        late.result(60)
    assert [value["note"] for _, _, value in events()] == ["a", "b", "c", "d"]


# Throttled


def test_it_rests_while_the_buffer_is_full(in_thread, monkeypatch):
    monkeypatch.setattr(snapshotting, "LOOK_EVERY", 0.0001)  # less than a chunk takes
    accounts(*"abcdefgh")
    forget()
    taking = in_thread(snapshot, Account, most_buffered=2)
    seen = []

    def all_there():
        seen.append(models.BufferedEvent.objects.count())
        transfer_all()
        return models.Event.objects.of("accounts").count() == 8

    wait_until(all_there)
    assert taking.result(60).finished
    assert max(seen) <= 4


def test_it_goes_as_fast_as_it_may():
    accounts(*"abcdef")
    pace = snapshotting._Pace(100, 1_000)
    rests = [pace.rest("default", 1, 100) for _ in range(3)]
    assert rests == pytest.approx([1, 2, 3], abs=0.5)
    assert snapshot(Account, rows_per_second=1_000).finished


def test_a_chunk_is_no_more_than_what_it_may_publish_in_a_second():
    accounts("a", "b")
    seen = []
    snapshot(
        Account, rows_per_second=1, on_progress=lambda progress: seen.append(progress.rows), stopping=stop_after(1)
    )
    assert seen == [1]


# Beside writers


def update(pk):
    Account.objects.filter(pk=pk).update(note=F("note") or "x", balance=F("balance") + 1)


def delete(pk):
    Account.objects.filter(pk=pk).delete()


def insert_anew(pk):
    delete(pk)
    Account.objects.create(pk=pk, note="anew")


def move_up(pk):
    Account.objects.filter(pk=pk).update(id=F("id") + 1_000)


def move_down(pk):
    Account.objects.filter(pk=pk).update(id=F("id") - 10_000)


def move_there_and_back(pk):
    move_up(pk)
    move_down(pk + 1_000)
    Account.objects.filter(pk=pk - 9_000).update(id=pk, balance=5)


CHANGES = [update, delete, insert_anew, move_up, move_down, move_there_and_back]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.few(6)
def test_a_change_that_is_open_while_its_row_is_read(change, index, ending, in_thread):
    rows = accounts(*"abcde")
    changed, may_end = threading.Event(), threading.Event()

    def writer():
        with transaction.atomic():
            change(rows[index].pk)
            changed.set()
            assert may_end.wait(60)
            transaction.set_rollback(ending == "rollback")

    writing = in_thread(writer)
    wait_until(lambda: changed.is_set() or writing.done())
    assert changed.is_set(), writing.exception()
    taking = in_thread(snapshot, Account)
    wait_until(lambda: taking.done() or is_waiting())
    may_end.set()
    writing.result(60)
    assert taking.result(60).finished
    assert folded() == table()


def is_waiting():
    """Whether a session waits for another one's lock."""
    with connection.cursor() as cursor:
        cursor.execute(WAITS_FOR_A_LOCK)
        return cursor.fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("index", range(5))
@pytest.mark.few(6)
def test_a_change_between_two_chunks(change, index):
    rows = accounts(*"abcde")
    for chunk in range(1, 4):
        chunks = itertools.count(1)

        def between(progress, chunks=chunks, chunk=chunk):
            if next(chunks) == chunk:
                change(rows[index].pk)

        snapshot(Account, on_progress=between)
        assert folded() == table()


def test_a_change_waits_for_the_chunk_and_comes_after_it(in_thread, monkeypatch):
    [row] = accounts("a")
    published_now, may_commit, note = threading.Event(), threading.Event(), snapshotting._Taking._note

    def slow(work, progress):
        if "after" in progress:
            published_now.set()
            assert may_commit.wait(60)
        note(work, progress)

    monkeypatch.setattr(snapshotting._Taking, "_note", slow)
    taking = in_thread(snapshot, Account)
    assert published_now.wait(60)
    writing = in_thread(update, row.pk)
    wait_until(is_waiting)
    may_commit.set()
    writing.result(60)
    taking.result(60)
    assert [type for type, _, _ in events()] == ["account.created", "account.snapshot", "account.updated"]
    assert folded() == table()


def test_a_writer_that_locks_rows_in_another_order_is_in_no_deadlock(in_thread):
    """The snapshot waits for one row at a time, and holds no other one then."""
    rows = accounts(*"abcd")
    first, may_go_on = threading.Event(), threading.Event()

    def writer():
        with transaction.atomic():
            update(rows[1].pk)
            first.set()
            assert may_go_on.wait(60)
            update(rows[0].pk)

    writing = in_thread(writer)
    assert first.wait(60)
    taking = in_thread(snapshot, Account)
    wait_until(is_waiting)
    may_go_on.set()
    writing.result(60)
    assert taking.result(60).finished
    assert folded() == table()


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.few(2)
def test_whatever_writers_do_meanwhile_the_fold_is_the_table(seed, isolation, in_thread, monkeypatch):
    monkeypatch.setattr(snapshotting, "CHUNK", 7)
    Account.objects.bulk_create([Account(pk=100 * n, note=str(n)) for n in range(1, 61)])
    over = threading.Event()

    def writer(number):
        chance = random.Random(1_000 * seed + number)
        with connections["default"].cursor() as cursor:
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}")
        while not over.is_set():
            try:
                with transaction.atomic():
                    for _ in range(chance.randint(1, 4)):
                        write(chance)
                    transaction.set_rollback(chance.random() < 0.2)
            except Exception as error:  # deadlocks among writers, primary keys that are taken, serialization failures
                assert type(error).__name__ in ("OperationalError", "IntegrityError"), error

    def write(chance):
        pk = chance.randint(1, 6_500)
        rows = Account.objects.filter(pk__gte=pk)
        chosen = rows.order_by("pk").values_list("pk", flat=True).first()
        match chance.randint(0, 5):
            case 0:
                Account.objects.bulk_create([Account(pk=pk, note="new")], ignore_conflicts=True)
            case 1:
                Account.objects.filter(pk=chosen).delete()
            case 2:
                Account.objects.filter(pk=chosen).update(id=chance.randint(1, 6_500))
            case 3:
                Account.objects.filter(pk__gte=pk, pk__lt=pk + 300).update(balance=F("balance") + 1)
            case _:
                Account.objects.filter(pk=chosen).update(note=str(chance.random()))

    def mover():
        while not over.is_set():
            transfer_all()

    beside = [in_thread(writer, number) for number in range(3)] + [in_thread(mover)]
    try:
        assert snapshot(Account).finished
        transfer_all()
        begun_behind = models.Event.objects.of("accounts").order_by("-id").values_list("id", flat=True).first()
        assert snapshot(Account).finished
    finally:
        over.set()
        for one in beside:
            one.result(60)
    assert folded() == table()
    assert folded(since=begun_behind) == table(), "a consumer that begins at the end before the snapshot does"
