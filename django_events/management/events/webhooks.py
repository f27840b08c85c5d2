"""`manage.py events webhooks`: endpoints with their last attempts; try one, give one a new secret."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.views.decorators.debug import sensitive_variables

from django_events import sql
from django_events.exceptions import Invalid
from django_events.management.events.subcommand import Subcommand, add_by, at_least_one, length, wrong_usage
from django_events.management.reporting import Report, fields, table
from django_events.models import WebhookAttempt, WebhookEndpoint
from django_events.outward.addresses import without_secrets
from django_events.outward.setting_up import KEPT_SECRET, rotate_secret, try_webhook, unknown
from django_events.workers.loop import Exit

SQL = sql.beside(__name__)

ACTIONS = ["list", "attempts", "test", "new-secret"]
ATTEMPTS = 20


def webhooks(
    using: str,
    *,
    action: str,
    name: str | None,
    event: int | None,
    last: int,
    keep: timedelta,
    by: str | None,
    **options: Any,
) -> Report:
    if (name is None) is not (action == "list"):
        raise wrong_usage("Say what to do with which endpoint, like: manage.py events webhooks attempts partner")
    if name is None:
        return _listed(using)
    if action == "attempts":
        return _attempts(using, name, event=event, last=last)
    if action == "test":
        return _tried(using, name)
    return _given_a_secret(using, name, keep=keep, by=by)


def _listed(using: str) -> Report:
    rows = WebhookEndpoint.objects.using(using).select_related("consumer__topic").order_by("consumer__name")
    newest = [attempt_id for (attempt_id,) in sql.fetch(using, SQL.newest_attempts)]
    attempts = {one.endpoint_id: one for one in WebhookAttempt.objects.using(using).filter(id__in=newest)}
    data = [_of_endpoint(row, attempts.get(row.pk)) for row in rows]
    shown = ["endpoint", "topic", "url", "state", "since", "because", "last_at", "last_status", "last_error"]
    cells = [[one[name] for name in shown] for one in data]
    return Report(data, table([name.replace("_", " ") for name in shown], cells) if cells else "No webhook endpoints.")


def _of_endpoint(row: WebhookEndpoint, last: WebhookAttempt | None) -> dict[str, Any]:
    state, since = "works", None
    if row.consumer.paused_at is not None:
        state, since = "disabled" if row.disabled_because else "paused", row.consumer.paused_at
    elif row.failing_since is not None:
        state, since = "fails", row.failing_since
    return {
        "endpoint": row.consumer.name,
        "topic": row.consumer.topic.name,
        "url": without_secrets(row.url).strip("'"),
        "form": row.form,
        "concurrency": row.concurrency,
        "batch_size": row.batch_size,
        "state": state,
        "since": since,
        "because": row.disabled_because or None,
        "last_at": None if last is None else last.at,
        "last_status": None if last is None else last.status,
        "last_seconds": None if last is None else last.seconds,
        "last_error": None if last is None else last.error or None,
    }


def _attempts(using: str, name: str, *, event: int | None, last: int) -> Report:
    """The newest attempts, newest first."""
    row = WebhookEndpoint.objects.using(using).filter(consumer__name=name).first()
    if row is None:
        raise unknown(using, name)
    rows = WebhookAttempt.objects.using(using).filter(endpoint_id=row.pk).order_by("-id")
    chosen = rows if event is None else rows.filter(event_id=event)
    columns = ["at", "event_id", "attempt", "status", "seconds", "excerpt", "error"]
    data = list(chosen.values(*columns)[:last])
    cells = [
        [one["at"], one["event_id"], one["attempt"], one["status"], f"{one['seconds']:.3f}", _answer(one)]
        for one in data
    ]
    text = table(["at", "event", "attempt", "status", "seconds", "answer"], cells) if cells else "No attempts."
    return Report(data, text)


def _answer(attempt: dict[str, Any]) -> str:
    return " ".join((attempt["excerpt"] or attempt["error"]).split())


def _tried(using: str, name: str) -> Report:
    try:
        answer = try_webhook(name, using=using)
    except ModuleNotFoundError as error:
        raise wrong_usage("A test needs aiohttp. Run: pip install 'django-events-pg[webhooks]'") from error
    data = {
        "endpoint": name,
        "delivered": answer.delivered,
        "status": answer.status,
        "seconds": answer.seconds,
        "excerpt": answer.excerpt,
        "error": answer.error or None,
    }
    said = answer.failure
    told = f"Delivered: {answer.status}." if said is None else f"Not delivered: {said}"
    facts = fields([("seconds", f"{answer.seconds:.3f}"), ("answer", " ".join(answer.excerpt.split()) or None)])
    return Report(data, f"{facts}\n\n{told}", code=Exit.DONE if answer.delivered else Exit.FAILED)


@sensitive_variables("secret")
def _given_a_secret(using: str, name: str, *, keep: timedelta, by: str | None) -> Report:
    try:
        secret = rotate_secret(name, keep=keep, by=by, using=using)
    except Invalid as error:
        raise wrong_usage(str(error)) from error
    before = f"The former one signs as well for {keep}." if keep else "Former ones sign no more."
    return Report(
        {"endpoint": name, "secret": secret, "keep_seconds": keep.total_seconds()},
        f"{secret}\n\nThis is the new secret of {name}. It is shown this once. {before}",
    )


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        metavar="ACTION",
        choices=ACTIONS,
        default="list",
        help="list, attempts, test or new-secret; list by default.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="The endpoint, for all but list.")
    parser.add_argument("--event", type=int, metavar="ID", help="With attempts: only those at this event.")
    parser.add_argument(
        "--last", type=at_least_one, default=ATTEMPTS, metavar="N", help="With attempts: how many of the newest; 20."
    )
    parser.add_argument(
        "--keep",
        type=length,
        default=KEPT_SECRET,
        metavar="TIME",
        help="With new-secret: for how long the former one signs as well, 1d by default; 0s for not at all.",
    )
    add_by(parser)


WEBHOOKS = Subcommand(
    name="webhooks",
    help="The webhook endpoints with their last attempts; try one, or give it a new secret.",
    report=webhooks,
    arguments=_arguments,
)
