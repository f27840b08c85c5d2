"""Webhook endpoints: added, tried, given a new secret, and what came of the last attempts."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from django_events.admin import addresses
from django_events.admin.forms import refuse_predicates
from django_events.admin.lists import NAMED, DatabaseFilter, Lists, local
from django_events.admin.pages import by, may
from django_events.declarations.limits import texts
from django_events.exceptions import EventsError
from django_events.models import Consumer, Topic, WebhookEndpoint
from django_events.operations import add_webhook, pause, resume, rotate_secret, try_webhook
from django_events.outward.addresses import without_secrets

ATTEMPTS = 50  # that the page of an endpoint shows


class WebhookForm(forms.Form):
    """A new endpoint: which events, and where to."""

    name = forms.CharField(label=_("Name"), max_length=63)
    url = forms.CharField(label=_("URL"), max_length=2_000)
    types = forms.CharField(
        label=_("Types"), required=False, help_text=_("Like order.*, with spaces between; empty: all.")
    )
    keys = forms.CharField(label=_("Keys"), required=False, help_text=_("With spaces between; empty: all."))
    where = forms.CharField(label=_("Where"), required=False, help_text=_("A jsonpath predicate like $.total > 100."))
    ordered = forms.BooleanField(label=_("In the order of keys"), required=False)
    start = forms.ChoiceField(
        label=_("Begins"),
        choices=[("end", _("with what comes from now on")), ("beginning", _("at the beginning of the log"))],
    )
    form = forms.ChoiceField(label=_("Form"), choices=WebhookEndpoint._meta.get_field("form").choices)  # type: ignore[arg-type]
    concurrency = forms.IntegerField(label=_("At the same time"), min_value=1, max_value=1_000, initial=10)

    batch_size = forms.IntegerField(label=_("Events in a request"), min_value=1, max_value=100, initial=1)

    def __init__(self, *args: Any, using: str, **options: Any) -> None:
        super().__init__(*args, **options)
        names = Topic.objects.using(using).order_by("name").values_list("name", flat=True)
        self.fields["topic"] = forms.ChoiceField(label=_("Topic"), choices=[(name, name) for name in names])
        self.order_fields(["name", "topic"])

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        refuse_predicates(said.get("where"))
        return said

    def options(self) -> dict[str, Any]:
        """The arguments of `add_webhook`."""
        said = dict(self.cleaned_data)
        for option in ("types", "keys"):
            said[option] = texts(said[option].split() or None)
        return {**said, "where": said["where"] or None}


class WebhookEndpointAdmin(Lists):
    """Endpoints, in the order of their names. The page of the consumer pauses, replays and rewinds."""

    list_display = ("name", "state", "topic_name", "last", "shown_url", "form")
    list_filter = (DatabaseFilter,)
    list_select_related = ("consumer__topic",)
    ordering = ("consumer__name", "id")
    fields = (
        "consumer_page",
        "topic_name",
        "shown_url",
        "form",
        "concurrency",
        "batch_size",
        "state",
        "signs",
        "made",
        "attempts_table",
    )
    sortable_by = ()
    actions = ("test", "new_secret", "pause", "resume")
    change_list_template = "admin/django_events/webhooks.html"

    def get_urls(self) -> list[URLPattern]:
        return [self.page("add/", "add", self.adding, "add_webhookendpoint", post=True), *super().get_urls()]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> WebhookEndpoint | None:
        row: WebhookEndpoint | None = super().get_object(request, object_id, from_field)
        if row is not None:
            row.consumer  # noqa: B018  # read now, for the headings of its page: a text of a row asks nothing
        return row

    @admin.display(description=_("name"))
    def name(self, row: WebhookEndpoint) -> str:
        return row.consumer.name

    @admin.display(description=_("consumer"))
    def consumer_page(self, row: WebhookEndpoint) -> str:
        """The page of the consumer, which shows its lag, and replays events."""
        if not self.admin_site.is_registered(Consumer):
            return row.consumer.name
        address = self.url(
            "change", addresses.written(row.consumer_id, row._state.db or addresses.home()), model=Consumer
        )
        return format_html('<a href="{}">{}</a>', address, row.consumer.name)

    @admin.display(description=_("topic"))
    def topic_name(self, row: WebhookEndpoint) -> str:
        return row.consumer.topic.name

    @admin.display(description=_("URL"))
    def shown_url(self, row: WebhookEndpoint) -> str:
        return without_secrets(row.url).strip("'")

    @admin.display(description=_("state"))
    def state(self, row: WebhookEndpoint) -> str:
        if row.consumer.paused_at is not None:
            facts = {"moment": local(row.consumer.paused_at), "reason": row.disabled_because}
            told = _("disabled %(moment)s: %(reason)s") if row.disabled_because else _("paused %(moment)s")
            return str(told) % facts
        if row.failing_since is not None:
            return str(_("fails since %(moment)s")) % {"moment": local(row.failing_since)}
        return str(_("works"))

    @admin.display(description=_("last attempt"))
    def last(self, row: WebhookEndpoint) -> str:
        newest = row.attempts.using(row._state.db).order_by("-id").first()
        return "–" if newest is None else f"{local(newest.at)} {newest.status or newest.error[:60]}"

    @admin.display(description=_("secrets"))
    def signs(self, row: WebhookEndpoint) -> str:
        """Since when there is the newest, and until when older ones sign as well. No secret is shown."""
        told = []
        # A reader of tables may not read the secrets themselves.
        rows = row.secrets.using(row._state.db).order_by("-id").values_list("created_at", "signs_until")
        for created_at, signs_until in rows:
            said = _("since %(moment)s") if signs_until is None else _("until %(until)s")
            told.append(str(said) % {"moment": local(created_at), "until": local(signs_until)})
        return ", ".join(told)

    @admin.display(description=_("added"))
    def made(self, row: WebhookEndpoint) -> str:
        return local(row.created_at)

    @admin.display(description=_("attempts"))
    def attempts_table(self, row: WebhookEndpoint) -> SafeString:
        """The last attempts, newest first: when, which event, its status, how long it took, and the answer."""
        rows = row.attempts.using(row._state.db).order_by("-id")[:ATTEMPTS]
        heads = (_("at"), _("event"), _("attempt"), _("status"), _("seconds"), _("answer"))
        head = format_html_join("", "<th>{}</th>", ((one,) for one in heads))
        cells = (
            (
                local(one.at),
                one.event_id,
                one.attempt,
                one.status or "–",
                f"{one.seconds:.3f}",
                one.excerpt or one.error,
            )
            for one in rows
        )
        body = format_html_join(
            "", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", cells
        )
        return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", head, body)

    @method_decorator(sensitive_post_parameters("url"))  # its query may be a secret of the receiver
    @sensitive_variables("secret", "options", "context", "form")
    def adding(self, request: HttpRequest) -> HttpResponse:
        """The form of a new endpoint; then its secret, this once."""
        using = addresses.database_of(request)
        form = WebhookForm(request.POST if request.method == "POST" else None, using=using)
        context = {"title": _("Add a webhook endpoint"), "trail": [], "using": using, "form": form, "secrets": []}
        if form.is_bound and form.is_valid():
            options = form.options()
            try:
                secret = add_webhook(**options, by=by(request), using=using)
            except EventsError as error:
                form.add_error(None, str(error))
            else:
                row = WebhookEndpoint.objects.using(using).get(consumer__name=options["name"])
                self.note(request, row, gettext("Added."))
                context |= {"form": None, "secrets": [(options["name"], secret)]}
        return self.answer(request, "webhook.html", context)

    @admin.action(description=_("Send a test event to the selected endpoints"), permissions=["operate"])
    def test(self, request: HttpRequest, rows: QuerySet[WebhookEndpoint]) -> None:
        for row in rows[:NAMED]:
            try:
                answer = try_webhook(row.consumer.name, using=rows.db)
            except ModuleNotFoundError:
                messages.error(request, _("It needs aiohttp: pip install 'django-events-pg[webhooks]'"))
                return
            except EventsError as error:
                messages.error(request, str(error))
                continue
            facts = {
                "name": row.consumer.name,
                "answer": answer.status or answer.error,
                "seconds": f"{answer.seconds:.3f}",
            }
            tell = messages.success if answer.delivered else messages.error
            tell(request, _("%(name)s: %(answer)s after %(seconds)s s") % facts)

    @admin.action(description=_("Give the selected endpoints a new secret"), permissions=["operate"])
    @sensitive_variables("given", "context")
    def new_secret(self, request: HttpRequest, rows: QuerySet[WebhookEndpoint]) -> HttpResponse | None:
        rows = self.chosen(request, rows)
        if not self.is_decided(request):
            return self.ask(
                request,
                rows,
                action="new_secret",
                button=gettext("Make a new secret"),
                title=gettext("Give these endpoints a new secret?"),
                explanation=gettext("It is shown once, on the next page. For a day the former one signs as well."),
                form=forms.Form(),
                listed=[row.consumer.name for row in rows[:NAMED]],
            )
        given = []
        for row in rows:
            try:
                given.append((row.consumer.name, rotate_secret(row.consumer.name, by=by(request), using=rows.db)))
            except EventsError as error:
                messages.error(request, str(error))
                continue
            self.note(request, row, gettext("Given a new secret."))
        context = {"title": _("New secrets"), "trail": [], "using": rows.db, "form": None, "secrets": given}
        return self.answer(request, "webhook.html", context)

    @admin.action(description=_("Pause the selected endpoints"), permissions=["pause"])
    def pause(self, request: HttpRequest, rows: QuerySet[WebhookEndpoint]) -> None:
        for row in rows:
            if pause(row.consumer.name, by=by(request), using=rows.db):
                self.note(request, row, gettext("Paused."))
                messages.success(request, _("%(name)s is paused.") % {"name": row.consumer.name})

    @admin.action(description=_("Let the selected endpoints go on"), permissions=["resume"])
    def resume(self, request: HttpRequest, rows: QuerySet[WebhookEndpoint]) -> None:
        for row in rows:
            if resume(row.consumer.name, by=by(request), using=rows.db):
                self.note(request, row, gettext("Resumed."))
                messages.success(request, _("%(name)s goes on.") % {"name": row.consumer.name})

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may(request, "change_webhookendpoint")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may(request, "pause_consumer")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return may(request, "resume_consumer")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        using = addresses.database_of(request)
        address = self.url("add") + addresses.query(using) if may(request, "add_webhookendpoint") else ""
        return super().changelist_view(request, {**(extra_context or {}), "adding": address})
