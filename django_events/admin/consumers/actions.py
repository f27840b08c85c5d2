"""What a person does to a consumer from its page: asked for first, and recorded with the reason."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_events import declarations
from django_events.admin.forms import ReasonForm, ReplayForm, RetryForm, RewindForm, SkipForm, UnsubscribeForm
from django_events.admin.pages import by, may
from django_events.models import Consumer
from django_events.observing import counted
from django_events.operations import pause, replay, resume, retry_now, rewind, skip, unsubscribe

OF_HANDLERS = ("retry_now", "skip", "replay")  # what has no meaning for a roll-up
WAIT = timedelta(seconds=5)  # for events in hand: a page must answer sooner than a command
Act = Callable[[HttpRequest, Consumer, dict[str, Any]], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """An action on a consumer, for users with the permission of the same name."""

    name: str
    label: Promise
    explanation: Promise
    act: Act
    form: type[forms.Form] = ReasonForm
    previewed: bool = False

    @property
    def permission(self) -> str:
        return f"{self.name}_consumer"

    def offered(self, request: HttpRequest, row: Consumer, state: str, *, rolled_up: bool) -> bool:
        """Whether the page of a consumer has a button for it."""
        if row.mode == "spark" or not may(request, self.permission):
            return False
        if rolled_up and self.name in OF_HANDLERS:
            return False
        offered = {
            "pause": row.paused_at is None,
            "resume": row.paused_at is not None or state == "stopped",
            "retry_now": row.paused_at is None and state == "retrying",
            "replay": not _is_derived(row),
            "unsubscribe": row.subscribed,
        }
        return offered.get(self.name, True)


def _pause(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    if pause(row.name, topic=row.topic.name, reason=said["reason"], by=by(request), using=row._state.db):
        return _("Consumer %(consumer)s is paused: what is in hand is finished, nothing more is begun.") % {
            "consumer": row
        }
    return ""


def _resume(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    if resume(row.name, topic=row.topic.name, reason=said["reason"], by=by(request), using=row._state.db):
        return _("Consumer %(consumer)s goes on, and what failed is tried again now.") % {"consumer": row}
    return ""


def _retry_now(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    only = said["only"]
    how = {"reason": said["reason"], "by": by(request), "using": row._state.db}
    if retry_now(row.name, topic=row.topic.name, event_id=only, **how):
        if only:
            return _("Consumer %(consumer)s tries %(address)s again now.") % {
                "consumer": row,
                "address": f"{row.topic}/{only}",
            }
        return _("Consumer %(consumer)s tries again now what failed.") % {"consumer": row}
    return ""


def _skip(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    skip(row.name, said["event"], topic=row.topic.name, reason=said["reason"], by=by(request), using=row._state.db)
    return _("Event %(address)s is a dead letter of %(consumer)s now: it can be redriven.") % {
        "address": f"{row.topic}/{said['event']}",
        "consumer": row,
    }


def _replay(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    done = replay(
        row.name,
        topic=row.topic.name,
        first=said["first"],
        last=said["last"],
        types=[said["type"]] if said["type"] else None,
        keys=[said["key"]] if said["key"] else None,
        reason=said["reason"],
        by=by(request),
        using=row._state.db,
    )
    if not done.events:
        return ""
    return _("Consumer %(consumer)s handles %(again)s again. Of those chosen, %(left_out)s are left out.") % {
        "consumer": row,
        "again": counted.events(done.events),
        "left_out": counted.events(done.pending + done.filtered + done.waiting),
    }


def _rewind(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    moves = rewind(
        row.name,
        to=said["start"],
        topic=row.topic.name,
        partition=said["partition"],
        reason=said["reason"],
        by=by(request),
        wait=WAIT,
        using=row._state.db,
    )
    again = sum(move.again for move in moves)
    left_out = sum(move.omitted for move in moves)
    told = ngettext(
        "Consumer %(consumer)s is rewound: %(again)s comes again, %(left_out)s left out.",
        "Consumer %(consumer)s is rewound: %(again)s come again, %(left_out)s left out.",
        again,
    )
    return told % {"consumer": row, "again": counted.events(again), "left_out": counted.events(left_out)}


def _unsubscribe(request: HttpRequest, row: Consumer, said: dict[str, Any]) -> str:
    how = {"reason": said["reason"], "by": by(request), "using": row._state.db}
    unsubscribe(row.name, topic=row.topic.name, force=said["force"], **how)
    return _("Subscription %(consumer)s is removed.") % {"consumer": row}


ACTIONS = {
    action.name: action
    for action in (
        Action(
            name="pause",
            label=gettext_lazy("Pause"),
            explanation=gettext_lazy(
                "What is in hand is finished, and nothing more is begun until the consumer is resumed. Its events wait."
            ),
            act=_pause,
        ),
        Action(
            name="resume",
            label=gettext_lazy("Resume"),
            explanation=gettext_lazy(
                "The consumer goes on where it was. What stopped or waits for another attempt is tried again now."
            ),
            act=_resume,
        ),
        Action(
            name="retry_now",
            label=gettext_lazy("Retry now"),
            explanation=gettext_lazy(
                "What stopped or waits for another attempt is tried again now, its attempts counted anew."
            ),
            act=_retry_now,
            form=RetryForm,
        ),
        Action(
            name="skip",
            label=gettext_lazy("Skip an event"),
            explanation=gettext_lazy(
                "The consumer gives up on one event and goes on behind it. The event becomes a dead letter, with your "
                "reason: nothing is lost, and it can be redriven."
            ),
            act=_skip,
            form=SkipForm,
        ),
        Action(
            name="replay",
            label=gettext_lazy("Replay events"),
            explanation=gettext_lazy(
                "The consumer handles chosen events again, beside what comes. Each waits as a dead letter for its turn."
                " Events that it has not handled yet, or that are not meant for it, are left out."
            ),
            act=_replay,
            form=ReplayForm,
        ),
        Action(
            name="rewind",
            label=gettext_lazy("Rewind"),
            explanation=gettext_lazy(
                "The consumer goes on at another offset of its log. You see what would happen before anything changes."
            ),
            act=_rewind,
            form=RewindForm,
            previewed=True,
        ),
        Action(
            name="unsubscribe",
            label=gettext_lazy("Unsubscribe"),
            explanation=gettext_lazy(
                "The subscription is removed, with all events that it has not handled. The log is not kept for it any "
                "longer."
            ),
            act=_unsubscribe,
            form=UnsubscribeForm,
        ),
    )
}


def _is_derived(row: Consumer) -> bool:
    return any(one.name == row.name and one.derived for one in declarations.consumers)
