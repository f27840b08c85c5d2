"""Where an instance and its row differ, and where others take part in a save: each was once an event lost or wrong."""

import copy
import pickle
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from threading import Barrier
from uuid import uuid4

import pytest
from django.core import serializers
from django.db import connection, models, transaction
from django.db.models import F

from django_events import event_context, outbox, suppress
from django_events.exceptions import InvalidEvent, UnknownTopic
from django_events.models import BufferedEvent
from django_events.publishing import model_signals as changes_of_models
from django_events.publishing.fields import written
from django_events.testing import published
from tests.support.processes import wait_until
from tests.support.publishing_app.models import (
    Book,
    Everything,
    Fine,
    Loan,
    Manuscript,
    Named,
    Person,
    Tag,
    Timestamped,
    Told,
)

rolled_back = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


def events(topic="library"):
    return [(event.type, event.key, event.value) for event in published(topic)]


def types(topic="library"):
    return [event.type for event in published(topic)]


def forget():
    BufferedEvent.objects.all().delete()


@pytest.fixture
def on():
    """Connect receivers for one test."""
    connected = []

    def connect(signal, receiver, sender):
        signal.connect(receiver, sender=sender, weak=False)
        connected.append((signal, receiver, sender))
        return receiver

    yield connect
    for signal, receiver, sender in connected:
        signal.disconnect(receiver, sender=sender)


@pytest.fixture
def before_ours():
    """Let a receiver of post_save be called before that of the outbox: it was connected earlier."""
    signal, receivers = models.signals.post_save, list(models.signals.post_save.receivers)

    def connect(receiver, sender):
        signal.connect(receiver, sender=sender, weak=False)
        signal.receivers.insert(0, signal.receivers.pop())
        signal.sender_receivers_cache.clear()

    yield connect
    signal.receivers[:] = receivers
    signal.sender_receivers_cache.clear()


# Values


@rolled_back
def test_values_are_those_of_the_row_however_they_were_assigned():
    person = Person.objects.create(email="Ada@Example.ORG", rate=Decimal("1.005"), settings={1: ("a", None)})
    [(_, _, value)] = events()
    stored = Person.objects.values("email", "rate", "settings", "doubled").get()

    assert (value["email"], value["rate"], value["doubled"]) == ("ada@example.org", "1.01", "2.02")
    assert (stored["email"], stored["rate"], stored["doubled"]) == ("ada@example.org", Decimal("1.01"), Decimal("2.02"))
    assert value["settings"] == stored["settings"] == {"1": ["a", None]}
    forget()
    for _ in range(2):
        person.save()
    assert events() == [], "nothing changed"


def test_numbers_of_fixed_precision_are_rounded_as_postgresql_does_however_long():
    field = models.DecimalField(max_digits=1_000, decimal_places=2)

    assert written(field, Decimal("123456789012345678901234567890.125")) == "123456789012345678901234567890.13"
    assert written(field, Decimal("-" + "9" * 900)) == "-" + "9" * 900 + ".00"
    assert written(field, Decimal("1E+40")) == "1" + "0" * 40 + ".00"
    assert written(field, Decimal("-0.001")) == "0.00"


@rolled_back
def test_a_generated_field_that_is_watched_follows_the_fields_that_are_saved():
    person = Person.objects.create(rate=1)
    forget()
    person.rate = 3
    person.save(update_fields=["rate"])

    [(_, _, value)] = events()
    assert value["changed"] == {
        "rate": {"old": "1.00", "new": "3.00"},
        "doubled": {"old": "2.00", "new": "6.00"},
    }


@rolled_back
def test_a_time_without_a_zone_is_of_the_sites_zone_whatever_is_active(settings):
    from django.utils import timezone

    with timezone.override("Asia/Kolkata"), pytest.warns(RuntimeWarning, match="naive"):
        one = Everything.objects.create(datetime=datetime(2026, 1, 1, 12))

    [(_, _, value)] = events()
    assert value["datetime"] == "2026-01-01T12:00:00.000000Z"
    one.refresh_from_db()
    assert one.datetime.isoformat() == "2026-01-01T12:00:00+00:00"


@rolled_back
def test_a_function_gets_what_is_in_the_row():
    told = Told.objects.create(title="Emma", pages=5)
    told.title, told.pages = "never saved", F("pages") + 1
    told.save(update_fields=["pages"])
    told.title = "never saved either"
    told.delete()

    assert [value for _, _, value in events("drafts")] == [
        {"title": "Emma", "pages": 5},
        {"title": "Emma", "pages": 6},
        {"title": "Emma", "pages": 6},
    ]


@rolled_back
def test_what_an_earlier_receiver_sets_and_does_not_save_is_not_shown(before_ours):
    def mark(instance, **kwargs):
        instance.title = "never saved"

    for model in (Book, Told):
        before_ours(mark, model)
    Book.objects.create(title="Emma")
    Told.objects.create(title="Emma")

    assert [value["title"] for topic in ("library", "drafts") for _, _, value in events(topic)] == ["Emma", "Emma"]


@rolled_back
def test_a_model_that_is_ordered_by_another_table_locks_its_own_row_only(django_assert_num_queries):
    person = Person.objects.create(email="a")
    person.email = "b"
    with django_assert_num_queries(4) as captured:  # with a look for the generated field
        person.save()
    assert all("JOIN" not in query["sql"] for query in captured)
    person.delete()

    assert types() == ["person.created", "person.updated", "person.deleted"]


# Others


@committing
def test_an_error_of_an_earlier_receiver_does_not_keep_the_event_of_a_row_that_is_committed(before_ours):
    def fail(instance, **kwargs):
        raise ValueError("theirs")

    before_ours(fail, Book)
    with transaction.atomic():
        with pytest.raises(ValueError, match="theirs"):
            Book.objects.create(title="Emma")
        assert connection.needs_rollback
    assert not Book.objects.exists()
    assert events() == []


@committing
def test_with_autocommit_off_an_atomic_undoes_what_an_error_leaves_half_done(on):
    def fail(instance, action="post_delete", **kwargs):
        if action == "post_delete" or action == "post_remove":
            raise ValueError("theirs")

    book, novel = Book.objects.create(title="Emma"), Tag.objects.create(name="novel")
    book.tags.add(novel)
    before = events()
    connection.set_autocommit(False)
    on(models.signals.post_delete, fail, Book)
    on(models.signals.m2m_changed, fail, Book.tags.through)
    try:
        for change in (lambda: book.tags.remove(novel), book.delete):
            with pytest.raises(ValueError, match="theirs"), transaction.atomic():
                change()
        connection.commit()
    finally:
        connection.set_autocommit(True)

    assert [*Book.objects.get().tags.all()] == [novel]
    assert events() == before


@rolled_back
def test_an_error_before_the_row_is_written_leaves_the_transaction_as_it_was(on):
    def refuse(instance, **kwargs):
        raise ValueError("not like this")

    on(models.signals.pre_save, refuse, Book)
    with pytest.raises(ValueError, match="not like this"):
        Book.objects.create(title="Emma")

    assert not connection.needs_rollback
    assert not Book.objects.exists()


@rolled_back
def test_a_save_that_fails_within_another_one_does_not_confuse_that(on):
    def save_something_else(instance, **kwargs):
        if instance.email == "outer" and not nested:
            nested.append(1)
            with pytest.raises(ValueError, match="inner"):
                instance.save(update_fields=["mentor"])
        elif nested == [1]:
            nested.append(2)
            raise ValueError("inner")

    nested = []
    person = Person.objects.create(email="a")
    forget()
    on(models.signals.pre_save, save_something_else, Person)
    person.email = "outer"
    person.save()

    assert [value["changed"] for _, _, value in events()] == [{"email": {"old": "a", "new": "outer"}}]


@committing
def test_copies_that_are_saved_at_the_same_time_are_told_apart(on, in_thread):
    def wait(instance, **kwargs):
        both.wait(30)

    one = Manuscript.objects.create(code="one")
    one.save()
    other = copy.copy(one)
    other.pk, other.code, other.status = uuid4(), "other", "of the other"
    other.save(force_insert=True)
    forget()
    both = Barrier(2)
    on(models.signals.pre_save, wait, Manuscript)
    one.status = other.status = "sent"
    for future in [in_thread(one.save), in_thread(other.save)]:
        future.result(60)

    assert {key: value["changed"] for _, key, value in events("drafts")} == {
        "one": {"status": {"old": "new", "new": "sent"}},
        "other": {"status": {"old": "of the other", "new": "sent"}},
    }


@rolled_back
def test_what_a_receiver_pickles_is_the_instance_alone(on):
    kept = []
    on(models.signals.post_save, lambda instance, **kwargs: kept.append(pickle.dumps(instance)), Manuscript)
    on(models.signals.pre_delete, lambda instance, **kwargs: kept.append(pickle.dumps(instance)), Fine)
    draft = Manuscript.objects.create(code="M-1", status="what the row had")
    draft.status = "sent"
    draft.save()
    Fine.objects.create(
        loan=Loan.objects.create(book=Book.objects.create(title="Emma"), reader="Ada"), amount=1
    ).delete()

    assert not any(b"what the row had" in one for one in kept[1:])
    assert [type(pickle.loads(one)) for one in kept] == [Manuscript, Manuscript, Fine]


@rolled_back
def test_a_signal_that_is_sent_by_hand_does_no_harm():
    person = Person.objects.create(email="a")
    models.signals.post_save.send(Person, instance=person, created=False, raw=False, using="default")

    assert types() == ["person.created", "person.updated"]


@rolled_back
def test_a_receiver_that_saves_before_the_delete_is_told_before_it(on):
    def mark(instance, **kwargs):
        instance.title = "about to go"
        instance.save()

    book = Book.objects.create(title="Emma")
    on(models.signals.pre_delete, mark, Book)
    book.delete()

    assert types() == ["book.created", "book.updated", "book.deleted"]


@rolled_back
def test_a_receiver_that_deletes_what_is_going_to_be_deleted_is_told_once(on):
    def leave_nothing_behind(instance, **kwargs):
        Loan.objects.filter(book_id=instance.pk).delete()

    book = Book.objects.create(title="Emma")
    Loan.objects.create(book=book, reader="Ada")
    on(models.signals.pre_delete, leave_nothing_behind, Book)
    book.delete()

    assert types("lending") == ["loan.created", "loan.deleted"]


@rolled_back
def test_a_delete_that_failed_leaves_nothing_to_be_told_later(on):
    def fail(instance, **kwargs):
        raise ValueError("theirs")

    def delete():
        with transaction.atomic():
            book.delete()

    book = Book.objects.create(title="Emma")
    forget()
    on(models.signals.pre_delete, fail, Book)
    with pytest.raises(ValueError, match="theirs"):
        delete()
    models.signals.pre_delete.disconnect(fail, sender=Book)
    with suppress():
        delete()

    assert events() == []


@committing
def test_of_two_who_create_the_same_row_one_creates_and_one_updates(in_thread, connect):
    session = connect()
    session.execute("INSERT INTO publishing_app_named (name, note) VALUES ('a', 'first')")
    second = in_thread(Named(name="a", note="second").save)

    def waits():
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(pid)) > 0 FROM pg_stat_activity")
            return any(blocked for (blocked,) in cursor.fetchall())

    wait_until(waits, seconds=20, what="the second to wait for the first")
    session.commit()
    error = second.exception(30)

    # Django found nothing to update, and its INSERT meets the row of the first: nothing is saved, and nothing is told.
    assert error is not None
    assert events("drafts") == []
    Named(name="a", note="third").save()
    assert [(type, value.get("changed")) for type, _, value in events("drafts")] == [
        ("renamed", {"note": {"old": "first", "new": "third"}})
    ]


# Relations


@rolled_back
def test_a_relation_to_itself_is_a_change_of_both():
    ada, ben = Person.objects.create(email="a"), Person.objects.create(email="b")
    forget()
    ada.friends.add(ben)
    ada.friends.remove(ben)

    assert [(key, value["changed"]) for _, key, value in events()] == [
        (str(ada.pk), {"friends": {"added": [ben.pk]}}),
        (str(ben.pk), {"friends": {"added": [ada.pk]}}),
        (str(ada.pk), {"friends": {"removed": [ben.pk]}}),
        (str(ben.pk), {"friends": {"removed": [ada.pk]}}),
    ]


@rolled_back
def test_the_relations_of_fixtures_are_no_events():
    tag = Tag.objects.create(name="novel")
    fixture = f'[{{"model": "publishing_app.book", "pk": 5, "fields": {{"title": "Emma", "tags": [{tag.pk}]}}}}]'
    for loaded in serializers.deserialize("json", fixture):
        loaded.save()

    book = Book.objects.get()
    assert events() == []
    assert [*book.tags.all()] == [tag]
    book.tags.clear()
    assert types() == ["book.updated"]


# Blocks


@committing
def test_a_block_ends_also_in_a_transaction_that_django_does_not_know():
    from tests.support.publishing_app.models import Account

    connection.set_autocommit(False)
    try:
        with suppress():
            Account.objects.create(note="suppressed")
        Account.objects.create(note="told")
        with event_context(user=7):
            Account.objects.create(note="in 7")
        Account.objects.create(note="after")
        connection.commit()
    finally:
        connection.set_autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        with suppress():
            Account.objects.create(note="suppressed")
        Account.objects.create(note="by hand")
        cursor.execute("COMMIT")

    assert [(event.value["note"], event.metadata) for event in published("accounts")] == [
        ("told", {}),
        ("in 7", {"user": 7}),
        ("after", {}),
        ("by hand", {}),
    ]


@pytest.mark.parametrize("block", [lambda: suppress(), lambda: event_context(user=7)])
@committing
def test_a_block_ends_in_a_transaction_that_outlives_the_atomic_within(block):
    from tests.support.publishing_app.models import Account

    connection.set_autocommit(False)
    try:
        with block():
            Account.objects.bulk_create([Account(note="inside")])
            Book.objects.create(title="Emma")
        Account.objects.create(note="after")
        connection.commit()
    finally:
        connection.set_autocommit(True)

    assert published("accounts")[-1].value["note"] == "after"
    assert published("accounts")[-1].metadata == {}


@pytest.mark.parametrize("block", [lambda: suppress(), lambda: event_context(user=7)])
@committing
def test_a_savepoint_that_is_rolled_back_does_not_bring_a_block_back(block):
    from django.db import DatabaseError

    from tests.support.publishing_app.models import Account

    with transaction.atomic():
        savepoint = None
        try:
            with block(), connection.cursor() as cursor:
                Account.objects.create(note="inside")
                savepoint = connection.savepoint()
                cursor.execute("SELECT 1 / 0")
        except DatabaseError:
            transaction.savepoint_rollback(savepoint)
        Account.objects.create(note="after")

    assert ("after", {}) in [(event.value["note"], event.metadata) for event in published("accounts")]


@rolled_back
def test_blocks_of_generators_end_in_any_order():
    def importing(topic, n):
        with suppress(topic), event_context(**{topic: n}):
            yield
            yield

    first, second = importing("library", 1), importing("drafts", 2)
    for _ in zip(first, second, strict=False):
        Book.objects.create(title="suppressed")
    # The first has ended, and the second not yet.
    Book.objects.create(title="between")
    Told.objects.create(title="suppressed")
    second.close()
    Book.objects.create(title="after")
    Told.objects.create(title="after")

    assert [
        (event.value["title"], event.metadata) for topic in ("library", "drafts") for event in published(topic)
    ] == [
        ("between", {"drafts": 2}),
        ("after", {}),
        ("after", {}),
    ]


@rolled_back
def test_an_abstract_model_stands_for_those_that_inherit_it():
    with suppress(Timestamped):
        Loan.objects.create(book=Book.objects.create(title="Emma"), reader="Ada")
    assert (types(), types("lending")) == (["book.created"], [])


def test_a_topic_that_is_not_there_can_not_be_suppressed():
    with pytest.raises(UnknownTopic, match="Did you mean 'library'"), suppress("libary"):
        raise AssertionError("inside")


# Content that users write


@pytest.fixture
def omitting(monkeypatch):
    """Let the outboxes of a model leave out what is too large."""

    def omit(model, **changes):
        others = [
            changes_of_models.Publisher(replace(one.outbox, too_large="omit", **changes), one.model)
            for one in changes_of_models._publishers[model]
        ]
        monkeypatch.setitem(changes_of_models._publishers, model, others)

    return omit


@rolled_back
def test_a_save_fails_where_the_row_is_too_large_for_an_event(settings):
    settings.DJANGO_EVENTS = {"MAX_PAYLOAD_BYTES": 1_000}
    with pytest.raises(InvalidEvent, match="too_large='omit'"), transaction.atomic():
        Person.objects.create(settings={"theme": "x" * 1_001})
    assert published("library") == []


@rolled_back
@pytest.mark.parametrize("watch", [(), ("status", "notes")])
def test_what_is_too_large_is_left_out_and_named(settings, omitting, watch):
    settings.DJANGO_EVENTS = {"MAX_PAYLOAD_BYTES": 300}
    omitting(Manuscript, fields=None, watch=watch)
    manuscript = Manuscript.objects.create(code="a", status="\N{SNOWMAN}" * 20, notes="x" * 10_000)
    manuscript.notes, manuscript.status = "y" * 10_000, "sent"
    manuscript.save()

    [created, updated] = published("drafts")
    assert created.metadata == {"omitted": ["notes"]}
    assert created.value["code"] == "a"
    assert "notes" not in created.value
    assert updated.metadata == {"omitted": ["notes"]}
    if watch:
        assert set(updated.value["changed"]) == {"status"}
    assert updated.key == "a"


# Declarations


def test_an_outbox_without_a_topic_or_a_model_says_so():
    with pytest.raises(TypeError, match=r"@outbox needs a topic: @outbox\('books'\) above class Book"):
        outbox(Book)
    with pytest.raises(TypeError, match="@outbox is for models"):
        outbox("library")(int)


def test_a_key_that_is_hidden_and_an_outbox_that_is_there_twice_are_found():
    from django_events.publishing import model_signals
    from django_events.publishing.outbox import Outbox

    def problems(**options):
        made = Outbox(
            **{
                "model": Tag,
                "topic": "library",
                "key": "pk",
                "created": None,
                "updated": "x",
                "deleted": None,
                "value": None,
                "fields": None,
                "exclude": (),
                "watch": (),
                "m2m": (),
                "too_large": "refuse",
                **options,
            }
        )
        return made, list(made.problems(Tag))

    assert problems()[1] == []
    assert "too_large='cut', expected 'refuse' or 'omit'" in problems(too_large="cut")[1][0]
    assert "hides 'id', which is its key" in problems(exclude=("id",))[1][0]
    first, _ = problems()
    second, _ = problems()
    model_signals.declared += [first, second]
    try:
        assert [len(list(one.problems(Tag))) for one in (first, second)] == [1, 0]
    finally:
        del model_signals.declared[-2:]
