"""What the app that declares a consumer says of it, for its page."""

from functools import partial

from django.utils.translation import gettext as _

from django_events import declarations
from django_events.models import Consumer
from django_events.phrases import duration
from django_events.retries import Backoff


def declared_options(row: Consumer) -> list[tuple[str, object, bool]]:
    """What the app that declares a consumer says of it, and whether that is code; nothing if no app here does."""
    for one in declarations.consumers:
        if one.name == row.name:
            return [
                (_("Sends to"), one.sends_to, True)
                if isinstance(one, declarations.DeclaredRelay)
                else (_("Handler"), _named(one.handler), True),
                (_("Declared at"), one.declared_at, True),
                (_("Attempts allowed"), one.retry.attempts, False),
                (_("Pauses between them"), _pauses(one.retry), False),
                (
                    _("After the last one"),
                    _("the partition stops") if one.on_exhausted == "stop" else _("dead letter"),
                    False,
                ),
                (_("Time-out"), duration(one.timeout) if one.timeout else "–", False),
                (_("Lease"), duration(one.lease), False),
                (_("Batch size"), one.batch_size or "–", False),
            ]
    return []


def _named(handler: object) -> str:
    if isinstance(handler, str):
        return handler
    if handler is None:
        return "–"
    while isinstance(handler, partial):
        handler = handler.func
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return f"{getattr(handler, '__module__', '')}.{name}"


def _pauses(retry: Backoff) -> str:
    if retry.pauses:
        return ", ".join(map(duration, retry.pauses))
    return _("%(base)s, twice as long each time, up to %(cap)s") % {
        "base": duration(retry.base),
        "cap": duration(retry.cap),
    }
