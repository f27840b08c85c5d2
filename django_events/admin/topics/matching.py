"""What a filter would match: that of a consumer, or one that is typed in before any consumer has it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_events.declarations.limits import rest_is_last
from django_events.exceptions import Invalid
from django_events.masking import hides
from django_events.models import Consumer, Topic
from django_events.observing.matches import matches
from django_events.outcomes import Matched

USUAL, MOST = 10_000, 100_000  # events that the filter is tried on


class Patterns(forms.CharField):
    """Patterns, one on each line; None for all."""

    def __init__(self, **options: Any) -> None:
        widget = forms.Textarea(attrs={"rows": 3, "cols": 24, "spellcheck": "false"})
        super().__init__(required=False, strip=False, max_length=4_000, widget=widget, **options)

    def to_python(self, value: Any) -> Any:
        lines = [line for line in str(value or "").splitlines() if line]
        return lines or None

    def validate(self, value: Any) -> None:
        for pattern in value or ():
            if not rest_is_last(pattern):
                raise forms.ValidationError(
                    _("“%(pattern)s”: > means the rest, so it can only be last."), params={"pattern": pattern}
                )

    def run_validators(self, value: Any) -> None:
        super().run_validators("\n".join(value or ()))


class MatchForm(forms.Form):
    """A filter as `consumer()` takes it, and on how many events it is tried."""

    types = Patterns(label=gettext_lazy("Types"), help_text=gettext_lazy("One on each line, like order.*"))
    keys = Patterns(label=gettext_lazy("Keys"), help_text=gettext_lazy("One on each line."))
    where = forms.CharField(
        label=gettext_lazy("Where"),
        required=False,
        max_length=4_000,
        help_text=gettext_lazy("A jsonpath predicate on the value, like $.total > 100"),
        widget=forms.TextInput(attrs={"spellcheck": "false", "size": 40}),
    )
    last = forms.IntegerField(label=gettext_lazy("Of the newest"), min_value=1, max_value=MOST, initial=USUAL)

    def __init__(self, *args: Any, consumer: Consumer | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.consumer = consumer

    def clean_where(self) -> str | None:
        where: str | None = self.cleaned_data["where"] or None
        if where is not None and where != (self.consumer and self.consumer.where) and hides():
            raise forms.ValidationError(
                _("Fields of values are masked here, and a predicate would tell what is in them.")
            )
        return where


@dataclass(frozen=True, slots=True)
class Tried:
    """What a filter matched, by type, and what it took to find out."""

    types: list[Matched]
    milliseconds: float

    @property
    def events(self) -> int:
        return sum(one.events for one in self.types)

    @property
    def matching(self) -> int:
        return sum(one.matching for one in self.types)


def form_of(said: Mapping[str, Any], consumer: Consumer | None) -> MatchForm:
    """What the user typed in, or the filter of the consumer; the empty form of no consumer waits to be filled in."""
    if said.keys() & {"types", "keys", "where", "last"}:
        return MatchForm({"last": USUAL, **{name: said[name] for name in said}}, consumer=consumer)
    if consumer is None:
        return MatchForm()
    lines = {name: "\n".join(getattr(consumer, name) or ()) for name in ("types", "keys")}
    return MatchForm({**lines, "where": consumer.where or "", "last": USUAL}, consumer=consumer)


def tried(using: str, topic: Topic, form: MatchForm) -> Tried | None:
    """Try it out; None, and the form says why, if it is no filter."""
    if not form.is_valid():
        return None
    own = {} if form.consumer is None else {"metadata": form.consumer.metadata, "vars": form.consumer.vars}
    try:
        return tried_filter(using, topic, form.cleaned_data | own)
    except Invalid as error:
        form.add_error("where", str(error))
        return None


def tried_filter(using: str, topic: Topic, chosen: Mapping[str, Any]) -> Tried:
    """What a filter matches of the newest events. Invalid if it is none."""
    began = time.monotonic()
    found = matches(topic.name, **chosen, using=using)
    return Tried(found, (time.monotonic() - began) * 1_000)
