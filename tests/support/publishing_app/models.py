"""Models whose changes are events, in all the ways that Django has."""

import uuid
from typing import Any

import pgtrigger
from django.db import models

from django_events import capture, outbox


class Tag(models.Model):
    name = models.CharField(max_length=20)


@outbox("library")
class Book(models.Model):
    """Everything is an event, and the value is the row."""

    title = models.CharField(max_length=50)
    price = models.DecimalField(max_digits=8, decimal_places=2, null=True)
    copies = models.IntegerField(default=0)
    tags = models.ManyToManyField(Tag, related_name="books")


class AudioBook(Book):
    """A row of its own, and one of the parent's."""

    minutes = models.IntegerField()


class PaperBook(Book):
    class Meta:
        proxy = True


@outbox(
    "drafts",
    key="code",
    created="draft.begun",
    updated="draft.changed",
    deleted=None,
    fields=["code", "status"],
)
class Manuscript(models.Model):
    """Some fields are events, under types and a key of their own; deletes are none."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    code = models.CharField(max_length=20, unique=True)
    status = models.CharField(max_length=20, default="new")
    words = models.IntegerField(default=0)
    notes = models.TextField(blank=True)


@outbox("lending", exclude=["secret"])
class Timestamped(models.Model):
    at = models.DateTimeField(null=True)

    class Meta:
        abstract = True


class Loan(Timestamped):
    """It inherits its outbox from an abstract model. Its book's end is its own."""

    book = models.ForeignKey(Book, models.CASCADE, related_name="loans")
    reader = models.CharField(max_length=20)
    secret = models.CharField(max_length=20, blank=True)


def describe(fine: "Fine") -> dict[str, Any]:
    return {"fine": f"{fine.amount} for {fine.loan.reader}"}


@outbox("lending", key=lambda fine: f"loan-{fine.loan_id}", value=describe, updated="fine.changed")
class Fine(Timestamped):
    """It has an outbox instead of the inherited one, and says it in its own words."""

    loan = models.ForeignKey(Loan, models.CASCADE, related_name="fines")
    amount = models.IntegerField()


@outbox("library", key=None)
class Everything(models.Model):
    """A field of each kind."""

    boolean = models.BooleanField(null=True)
    big = models.BigIntegerField(null=True)
    float = models.FloatField(null=True)
    decimal = models.DecimalField(max_digits=12, decimal_places=4, null=True)
    text = models.TextField(null=True)
    json = models.JSONField(null=True)
    date = models.DateField(null=True)
    time = models.TimeField(null=True)
    datetime = models.DateTimeField(null=True)
    duration = models.DurationField(null=True)
    binary = models.BinaryField(null=True)
    address = models.GenericIPAddressField(null=True)
    uuid = models.UUIDField(null=True)
    file = models.FileField(null=True)
    url = models.URLField(null=True)
    doubled = models.GeneratedField(
        expression=models.F("big") * 2, output_field=models.BigIntegerField(), db_persist=True
    )


class Account(models.Model):
    """A table whose changes are captured, with columns named otherwise than its attributes."""

    owner = models.ForeignKey(Tag, models.CASCADE, null=True, db_column="The Owner's")
    balance = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    iban = models.CharField(max_length=34, null=True)
    pin = models.CharField(max_length=4, null=True)
    note = models.TextField(null=True, db_column="group")
    seen = models.DateTimeField(null=True)

    class Meta:
        triggers = capture("accounts", exclude=["pin"], mask=["iban"])


class SavingsAccount(Account):
    """Its own columns are captured; those of the parent are the parent's."""

    rate = models.FloatField(default=0)

    class Meta:
        triggers = capture("accounts", key="account_ptr_id")


class Shelf(models.Model):
    """Only what matters: a change of the place of a shelf that is open, and O'Brien's."""

    code = models.CharField(max_length=20, primary_key=True)
    place = models.CharField(max_length=20, null=True)
    is_open = models.BooleanField(default=True)
    label = models.CharField(max_length=40, blank=True)

    class Meta:
        triggers = capture(
            "shelves",
            key="code",
            created=None,
            updated="shelf.moved",
            deleted=None,
            watch=["place"],
            condition=pgtrigger.Q(new__is_open=True) & ~pgtrigger.Q(new__label="O'Brien's NEW.label 100%"),
        )


class Captured(Everything):
    """What a trigger makes of a field of each kind."""

    class Meta:
        proxy = True
        triggers = capture("captured", key=None, created="captured", updated="captured", deleted="captured")


@outbox("library")
class Seat(models.Model):
    """A primary key of two columns."""

    pk = models.CompositePrimaryKey("row", "number")
    row = models.CharField(max_length=2)
    number = models.IntegerField()
    reader = models.CharField(max_length=20, blank=True)

    class Meta:
        triggers = capture("captured")


class Lowered(models.CharField):
    """What is stored is not what was assigned."""

    def get_prep_value(self, value: Any) -> Any:
        value = super().get_prep_value(value)
        return None if value is None else value.lower()


@outbox("library")
class Person(models.Model):
    """Fields whose values change on their way, and an order by another table."""

    email = Lowered(max_length=50, blank=True)
    rate = models.DecimalField(max_digits=6, decimal_places=2, default=0)
    settings = models.JSONField(default=dict)
    doubled = models.GeneratedField(
        expression=models.F("rate") * 2,
        output_field=models.DecimalField(max_digits=7, decimal_places=2),
        db_persist=True,
    )
    mentor = models.ForeignKey("self", models.SET_NULL, null=True, related_name="pupils")
    friends = models.ManyToManyField("self")

    class Meta:
        ordering = ("mentor__email", "pk")


@outbox("drafts", key="name", created="named", updated="renamed", deleted=None)
class Named(models.Model):
    """A primary key that people choose."""

    name = models.CharField(max_length=10, primary_key=True)
    note = models.CharField(max_length=10, blank=True)


def titles(book: Any) -> dict[str, Any]:
    return {"title": book.title, "pages": book.pages}


@outbox("drafts", key=None, value=titles, created="told", updated="told", deleted="told")
class Told(models.Model):
    title = models.CharField(max_length=20)
    pages = models.IntegerField(default=0)


class Awkward(models.Model):
    """Columns that are called like what a trigger might use itself."""

    shown = models.CharField(max_length=20, blank=True)
    r = models.IntegerField(default=0)
    n = models.IntegerField(default=0)
    o = models.IntegerField(default=0)
    kind = models.CharField(max_length=20, blank=True)
    type = models.CharField(max_length=20, blank=True)
    old_values = models.IntegerField(default=0)
    metadata = models.CharField(max_length=20, blank=True)
    topic_id = models.IntegerField(default=0)

    class Meta:
        triggers = capture("captured", exclude=["shown"], condition=~pgtrigger.Q(new__kind="100%% of %"), deleted=None)
