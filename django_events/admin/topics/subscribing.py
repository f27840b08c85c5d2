"""The form by which a subscription is made: its filter is tried on the newest events before."""

from datetime import timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from django_events.admin.forms import refuse_predicates
from django_events.admin.topics.matching import Patterns, Tried, tried_filter
from django_events.exceptions import EventsError
from django_events.models import Topic
from django_events.operations import subscribe
from django_events.outcomes import Subscribed

PREDICATE = {"spellcheck": "false", "size": 40}


class SubscribeForm(forms.Form):
    """A name, a filter, and when it goes."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=63)
    types = Patterns(label=gettext_lazy("Types"), help_text=gettext_lazy("One on each line, like order.*"))
    keys = Patterns(label=gettext_lazy("Keys"), help_text=gettext_lazy("One on each line."))
    where = forms.CharField(
        label=gettext_lazy("Where"),
        required=False,
        max_length=4_000,
        help_text=gettext_lazy("A jsonpath predicate on the value, like $.total > 100"),
        widget=forms.TextInput(attrs=PREDICATE),
    )
    metadata = forms.CharField(
        label=gettext_lazy("Metadata"),
        required=False,
        max_length=4_000,
        help_text=gettext_lazy("A jsonpath predicate on the metadata."),
        widget=forms.TextInput(attrs=PREDICATE),
    )
    vars = forms.JSONField(
        label=gettext_lazy("Variables"),
        required=False,
        help_text=gettext_lazy('What the predicates name as $name: {"name": "acme"}'),
        widget=forms.TextInput(attrs=PREDICATE),
    )
    days = forms.IntegerField(
        label=gettext_lazy("Goes after days"),
        required=False,
        min_value=1,
        max_value=3_650,
        initial=7,
        help_text=gettext_lazy("When nothing serves it for so long. Empty: it stays."),
    )
    start = forms.ChoiceField(
        label=gettext_lazy("Begins at"),
        choices=[
            ("end", gettext_lazy("the end: only what comes from now on")),
            ("beginning", gettext_lazy("the beginning of the log")),
        ],
    )
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=500, required=False)

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        refuse_predicates(said.get("where"), said.get("metadata"))
        return said

    @property
    def chosen(self) -> dict[str, Any]:
        """The filter as `subscribe()` takes it."""
        said = self.cleaned_data
        texts = {name: said[name] or None for name in ("where", "metadata")}
        return {"types": said["types"], "keys": said["keys"], **texts, "vars": said["vars"] or None}


def try_out(using: str, topic: Topic, form: SubscribeForm, *, by: str) -> Tried | None:
    """What it would get of the newest events; None, and the form says why, if it can't be made."""
    if _subscribed(using, topic, form, by=by, dry_run=True) is None:
        return None
    try:
        return tried_filter(using, topic, form.chosen)
    except EventsError as error:
        form.add_error(None, str(error))
        return None


def subscribed(using: str, topic: Topic, form: SubscribeForm, *, by: str) -> Subscribed | None:
    """Make it; None, and the form says why, if it can't be made."""
    return _subscribed(using, topic, form, by=by, dry_run=False)


def _subscribed(using: str, topic: Topic, form: SubscribeForm, *, by: str, dry_run: bool) -> Subscribed | None:
    if not form.is_valid():
        return None
    said = form.cleaned_data
    try:
        return subscribe(
            said["name"],
            topic.name,
            **form.chosen,
            expires_after=None if said["days"] is None else timedelta(days=said["days"]),
            start=said["start"],
            reason=said["reason"],
            by=by,
            dry_run=dry_run,
            using=using,
        )
    except EventsError as error:
        form.add_error(None, str(error))
        return None
