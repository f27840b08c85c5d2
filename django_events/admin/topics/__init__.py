"""Topics: what they are made of, their logs to browse, and each event with what became of it."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_events.admin import addresses, payloads
from django_events.admin.forms import OnceForm, RemoveForm, RepartitionForm
from django_events.admin.pages import Pages, by, may
from django_events.admin.rows import consumer_rows, topic_rows
from django_events.admin.topics import causes, log, matching, subscribing, volume
from django_events.exceptions import EventsError, did_you_mean
from django_events.log.inventory import extents, logs, waiting
from django_events.models import Consumer, Event, Topic
from django_events.models.databases import databases
from django_events.observing import counted
from django_events.observing.fates import STATES, fates
from django_events.observing.lag import importance, standings
from django_events.observing.samples import Pace
from django_events.operating.repartitioning import declared_otherwise
from django_events.operations import RemovedTopic, publish_again, remove_topic, repartition

LISTED = 100
PATIENCE = timedelta(seconds=5)  # for locked tables, while a user waits for the page
# The classes of the colours of fates.
COLOURS = {
    "handled": "handled",
    "passed": "filtered",
    "filtered out": "filtered",
    "left out": "retrying",
    "rewound": "retrying",
    "pending": "pending",
    "delayed": "pending",
    "leased": "leased",
    "retrying": "retrying",
    "stopped": "stopped",
    "dead": "dead",
    "redriven": "redriven",
    "ignored": "filtered",
    "unknown": "stopped",
}


class TopicAdmin(Pages):
    """Topics and their events."""

    def get_urls(self) -> list[URLPattern]:
        event = "<str:address>/log/<int:event_id>/"
        return [
            self.page("", "changelist", self.topics, "view_topic"),
            self.page("go/<str:name>/", "go", self.go, "view_topic"),
            self.page("go/<str:name>/<int:event_id>/", "go", self.go, "view_topic"),
            self.page("<str:address>/change/", "change", self.topic, "view_topic"),
            self.page("<str:address>/log/", "log", self.log, "view_event"),
            self.page("<str:address>/remove/", "remove", self.remove, "view_topic", "remove_topic", post=True),
            self.page(
                "<str:address>/repartition/",
                "repartition",
                self.repartition,
                "view_topic",
                "repartition_topic",
                post=True,
            ),
            self.page("<str:address>/match/", "match", self.match, "view_event"),
            self.page(
                "<str:address>/subscribe/",
                "subscribe",
                self.subscribe,
                "view_event",
                "view_consumer",
                "subscribe_consumer",
                post=True,
            ),
            self.page(event, "event", self.event, "view_event"),
            self.page(event + "again/", "again", self.again, "view_event", "republish_event", post=True),
            *super().get_urls(),
        ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Topic | None:
        return _row(object_id)[0]

    def topics(self, request: HttpRequest) -> HttpResponse:
        using = addresses.database_of(request)
        asked = request.GET.get("q", "").strip()
        found = [one for one in logs(using) if asked.lower() in one.topic.name.lower()]
        rows = topic_rows(found, waiting(using), Pace.since_sample(using))
        page = Paginator(rows, LISTED).get_page(request.GET.get("p"))
        context = {
            "title": _("Topics"),
            "using": using,
            "databases": databases(),
            "q": asked,
            "page": page,
            "topics": page.object_list,
        }
        return self.answer(request, "topics.html", context)

    def go(self, request: HttpRequest, name: str, event_id: int | None = None) -> HttpResponse:
        """A topic or an event by the name that messages call it: `go/orders/1042/`."""
        using = addresses.database_of(request)
        topic = Topic.objects.using(using).filter(name=name).first()
        if topic is None:
            known = Topic.objects.using(using).values_list("name", flat=True)
            raise Http404(
                _("There is no topic “%(name)s”. %(nearest)s") % {"name": name, "nearest": did_you_mean(name, known)}
            )
        address = addresses.written(topic.pk, using)
        page = self.url("change", address) if event_id is None else self.url("event", address, event_id)
        return HttpResponseRedirect(page)

    def topic(self, request: HttpRequest, address: str) -> HttpResponse:
        topic, using = _row(address)
        [one] = logs(using, [topic])
        rows = Consumer.objects.using(using).filter(topic=topic)
        found = sorted(standings(using, rows), key=importance)
        page = Paginator(found, LISTED).get_page(request.GET.get("p"))
        pace = Pace.since_sample(using)
        in_buffer = [wait for wait in waiting(using) if wait.topic == topic.name]
        context = {
            "title": topic.name,
            "trail": [],
            "using": using,
            "topic": topic,
            "row": topic_rows([one], in_buffer, pace)[0],
            "partitions": log.partitions(using, topic),
            "segments": extents(using, topic),
            "page": page,
            "consumers": consumer_rows(using, list(page.object_list), pace),
            "may_remove": may(request, "remove_topic"),
            "may_repartition": may(request, "repartition_topic"),
            "may_subscribe": may(request, "view_event", "view_consumer", "subscribe_consumer"),
        }
        return self.answer(request, "topic.html", context)

    def subscribe(self, request: HttpRequest, address: str) -> HttpResponse:
        """Try a filter on the newest events, and make a subscription when the user confirms."""
        topic, using = _row(address)
        asked = request.POST if request.method == "POST" else request.GET or None
        form = subscribing.SubscribeForm(asked, initial={"days": 7})
        if request.method == "POST" and (made := subscribing.subscribed(using, topic, form, by=by(request))):
            said = _("Subscription %(name)s gets its events of %(topic)s from %(event)s on.") % {
                "name": made.name,
                "topic": made.topic,
                "event": made.first_id,
            }
            self.note(request, topic, f"{said} {form.cleaned_data['reason']}".rstrip())
            messages.success(request, said)
            return HttpResponseRedirect(self.url("change", address))
        context = {
            "title": _("Subscribe to topic %(topic)s") % {"topic": topic.name},
            "trail": [(topic.name, self.url("change", address))],
            "using": using,
            "explanation": _(
                "A subscription is a queue that no app declares: programs claim its events. You see what its filter "
                "matches before anything changes."
            ),
            "form": form,
            "tried": subscribing.try_out(using, topic, form, by=by(request)) if form.is_bound else None,
            "back": self.url("change", address),
        }
        return self.answer(request, "subscribe.html", context)

    def repartition(self, request: HttpRequest, address: str) -> HttpResponse:
        """Ask for a number, and divide the log into so many partitions from the next event on."""
        topic, using = _row(address)
        form = RepartitionForm(
            request.POST if request.method == "POST" else None, initial={"partitions": topic.partitions}
        )
        if form.is_valid():
            partitions, reason = form.cleaned_data["partitions"], form.cleaned_data["reason"]
            try:
                changed = repartition(topic.name, partitions, reason=reason, by=by(request), using=using)
            except EventsError as error:
                messages.error(request, str(error))
                return HttpResponseRedirect(self.url("repartition", address))
            if changed.before == changed.after:
                messages.info(request, _("Nothing was changed: there was nothing to do."))
                return HttpResponseRedirect(self.url("change", address))
            said = _("Topic %(topic)s has %(partitions)s partitions from event %(event)s on.") % {
                "topic": topic.name,
                "partitions": changed.after,
                "event": changed.first_id,
            }
            self.note(request, topic, f"{said} {reason}".rstrip())
            messages.success(request, said)
            if declared_otherwise(changed):
                messages.warning(request, _("It is declared with another number: the next migrate follows that."))
            return HttpResponseRedirect(self.url("change", address))
        context = {
            "title": _("Other partitions for topic %(topic)s?") % {"topic": topic.name},
            "trail": [(topic.name, self.url("change", address))],
            "using": using,
            "explanation": _(
                "It has %(partitions)s now. Another number holds for the events that come from then on. Consumers that "
                "read the partitions side by side handle all events before them first, so that each key stays in order."
            )
            % {"partitions": topic.partitions},
            "button": _("Change"),
            "form": form,
            "back": self.url("change", address),
        }
        return self.answer(request, "confirm.html", context)

    def remove(self, request: HttpRequest, address: str) -> HttpResponse:
        """Show what goes, and remove the topic when the user has typed its name."""
        topic, using = _row(address)
        form = RemoveForm(request.POST if request.method == "POST" else None, topic=topic.name)
        if form.is_valid():
            try:
                removed = remove_topic(
                    topic.name,
                    force=form.cleaned_data["force"],
                    reason=form.cleaned_data["reason"],
                    by=by(request),
                    wait=PATIENCE,
                    using=using,
                )
            except EventsError as error:
                messages.error(request, str(error))
                return HttpResponseRedirect(self.url("remove", address))
            said = _("Topic %(topic)s is removed.") % {"topic": topic.name}
            self.note(request, topic, f"{said} {form.cleaned_data['reason']}".rstrip())
            messages.success(request, said)
            if not removed.finished:
                messages.warning(request, _("Some of its tables are locked by other sessions: maintenance drops them."))
            return HttpResponseRedirect(self.list_url(using))
        context = {
            "title": _("Remove topic %(topic)s?") % {"topic": topic.name},
            "trail": [(topic.name, self.url("change", address))],
            "using": using,
            "explanation": _goes(remove_topic(topic.name, force=True, dry_run=True, using=using)),
            "button": _("Remove"),
            "form": form,
            "back": self.url("change", address),
        }
        return self.answer(request, "confirm.html", context)

    def log(self, request: HttpRequest, address: str) -> HttpResponse:
        topic, using = _row(address)
        form = log.LogForm(request.GET)
        found = shown = None
        kept: dict[str, Any] = {}
        if form.is_valid():
            said = form.cleaned_data
            filters = {name: said[name] for name in ("type", "key", "partition") if said[name] not in ("", None)}
            within = {name: said[name] for name in ("start", "end") if said[name] is not None}
            kept = {**filters, **{name: request.GET[name] for name in within}}
            before = addresses.id_of(request, "before")
            if said["text"]:
                kept["text"] = said["text"]
            if said["id"] is not None or said["time"] is not None:
                at = said["id"] if said["id"] is not None else log.id_at(using, topic, said["time"])
                return HttpResponseRedirect(f"?{urlencode({**kept, 'before': at + 1, 'at': at})}")
            if said["text"]:
                found = log.containing(using, topic, said["text"], filters=filters, **within, before=before)
            else:
                after = addresses.id_of(request, "after")
                found = log.page(using, topic, filters=filters, **within, before=before, after=after)
            shown = volume.volume(using, topic, kept=kept, **within)
        context = {
            "title": _("Log of %(topic)s") % {"topic": topic.name},
            "trail": [(topic.name, self.url("change", address))],
            "using": using,
            "topic": topic,
            "form": form,
            "found": found,
            "volume": shown,
            "at": addresses.id_of(request, "at"),
            "kept": urlencode(kept),
        }
        return self.answer(request, "log.html", context)

    def match(self, request: HttpRequest, address: str) -> HttpResponse:
        """What a filter would match: `?consumer=7` begins with that of a consumer."""
        topic, using = _row(address)
        consumer = None
        if (pk := addresses.id_of(request, "consumer")) and may(request, "view_consumer"):
            consumer = Consumer.objects.using(using).select_related("topic").filter(pk=pk, topic=topic).first()
        form = matching.form_of(request.GET.dict(), consumer)
        context = {
            "title": _("What would match for %(consumer)s") % {"consumer": consumer}
            if consumer
            else _("What would match in %(topic)s") % {"topic": topic.name},
            "trail": [(topic.name, self.url("change", address)), (_("Log"), self.url("log", address))],
            "using": using,
            "topic": topic,
            "consumer": consumer,
            "form": form,
            "tried": matching.tried(using, topic, form) if form.is_bound else None,
        }
        return self.answer(request, "match.html", context)

    def event(self, request: HttpRequest, address: str, event_id: int) -> HttpResponse:
        topic, using, event = self._event(address, event_id)
        earlier, later = log.neighbours(using, topic, event)
        found = fates(using, topic, event_id)
        everything = "all" in request.GET
        context = {
            **causes.of(using, topic, event, with_tree="causes" in request.GET),
            "title": f"{topic.name}/{event.id}",
            "trail": [(topic.name, self.url("change", address)), (_("Log"), self.url("log", address))],
            "using": using,
            "topic": topic,
            "event": event,
            "payload": payloads.of(event, everything=everything),
            "fates": [
                (one, STATES[one.state], COLOURS[one.state]) for one in (found if everything else found[:LISTED])
            ],
            "more_fates": 0 if everything else max(len(found) - LISTED, 0),
            "earlier": earlier,
            "later": later,
            "searched": None if topic.timeline else log.SEARCHED,
            "may_publish": may(request, "republish_event"),
            "may_replay": may(request, "view_consumer", "replay_consumer"),
            "can_replay": ("handled", "left out", "rewound"),
            "may_retry": may(request, "view_consumer", "retry_now_consumer"),
            "may_skip": may(request, "view_consumer", "skip_consumer"),
        }
        return self.answer(request, "event.html", context)

    def again(self, request: HttpRequest, address: str, event_id: int) -> HttpResponse:
        """Ask first, and publish a copy when the user confirms."""
        topic, using, _event = self._event(address, event_id)
        form = OnceForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                with transaction.atomic(using):  # a site may want one around everything that is published
                    once = form.cleaned_data["once"]
                    receipt = publish_again(topic.name, event_id, dedup_key=once and f"admin {once}", using=using)
            except EventsError as error:
                messages.error(request, str(error))
                return HttpResponseRedirect(self.url("event", address, event_id))
            except Event.DoesNotExist:
                raise Http404(_gone(topic, event_id)) from None
            said = _("Event %(address)s was published again.") % {"address": f"{topic.name}/{event_id}"}
            if receipt.new:  # and not the same page, sent twice
                self.note(request, topic, said)
            messages.success(request, said)
            return HttpResponseRedirect(self.url("event", address, event_id))
        context = {
            "title": _("Publish %(address)s again?") % {"address": f"{topic.name}/{event_id}"},
            "trail": [(topic.name, self.url("change", address)), (_("Log"), self.url("log", address))],
            "using": using,
            "explanation": _(
                "A copy of the event is published to the same topic, with the same key: it gets the next id, and every "
                "consumer handles it, also those that handled this one."
            ),
            "button": _("Publish again"),
            "form": form,
            "back": self.url("event", address, event_id),
        }
        return self.answer(request, "confirm.html", context)

    def _event(self, address: str, event_id: int) -> tuple[Topic, str, Event]:
        topic, using = _row(address)
        event = payloads.readable(Event.objects.using(using).of(topic.name)).filter(id=event_id).first()
        if event is None:
            raise Http404(_gone(topic, event_id))
        return topic, using, event


def _goes(removed: RemovedTopic) -> str:
    goes = _(
        "For good: %(events)s in the log, %(buffered)s in the buffer and %(scheduled)s scheduled; %(dead_letters)s of "
        "its consumers: %(consumers)s. Publishing to it fails from then on."
    ) % {
        "events": counted.events(removed.events),
        "buffered": counted.events(removed.buffered),
        "scheduled": counted.events(removed.scheduled),
        "dead_letters": counted.dead_letters(removed.dead_letters),
        "consumers": ", ".join(removed.consumers) or "–",
    }
    if fillers := [*removed.clocks, *removed.inboxes]:
        goes += " " + _("How far its clocks and inboxes are is forgotten: %(names)s.") % {"names": ", ".join(fillers)}
    return goes


def _gone(topic: Topic, event_id: int) -> str:
    if 0 < event_id <= topic.head.id_floor:
        return _("The event %(address)s has expired: retention removed it.") % {"address": f"{topic.name}/{event_id}"}
    if 0 < event_id <= topic.head.compacted_until:
        said = _("The event %(address)s is compacted: a newer one of its key came after it, or it was a tombstone.")
        return said % {"address": f"{topic.name}/{event_id}"}
    return _("There is no event %(address)s in the log.") % {"address": f"{topic.name}/{event_id}"}


def _row(address: str) -> tuple[Topic, str]:
    pk, using = addresses.read(address)
    row = Topic.objects.using(using).select_related("head").filter(pk=pk).first()
    if row is None:
        raise Http404(_("There is no such topic."))
    return row, using
