"""`@outbox`: what Django's signals tell of a model is published, exactly if it is committed."""

import base64
from datetime import UTC, datetime, time, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.core.files.base import ContentFile
from django.db import connection, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Upper
from django.test.utils import isolate_apps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_events import declarations, event_context, outbox, suppress
from django_events.exceptions import InvalidEvent, NotInTransaction, UnknownName
from django_events.models import BufferedEvent
from django_events.publishing import model_signals
from django_events.testing import published
from tests.support.fix_topics import assert_dense, transfer_all
from tests.support.publishing_app.models import (
    AudioBook,
    Book,
    Everything,
    Fine,
    Loan,
    Manuscript,
    PaperBook,
    Seat,
    Tag,
)

rolled_back = pytest.mark.django_db
committing = pytest.mark.usefixtures("transactional_db")
IN_ONE_DATABASE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def events(topic="library"):
    return [(event.type, event.key, event.value) for event in published(topic)]


def types(topic="library"):
    return [event.type for event in published(topic)]


def forget():
    BufferedEvent.objects.all().delete()


# What is an event, and what it says


@pytest.mark.slow
@rolled_back
def test_created_updated_and_deleted_say_what_the_row_is():
    book = Book.objects.create(title="Emma", price="7.5")
    book.copies = 3
    book.save()
    pk = str(book.pk)
    book.delete()

    row = {"id": int(pk), "title": "Emma", "price": "7.50", "copies": 0}
    assert events() == [
        ("book.created", pk, row),
        ("book.updated", pk, {**row, "copies": 3}),
        ("book.deleted", pk, {**row, "copies": 3}),
    ]


@rolled_back
def test_fields_of_each_kind_are_written_the_same_way_always():
    Everything.objects.create(
        boolean=True,
        big=2**60,
        float=1.5,
        decimal="1.5",
        text="O'Brien ✓",
        json={"a": [1, None]},
        date="2026-02-03",
        time=time(1, 2, 3),
        datetime=datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC),
        duration=timedelta(days=1, seconds=1.5),
        binary=b"\0\xff",
        address="10.0.0.1",
        uuid="12345678123456781234567812345678",
        file="a/b.txt",
        url="https://example.org",
    )
    [(_, key, value)] = events()

    assert key is None
    assert value.pop("id")
    assert value == {
        "boolean": True,
        "big": 2**60,
        "float": 1.5,
        "decimal": "1.5000",
        "text": "O'Brien ✓",
        "json": {"a": [1, None]},
        "date": "2026-02-03",
        "time": "01:02:03.000000",
        "datetime": "2026-02-03T04:05:06.789012Z",
        "duration": 86401.5,
        "binary": base64.b64encode(b"\0\xff").decode(),
        "address": "10.0.0.1",
        "uuid": "12345678-1234-5678-1234-567812345678",
        "file": "a/b.txt",
        "url": "https://example.org",
        "doubled": 2**61,
    }


@rolled_back
def test_an_empty_row_is_full_of_nothing():
    Everything.objects.create()
    [(_, _, value)] = events()

    # Django stores no file as a text without letters.
    assert {name: value[name] for name in value if value[name] is not None and name != "id"} == {"file": ""}


@rolled_back
def test_an_instance_that_was_loaded_says_the_same_as_the_one_that_was_made():
    made = Everything.objects.create(
        decimal="1.5", date="2026-02-03", time="01:02", duration="1 00:00:01", binary=b"\0", uuid="1" * 32, big="7"
    )
    Everything.objects.get(pk=made.pk).save()
    (_, _, first), (_, _, second) = events()

    assert first == second


@rolled_back
def test_what_the_database_makes_of_an_expression_is_published():
    book = Book.objects.create(title="emma", copies=1)
    forget()
    book.copies = F("copies") + 4
    book.title = Upper(Value("emma"))
    book.save()

    [(_, _, value)] = events()
    assert (value["copies"], value["title"]) == (5, "EMMA")


@rolled_back
def test_what_an_update_of_some_fields_leaves_out_is_as_it_is_in_the_row():
    book = Book.objects.create(title="Emma", copies=1)
    forget()
    book.title, book.copies = "never saved", 2
    book.save(update_fields=["copies"])

    [(_, _, value)] = events()
    assert (value["title"], value["copies"]) == ("Emma", 2)


@rolled_back
def test_deferred_fields_are_read():
    pk = Book.objects.create(title="Emma", copies=1).pk
    forget()
    book = Book.objects.only("copies").get(pk=pk)
    book.copies = 2
    book.save()
    book.delete()

    assert [value["title"] for _, _, value in events()] == ["Emma", "Emma"]


@rolled_back
def test_a_generated_field_is_as_the_database_has_it():
    one = Everything.objects.create(big=2)
    one.big = 5
    one.save()

    assert [value["doubled"] for _, _, value in events()] == [4, 10]


@rolled_back
def test_a_file_is_its_name(tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path
    one = Everything.objects.create()
    forget()
    one.file.save("a.txt", ContentFile(b"x"))

    assert events()[-1][2]["file"] == "a.txt"


@rolled_back
def test_types_key_and_fields_are_as_they_were_declared():
    draft = Manuscript.objects.create(code="M-1", words=5)
    draft.status = "sent"
    draft.save()
    draft.delete()

    assert events("drafts") == [
        ("draft.begun", "M-1", {"code": "M-1", "status": "new"}),
        (
            "draft.changed",
            "M-1",
            {"code": "M-1", "status": "sent"},
        ),
    ]


@rolled_back
def test_a_function_says_what_the_event_is():
    loan = Loan.objects.create(book=Book.objects.create(title="Emma"), reader="Ada")
    forget()
    fine = Fine.objects.create(loan=loan, amount=5)
    fine.amount = 7
    fine.save()

    assert events("lending") == [
        ("fine.created", f"loan-{loan.pk}", {"fine": "5 for Ada"}),
        (
            "fine.changed",
            f"loan-{loan.pk}",
            {"fine": "7 for Ada"},
        ),
    ]


class TagSerializer:
    """It looks like those of Django REST framework."""

    def __init__(self, instance):
        self.data = {"tag": instance.name}


@pytest.fixture
def declare():
    """Give models outboxes for one test."""
    before, publishers = list(model_signals.declared), {k: list(v) for k, v in model_signals._publishers.items()}

    def connect(model, *args, **options):
        return outbox(*args, **options)(model)

    yield connect
    model_signals.declared[:] = before
    model_signals._publishers.clear()
    model_signals._publishers.update(publishers)


@rolled_back
def test_a_serializer_says_what_the_event_is(declare):
    declare(Tag, "library", value=TagSerializer, key=lambda tag: None)
    Tag.objects.create(name="novel")

    assert events() == [("tag.created", None, {"tag": "novel"})]


@rolled_back
def test_the_context_is_in_the_metadata():
    with event_context(user=7), event_context(request="abc", lazily=lambda: 5):
        Book.objects.create(title="Emma")
    Book.objects.create(title="Persuasion")

    assert [event.metadata for event in published("library")] == [{"user": 7, "request": "abc", "lazily": 5}, {}]


@rolled_back
def test_a_primary_key_of_several_columns_is_a_key_of_all_of_them():
    seat = Seat.objects.create(row="A", number=7)
    seat.reader = "Ada"
    seat.save()
    Seat.objects.filter(row="A").update(number=8)
    Seat.objects.all().delete()

    row = {"row": "A", "number": 7, "reader": "Ada"}
    by_triggers = events("captured")
    assert events() == [
        ("seat.created", "A,7", {**row, "reader": ""}),
        ("seat.updated", "A,7", row),
        ("seat.deleted", "A,8", {**row, "number": 8}),
    ]
    assert by_triggers[0] == events()[0]
    assert by_triggers[1] == (
        "seat.updated",
        "A,7",
        {**row, "changed": {"reader": {"old": "", "new": "Ada"}}},
    )
    assert sorted(by_triggers[2:4]) == [
        ("seat.created", "A,8", {**row, "number": 8}),
        ("seat.deleted", "A,7", row),
    ]
    assert by_triggers[4:] == events()[2:]


# All of Django's ways


@rolled_back
def test_the_managers_ways_to_save_are_seen():
    Book.objects.get_or_create(title="Emma")
    Book.objects.get_or_create(title="Emma")
    Book.objects.update_or_create(title="Emma", defaults={"copies": 2})
    Book.objects.update_or_create(title="Persuasion")
    tag = Tag.objects.create(name="novel")
    tag.books.create(title="Sanditon")

    assert types() == ["book.created", "book.updated", "book.created", "book.created"]


@rolled_back
def test_deletes_of_querysets_and_cascades_are_seen():
    for title in ("Emma", "Persuasion"):
        book = Book.objects.create(title=title)
        Fine.objects.create(loan=Loan.objects.create(book=book, reader="Ada"), amount=1)
    forget()
    Book.objects.all().delete()

    assert types() == ["book.deleted"] * 2
    assert sorted(types("lending")) == ["fine.deleted"] * 2 + ["loan.deleted"] * 2
    assert not Book.objects.exists()


@committing
def test_of_two_who_delete_the_same_row_one_publishes_it(in_thread):
    with transaction.atomic():
        pk = Book.objects.create(title="Emma").pk
    found = [Book.objects.get(pk=pk) for _ in range(6)]
    for future in [in_thread(book.delete) for book in found]:
        future.result()

    assert types() == ["book.created", "book.deleted"]


@rolled_back
def test_what_django_does_without_signals_is_not_seen():
    Book.objects.bulk_create([Book(title="Emma")])
    Book.objects.update(copies=5)

    assert events() == []


@rolled_back
def test_fixtures_are_no_events():
    [loaded] = serializers.deserialize(
        "json", '[{"model": "publishing_app.book", "pk": 5, "fields": {"title": "Emma", "tags": []}}]'
    )
    loaded.save()

    assert Book.objects.get().title == "Emma"
    assert events() == []


@rolled_back
def test_async_code_is_seen():
    async def write():
        book = await Book.objects.acreate(title="Emma")
        book.copies = 2
        await book.asave()
        await book.adelete()

    async_to_sync(write)()
    assert types() == ["book.created", "book.updated", "book.deleted"]


@rolled_back
def test_a_save_within_a_save_is_an_event_of_its_own():
    def save_again(sender, instance, created, **kwargs):
        if instance.status == "sent":
            instance.status = "read"
            instance.save()

    models.signals.post_save.connect(save_again, sender=Manuscript)
    try:
        draft = Manuscript.objects.create(code="M-1")
        draft.status = "sent"
        draft.save()
    finally:
        models.signals.post_save.disconnect(save_again, sender=Manuscript)

    assert [value["status"] for _, _, value in events("drafts")] == ["new", "sent", "read"]


# Inheritance


@rolled_back
def test_a_proxy_is_its_model():
    book = PaperBook.objects.create(title="Emma")
    book.save()
    PaperBook.objects.all().delete()

    assert types() == ["book.created", "book.updated", "book.deleted"]


@rolled_back
def test_a_child_is_an_event_of_its_parents_row_once():
    book = AudioBook.objects.create(title="Emma", minutes=90)
    book.minutes = 95
    book.save()
    assert events()[0][2] == {"id": book.pk, "title": "Emma", "price": None, "copies": 0}
    book.save(update_fields=["minutes"])
    book.delete()

    assert types() == ["book.created", "book.updated", "book.updated", "book.deleted"]


@rolled_back
def test_an_abstract_models_outbox_is_inherited_and_replaced():
    book = Book.objects.create(title="Emma")
    loan = Loan.objects.create(book=book, reader="Ada", secret="x", at=datetime(2026, 1, 1, tzinfo=UTC))
    Fine.objects.create(loan=loan, amount=1)

    assert events("lending") == [
        (
            "loan.created",
            str(loan.pk),
            {"id": loan.pk, "at": "2026-01-01T00:00:00.000000Z", "book_id": book.pk, "reader": "Ada"},
        ),
        ("fine.created", f"loan-{loan.pk}", {"fine": "1 for Ada"}),
    ]


@committing
def test_events_go_to_the_alias_of_the_save_and_end_with_its_transaction(other_alias):
    with transaction.atomic(other_alias):
        book = Book(title="gone")
        book.save(using=other_alias)
        Manuscript.objects.using(other_alias).create(code="gone")
        transaction.set_rollback(True, other_alias)
    with transaction.atomic(), transaction.atomic(other_alias):
        Book(title="there").save(using=other_alias)
        transaction.set_rollback(True)

    assert [value["title"] for _, _, value in events()] == ["there"]
    assert types("drafts") == []


@rolled_back
def test_what_the_context_asks_the_database_does_not_ask_for_the_context():
    def writes():
        Tag.objects.create(name="looked up")
        return 7

    with event_context(user=writes):
        Book.objects.create(title="Emma")

    assert [event.metadata for event in published("library")] == [{"user": 7}]
    assert Tag.objects.count() == 1


# Suppressing


@rolled_back
def test_nothing_is_published_where_it_is_suppressed():
    with suppress():
        book = Book.objects.create(title="Emma")
        book.delete()
    assert events() == []
    with suppress("lending"):
        book = Book.objects.create(title="Emma")
        Loan.objects.create(book=book, reader="Ada")
    with suppress(Loan, declarations.DeclaredTopic(name="drafts")):
        Loan.objects.create(book=book, reader="Ada")
        Manuscript.objects.create(code="M-1")
        Fine.objects.create(loan=Loan.objects.get(pk=Loan.objects.create(book=book, reader="Ben").pk), amount=1)

    assert (types(), types("lending"), types("drafts")) == (["book.created"], ["fine.created"], [])


# Together with the row, or not at all


@committing
def test_a_save_outside_a_transaction_is_refused_before_the_row_is_written():
    with pytest.raises(NotInTransaction, match=r"Book has an @outbox .* Nothing was saved\. Wrap .* capture\(\)"):
        Book.objects.create(title="Emma")
    assert not Book.objects.exists()
    with suppress():
        book = Book.objects.create(title="Emma")
    book.delete()

    assert types() == ["book.deleted"], "Django deletes in a transaction of its own"


@committing
def test_a_save_that_is_no_event_needs_no_transaction(declare):
    declare(Tag, "library", updated=None)
    with transaction.atomic():
        tag = Tag.objects.create(name="novel")
    tag.name = "comedy"
    tag.save(update_fields=["name"])
    with pytest.raises(NotInTransaction):
        tag.save()  # which would create the row if another session had deleted it

    assert types() == ["tag.created"]


@committing
def test_with_autocommit_off_a_save_is_in_a_transaction():
    connection.set_autocommit(False)
    try:
        Book.objects.create(title="Emma")
        connection.rollback()
        Book.objects.create(title="Persuasion")
        connection.commit()
    finally:
        connection.set_autocommit(True)

    assert [value["title"] for _, _, value in events()] == ["Persuasion"]


@committing
def test_who_catches_the_error_of_an_event_can_not_commit_the_row(declare):
    declare(Tag, "library", value=lambda tag: {"name": object()})
    with transaction.atomic():
        with pytest.raises(InvalidEvent):
            Tag.objects.create(name="novel")
        assert connection.needs_rollback
    assert not Tag.objects.exists()


@rolled_back
def test_a_topic_that_is_not_declared_takes_the_row_along(declare):
    declare(Tag, "libary")
    with pytest.raises(UnknownName, match="Did you mean 'library'"), transaction.atomic():
        Tag.objects.create(name="novel")
    assert not Tag.objects.exists()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "send", "note", "partly", "refresh", "delete", "begin", "commit", "roll back", "again"]
        ),
        st.integers(0, 2),
    ),
    max_size=25,
)


@pytest.mark.slow
@pytest.mark.requirement("P11", "E3")
@committing
@IN_ONE_DATABASE
@given(steps=STEPS)
def test_an_event_is_there_exactly_if_its_change_was_committed(steps):
    """Whatever is saved, deleted, nested, rolled back, and saved again with the instances that saw it."""
    Manuscript.objects.all().delete()
    History(steps).check()


class History:
    """What was done with three manuscripts, and which events have to be there for it."""

    def __init__(self, steps):
        self.before = len(events("drafts"))
        self.steps = steps
        self.drafts = {}
        self.expected = [[]]  # of each open block
        self.blocks = []
        self.number = 0

    def check(self):
        for step, which in self.steps:
            getattr(self, step.replace(" ", "_"))(which)
        while self.blocks:
            self.commit(0)
        transfer_all()
        assert [(kind, key, value["status"]) for kind, key, value in events("drafts")][self.before :] == self.expected[
            0
        ]

    def rows(self):
        return {row["code"]: row for row in Manuscript.objects.values("id", "code", "status", "words")}

    def expect(self, code, before, after):
        """Each save is an event, with what the table has after it."""
        if after is not None:
            self.expected[-1].append(("draft.begun" if before is None else "draft.changed", code, after["status"]))

    def observed(self, code, act):
        before = self.rows().get(code)
        with transaction.atomic():
            act()
        self.expect(code, before, self.rows().get(code))

    def create(self, which):
        code = f"M-{which}"
        if code not in self.rows():
            self.drafts[which] = Manuscript(code=code)
            self.observed(code, self.drafts[which].save)

    def send(self, which):
        if which in self.drafts and f"M-{which}" in self.rows():
            self.number += 1
            self.drafts[which].status = f"sent {self.number}"
            self.observed(f"M-{which}", self.drafts[which].save)

    def note(self, which):
        if which in self.drafts and f"M-{which}" in self.rows():
            self.drafts[which].notes += "."
            self.observed(f"M-{which}", self.drafts[which].save)

    def partly(self, which):
        if which in self.drafts and self.drafts[which].pk in {row["id"] for row in self.rows().values()}:
            self.drafts[which].words += 1
            self.drafts[which].status += "?"
            self.observed(f"M-{which}", lambda: self.drafts[which].save(update_fields=["words"]))

    def refresh(self, which):
        found = Manuscript.objects.filter(code=f"M-{which}").first()
        if found is not None:
            self.drafts[which] = found

    def delete(self, which):
        draft = self.drafts.pop(which, None)
        if draft is not None and draft.pk is not None:
            draft.delete()

    def again(self, which):
        """Saved once more, perhaps after it was rolled back: made anew then."""
        draft, rows = self.drafts.get(which), self.rows()
        if draft is not None and (f"M-{which}" not in rows or rows[f"M-{which}"]["id"] == draft.pk):
            self.observed(f"M-{which}", draft.save)

    def begin(self, which):
        block = transaction.atomic()
        block.__enter__()
        self.blocks.append(block)
        self.expected.append([])

    def commit(self, which):
        if self.blocks:
            self.blocks.pop().__exit__(None, None, None)
            self.expected[-2:] = [self.expected[-2] + self.expected[-1]]

    def roll_back(self, which):
        if self.blocks:
            transaction.set_rollback(True)
            self.blocks.pop().__exit__(None, None, None)
            self.expected.pop()


@committing
def test_what_was_published_is_dense_in_the_log(in_thread):
    def write(number):
        for i in range(10):
            with transaction.atomic():
                Book.objects.create(title=f"{number}/{i}")
                transaction.set_rollback(i % 3 == 0)

    for future in [in_thread(write, number) for number in range(5)]:
        future.result()
    transfer_all()

    assert len(events()) == Book.objects.count() == 30
    assert_dense(declarations.registry.get("library"))


# Cost


@rolled_back
def test_a_save_costs_one_statement_more(django_assert_num_queries):
    with django_assert_num_queries(2):
        book = Book.objects.create(title="Emma")
    with django_assert_num_queries(2):
        book.save()


# Declarations


@isolate_apps("tests.support.publishing_app")
def test_wrong_declarations_are_found(declare):
    class Thing(models.Model):
        name = models.CharField(max_length=5)

        class Meta:
            app_label = "publishing_app"

    def problems(**options):
        declare(Thing, "library", **options)
        return list(model_signals.declared[-1].problems(Thing))

    assert problems() == []
    assert problems(key=None, fields="name") == []
    [problem] = problems(created=None, updated=None, deleted=None)
    assert "publishes nothing" in problem
    [problem] = problems(fields=["nmae"])
    assert "'nmae' in fields, which is no field with a column. There are id, name." in problem
    [problem] = problems(key="nmae")
    assert "key='nmae'" in problem
    [problem] = problems(value=dict, fields=["name"])
    assert "Only one of them" in problem
    [problem] = problems(value="dict")
    assert "expected a function" in problem


def test_the_check_names_the_model_and_the_likely_topic(declare):
    from django_events.checks.publishers import check_outboxes

    assert list(check_outboxes()) == []
    declare(Tag, "libary", fields=["nmae"])
    found = list(check_outboxes())

    assert [(error.id, error.obj) for error in found] == [("django_events.E010", Tag)] * 2
    assert found[1].hint == "Did you mean 'library'?"
