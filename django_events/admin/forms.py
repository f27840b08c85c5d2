"""The forms of actions: where to rewind, which event to skip, why to discard."""

import uuid
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_events.declarations import MAX_PARTITIONS
from django_events.masking import hides


def refuse_predicates(*predicates: str | None) -> None:
    """Refuse them where fields are masked."""
    if any(predicates) and hides():
        raise forms.ValidationError(_("Fields of values are masked here, and a predicate would tell what is in them."))


LARGEST_ID = 2**63 - 2


class RewindForm(forms.Form):
    """At which offset to go on, as a person says it, and for which partition."""

    to = forms.ChoiceField(
        label=_("Go on at"),
        choices=[
            ("id", _("the event with the id")),
            ("time", _("the first event at or after the time")),
            ("beginning", _("the beginning of the log")),
            ("end", _("the end: only what comes from now on")),
        ],
    )
    id = forms.IntegerField(label=_("Id"), required=False, min_value=1, max_value=LARGEST_ID)
    time = forms.DateTimeField(
        label=_("Time"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
    )
    partition = forms.IntegerField(
        label=_("Partition"), required=False, min_value=0, help_text=_("Empty: all partitions.")
    )
    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        to = said.get("to")
        if to in ("id", "time") and not self.errors:
            start = said[to]
            if start is None:
                self.add_error(to, _("Say which one is meant."))
            elif to == "time" and timezone.is_naive(start):
                start = timezone.make_aware(start)
        else:
            start = to
        said["start"] = start
        return said


class EventField(forms.IntegerField):
    """An event of one topic, by its id or by its address, as all pages and commands write it."""

    widget = forms.TextInput
    topic = ""  # said by the page, which knows it

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=1, max_value=LARGEST_ID, **options)

    def to_python(self, value: Any) -> int | None:
        topic, slash, number = str(value or "").strip().rpartition("/")
        if slash and topic != self.topic:
            raise forms.ValidationError(
                _("“%(address)s” is no event of topic %(topic)s."), params={"address": value, "topic": self.topic}
            )
        return super().to_python(number)


class SkipForm(forms.Form):
    """An event to skip, and the reason."""

    event = EventField(label=_("Id of the event"))
    reason = forms.CharField(label=_("Reason"), max_length=500)


class ReasonForm(forms.Form):
    """Why, for the record, if the user wants to say it."""

    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)


class RetryForm(ReasonForm):
    """One event that waits for its next attempt, or all."""

    only = EventField(
        label=_("Id of the event"),
        required=False,
        help_text=_("Empty: all that stopped or waits for another attempt."),
    )
    field_order = ("only", "reason")


class ReplayForm(forms.Form):
    """Which events a consumer handles again, and why."""

    first = EventField(label=_("From the id"))
    last = EventField(label=_("To the id"))
    type = forms.CharField(
        label=_("Type"), max_length=200, required=False, help_text=_("A pattern like order.*; empty: all.")
    )
    key = forms.CharField(label=_("Key"), max_length=512, required=False, help_text=_("Empty: all."))
    reason = forms.CharField(label=_("Reason"), max_length=500)


class UnsubscribeForm(ReasonForm):
    """Whether the dead letters of a subscription don't matter, and why it is removed."""

    force = forms.BooleanField(label=_("With its dead letters"), required=False)
    field_order = ("force", "reason")


class OnceForm(forms.Form):
    """A token by which a form that was sent twice is told from one that was opened again."""

    once = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4, required=False)


class RepartitionForm(ReasonForm):
    """Into how many partitions a log is divided from now on."""

    partitions = forms.IntegerField(label=_("Partitions"), min_value=1, max_value=MAX_PARTITIONS)
    field_order = ("partitions", "reason")


class RemoveForm(ReasonForm):
    """The name of the topic once more, so that no other one is removed by a slip."""

    name = forms.CharField(label=_("Name of the topic"), max_length=63)
    force = forms.BooleanField(
        label=_("Although it is declared, or consumers read it"),
        required=False,
        help_text=_("They are forgotten too, with their dead letters."),
    )
    field_order = ("name", "force", "reason")

    def __init__(self, *args: Any, topic: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._topic = topic

    def clean_name(self) -> str:
        if self.cleaned_data["name"] != self._topic:
            raise forms.ValidationError(_("This is not its name: %(topic)s"), params={"topic": self._topic})
        return self._topic


class DiscardForm(forms.Form):
    """The reason why dead letters are deleted: only the record with it stays."""

    reason = forms.CharField(label=_("Reason"), max_length=500)
