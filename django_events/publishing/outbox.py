"""`@outbox`: saves and deletes of a model are events, published by Django's signals in the transaction of the change.

    @outbox("orders", created="order.placed", updated="order.changed", deleted="order.cancelled")
    class Order(models.Model): ...

Django sends signals for what it does with instances. `capture()` sees every change of the table.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.models import Model

from django_events import declarations
from django_events.drafts import UNSET, Unset
from django_events.publishing.model_signals import connect
from django_events.publishing.outbox_options import OutboxOptions, TooLarge

M = TypeVar("M", bound=type[Model])


def outbox(
    topic: declarations.DeclaredTopic | str,
    *,
    key: str | Callable[[Any], Any] | None = "pk",
    created: str | Unset | None = UNSET,
    updated: str | Unset | None = UNSET,
    deleted: str | Unset | None = UNSET,
    value: Callable[[Any], Any] | None = None,
    fields: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    too_large: TooLarge = "refuse",
) -> Callable[[M], M]:
    """Publish an event for each instance of a model that is created, updated or deleted, in the same transaction.

    The types are `order.created`, `order.updated` and `order.deleted` for a model `Order`, unless they are named; None
    publishes nothing. The value is the row, or some `fields` of it, or what `value` makes of the instance: a function,
    or a serializer class. Each `save()` is an event. A save outside a transaction raises NotInTransaction and writes
    nothing. An event that is larger than MAX_PAYLOAD_BYTES fails the save; with `too_large="omit"` it is published
    without its largest fields, as few as possible, and its metadata name them: `{"omitted": ["body"]}`.
    """

    if isinstance(topic, type):
        raise TypeError(f"@outbox needs a topic: @outbox('{topic.__name__.lower()}s') above class {topic.__name__}.")

    def declare(model: M) -> M:
        if not isinstance(model, type) or not issubclass(model, Model):
            raise TypeError(f"@outbox is for models, and {model!r} is none.")
        connect(
            OutboxOptions(
                model=model,
                topic=str(topic),
                key=key,
                created=created,
                updated=updated,
                deleted=deleted,
                value=value,
                fields=declarations.texts(fields),
                exclude=declarations.texts(exclude),
                too_large=too_large,
            )
        )
        return model

    return declare
