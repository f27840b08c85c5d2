"""Lists whose actions are verbs on single rows, each asked for first, with a reason for the record.

    verbs = {"pause": Verb(pause_clock, …)}

Verbs of clocks and inboxes have one signature: what it is about by name, and `reason`, `by` and `using`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise

from django_events.admin.forms import ReasonForm
from django_events.admin.lists import NAMED, Lists
from django_events.admin.pages import by
from django_events.exceptions import EventsError


@dataclass(frozen=True)
class Verb:
    """An action on rows, what the page that asks says, and what is said of each row when it is done.

    What `form` asks beside the reason goes to `act` by name.
    """

    act: Callable[..., object]
    button: Promise
    title: Promise
    explanation: Promise
    done: Promise
    form: type[forms.Form] = ReasonForm


class ListsWithVerbs(Lists):
    """A list that has verbs. The subclass says how a row is named, and has an action for each verb."""

    verbs: ClassVar[Mapping[str, Verb]] = {}

    def named(self, row: Any) -> str:
        """What the page that asks lists of a row."""
        raise NotImplementedError

    def unchanged(self, row: Any) -> str:
        """What is said where a verb found nothing to do."""
        raise NotImplementedError

    def decide(self, request: HttpRequest, rows: QuerySet[Any], name: str) -> HttpResponse | None:
        """Ask first, and act when the user confirms."""
        verb, rows, decided = self.verbs[name], self.chosen(request, rows), self.is_decided(request)
        form = verb.form(request.POST if decided else None)
        if decided and form.is_valid():
            for row in rows:
                self._do(request, row, rows.db, verb, form.cleaned_data)
            return None
        return self.ask(
            request,
            rows,
            action=name,
            button=str(verb.button),
            title=str(verb.title),
            explanation=str(verb.explanation),
            form=form,
            listed=[self.named(row) for row in rows[:NAMED]],
        )

    def _do(self, request: HttpRequest, row: Model, using: str, verb: Verb, said: Mapping[str, Any]) -> None:
        try:
            changed = verb.act(str(row), **said, by=by(request), using=using)
        except EventsError as error:
            messages.error(request, str(error))
            return
        if changed is False:
            messages.info(request, self.unchanged(row))
            return
        done = str(verb.done) % {"name": row}
        self.note(request, row, f"{done} {said['reason']}".rstrip())
        messages.success(request, done)
