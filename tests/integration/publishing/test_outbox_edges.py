"""Where an instance and its row differ, and where others take part in a save: each was once an event lost or wrong."""

from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest
from django.db import connection, models, transaction
from django.db.models import F

from django_events import event_context, outbox, suppress
from django_events.exceptions import InvalidEvent, UnknownName
from django_events.models import BufferedEvent
from django_events.publishing import model_signals as changes_of_models
from django_events.publishing.fields import written
from django_events.testing import published
from tests.support.publishing_app.models import (
    Book,
    Everything,
    Loan,
    Manuscript,
    Person,
    Tag,
    Timestamped,
    Told,
)

rolled_back = pytest.mark.django_db
committing = pytest.mark.usefixtures("transactional_db")


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


# Values


@rolled_back
def test_values_are_those_of_the_row_however_they_were_assigned():
    person = Person.objects.create(email="Ada@Example.ORG", rate=Decimal("1.005"), settings={1: ("a", None)})
    [(_, _, value)] = events()
    stored = Person.objects.values("email", "rate", "settings", "doubled").get()

    assert (value["email"], value["rate"], value["doubled"]) == ("ada@example.org", "1.01", "2.02")
    assert (stored["email"], stored["rate"], stored["doubled"]) == ("ada@example.org", Decimal("1.01"), Decimal("2.02"))
    assert value["settings"] == stored["settings"] == {"1": ["a", None]}
    person.save()
    assert events()[1][2] == value, "what the instance was given doesn't count, nor what it was loaded with"


def test_numbers_of_fixed_precision_are_rounded_as_postgresql_does_however_long():
    field = models.DecimalField(max_digits=1_000, decimal_places=2)

    assert written(field, Decimal("123456789012345678901234567890.125")) == "123456789012345678901234567890.13"
    assert written(field, Decimal("-" + "9" * 900)) == "-" + "9" * 900 + ".00"
    assert written(field, Decimal("1E+40")) == "1" + "0" * 40 + ".00"
    assert written(field, Decimal("-0.001")) == "0.00"


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
def test_a_model_that_is_ordered_by_another_table_locks_its_own_row_only(django_assert_num_queries):
    person = Person.objects.create(email="a")
    person.email = "b"
    with django_assert_num_queries(3) as captured:  # with a look for the generated field
        person.save()
    assert all("JOIN" not in query["sql"] for query in captured)
    person.delete()

    assert types() == ["person.created", "person.updated", "person.deleted"]


# Others


@committing
def test_an_error_of_another_receiver_undoes_a_delete_with_its_event(on):
    def fail(instance, **kwargs):
        raise ValueError("theirs")

    with transaction.atomic():
        book = Book.objects.create(title="Emma")
    on(models.signals.post_delete, fail, Book)
    with pytest.raises(ValueError, match="theirs"):
        book.delete()

    assert Book.objects.exists()
    assert types() == ["book.created"]


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


# Relations


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
    with pytest.raises(UnknownName, match="Did you mean 'library'"), suppress("libary"):
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
def test_what_is_too_large_is_left_out_and_named(settings, omitting):
    settings.DJANGO_EVENTS = {"MAX_PAYLOAD_BYTES": 300}
    omitting(Manuscript, fields=None)
    manuscript = Manuscript.objects.create(code="a", status="\N{SNOWMAN}" * 20, notes="x" * 10_000)
    manuscript.notes, manuscript.status = "y" * 10_000, "sent"
    manuscript.save()

    [created, updated] = published("drafts")
    assert created.metadata == {"omitted": ["notes"]}
    assert created.value["code"] == "a"
    assert "notes" not in created.value
    assert updated.metadata == {"omitted": ["notes"]}
    assert updated.key == "a"


# Declarations


def test_an_outbox_without_a_topic_or_a_model_says_so():
    with pytest.raises(TypeError, match=r"@outbox needs a topic: @outbox\('books'\) above class Book"):
        outbox(Book)
    with pytest.raises(TypeError, match="@outbox is for models"):
        outbox("library")(int)


def test_a_key_that_is_hidden_and_an_outbox_that_is_there_twice_are_found():
    from django_events.publishing import model_signals
    from django_events.publishing.outbox_options import OutboxOptions

    def problems(**options):
        made = OutboxOptions(
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
