"""What a person or a program does to a webhook endpoint: add it, change it, give it a new secret, try it.

    secret = add_webhook("partner", "orders", "https://partner.example/hooks", types=["order.*"])

All else is as of any subscription: `pause`, `resume`, `replay`, `redrive`, `retry_now` and `unsubscribe` take its name.
"""

import secrets as random_secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.views.decorators.debug import sensitive_variables

from django_events import declarations, models, sql
from django_events.conf import settings
from django_events.consuming.failures import storable
from django_events.consuming.registered import registered
from django_events.declarations.declared_consumer import Start
from django_events.declarations.limits import check_number
from django_events.exceptions import Invalid, Refused, UnknownName, did_you_mean
from django_events.models.buffer import writable
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.operating.subscribing import subscribe
from django_events.outward.addresses import networks, refuse_url, without_secrets
from django_events.outward.endpoints import Endpoint, endpoints, limits
from django_events.outward.exchange import WebhookAnswer
from django_events.outward.signing import new_secret, refuse_secret
from django_events.received import ReceivedEvent
from django_events.retries import Backoff

FORMS = ("json", "cloudevent", "cloudevent_binary")
MOST_AT_ONCE, LARGEST_BATCH = 1_000, 100
KEPT_SECRET = timedelta(days=1)
# Eleven attempts within about four days.
OVER_DAYS = Backoff(
    attempts=11,
    pauses=[
        *(timedelta(seconds=5), timedelta(minutes=5), timedelta(minutes=30)),
        *(timedelta(hours=hours) for hours in (2, 5, 10, 14, 20, 24, 24)),
    ],
)
TEST_TYPE = "webhook.test"


@sensitive_variables("secret", "url")
def add_webhook(
    name: str,
    topic: declarations.DeclaredTopic | str,
    url: str,
    *,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    metadata: str | None = None,
    vars: Mapping[str, Any] | None = None,
    ordered: bool = False,
    start: Start = "end",
    form: str = "json",
    concurrency: int = 10,
    batch_size: int = 1,
    retry: Backoff | None = None,
    secret: str | None = None,
    by: str | None = None,
    using: str | None = None,
) -> str:
    """Have the events of a topic sent to a URL from now on, or from `start` on; returns the secret that signs them.

    It is the only time that the secret is shown. Refused if there is a consumer of that name.
    """
    using = writable(using)
    allowed = networks(settings.WEBHOOK_NETWORKS)
    refuse_url(url, allowed)
    _refuse_options(name, form=form, concurrency=concurrency, batch_size=batch_size)
    secret = new_secret() if secret is None else secret
    refuse_secret(secret)
    with bounded(using, f"Topic {topic}"):
        _refuse_taken(using, name)
        subscribe(
            name,
            topic,
            types=types,
            keys=keys,
            where=where,
            metadata=metadata,
            vars=vars,
            ordered=ordered,
            start=start,
            retry=OVER_DAYS if retry is None else retry,
            expires_after=None,
            by=by,
            using=using,
        )
        [row] = registered(using, name)
        endpoint = models.WebhookEndpoint(
            consumer=row, url=url, form=form, concurrency=concurrency, batch_size=batch_size
        )
        endpoint.save(using=using)
        models.WebhookSecret(endpoint=endpoint, secret=secret).save(using=using)
        record(using, row, "webhook", by=by, done="added", url=without_secrets(url).strip("'"))
    return secret


@sensitive_variables("url", "given", "changed", "value")
def change_webhook(
    name: str,
    *,
    url: str | None = None,
    form: str | None = None,
    concurrency: int | None = None,
    batch_size: int | None = None,
    by: str | None = None,
    using: str | None = None,
) -> None:
    """Send to another URL, in another form, or more at the same time. What is under way goes where it was sent.

    Another filter or order is another endpoint: what it has to send is chosen already.
    """
    using = writable(using)
    given: dict[str, Any] = {"url": url, "form": form, "concurrency": concurrency, "batch_size": batch_size}
    changed = {option: value for option, value in given.items() if value is not None}
    if not changed:
        raise Invalid("change_webhook() has nothing to change, expected url=, form=, concurrency= or batch_size=.")
    if url is not None:
        refuse_url(url, networks(settings.WEBHOOK_NETWORKS))
    with bounded(using, f"Webhook endpoint {name!r}"):
        row = _locked(using, name)
        for option, value in changed.items():
            setattr(row, option, value)
        _refuse_options(name, form=row.form, concurrency=row.concurrency, batch_size=row.batch_size)
        row.save(using=using, update_fields=list(changed))
        told = changed if url is None else {**changed, "url": without_secrets(url).strip("'")}
        record(using, row.consumer, "webhook", by=by, done="changed", **told)


@sensitive_variables("secret")
def rotate_secret(
    name: str,
    *,
    secret: str | None = None,
    keep: timedelta = KEPT_SECRET,
    by: str | None = None,
    using: str | None = None,
) -> str:
    """Give an endpoint a new secret, and return it: it is shown this once.

    The one before signs as well for as long as `keep` says, so that the receiver can change over in the meantime
    without losing anything. With `keep=timedelta(0)` all former ones sign no more at once.
    """
    using = writable(using)
    if not isinstance(keep, timedelta) or not timedelta(0) <= keep <= timedelta(days=365):
        raise Invalid(f"rotate_secret() has keep={keep!r}, expected a timedelta from zero to a year.")
    secret = new_secret() if secret is None else secret
    refuse_secret(secret)
    with bounded(using, f"Webhook endpoint {name!r}"):
        row = _locked(using, name)
        former = row.secrets.using(using)
        if keep:
            former.filter(signs_until__lte=ClockTimestamp()).delete()
            former.filter(signs_until=None).update(signs_until=ClockTimestamp() + keep)
        else:
            former.all().delete()
        models.WebhookSecret(endpoint=row, secret=secret).save(using=using)
        record(using, row.consumer, "webhook", by=by, done="given a new secret", keep=str(keep))
    return secret


def try_webhook(name: str, *, using: str | None = None) -> WebhookAnswer:
    """Send a test event to an endpoint now, and return what came back. It is signed, and in no log.

    Its type is `webhook.test`, and its id is a negative one, which no event has. An endpoint that is paused can be
    tried as well. The attempt is recorded.
    """
    from django_events.outward.sending import send_once  # needs aiohttp, and nothing else here does

    using = writable(using)
    found = endpoints(using, name)
    if not found:
        raise unknown(using, name)
    event = _test_event(using, found[0])
    answer = send_once(found[0].request(event), limits())
    models.WebhookAttempt.objects.using(using).create(
        endpoint_id=found[0].id,
        event_id=event.id,
        attempt=1,
        seconds=answer.seconds,
        status=answer.status,
        excerpt=storable(answer.excerpt),
        error=storable(answer.error),
    )
    return answer


def _test_event(using: str, endpoint: Endpoint) -> ReceivedEvent:
    now, event_id = sql.now(using).isoformat(), -1 - random_secrets.randbits(62)
    value = {"endpoint": endpoint.name}
    columns: tuple[Any, ...] = (event_id, 0, event_id, TEST_TYPE, None, value, None, {}, now, now)
    return ReceivedEvent(endpoint.consumer.topics[0], columns, consumer=endpoint.name, database=using)


def _refuse_options(name: str, *, form: str, concurrency: int, batch_size: int) -> None:
    what = f"Webhook endpoint {name!r}"
    if form not in FORMS:
        raise Invalid(f"{what} has form={form!r}, expected one of {', '.join(map(repr, FORMS))}.")
    for problem in (
        *check_number(what, "concurrency", concurrency, 1, MOST_AT_ONCE),
        *check_number(what, "batch_size", batch_size, 1, LARGEST_BATCH),
    ):
        raise Invalid(problem)
    if batch_size > 1 and form == "cloudevent_binary":
        raise Invalid(
            f"{what} has batch_size={batch_size} and form={form!r}, whose attributes are headers of one event. Choose "
            "form='cloudevent', or batch_size=1."
        )


def _refuse_taken(using: str, name: str) -> None:
    declared = any(one.name == name for one in declarations.consumers)
    if declared or models.Consumer.objects.using(using).filter(name=name).exists():
        raise Refused(f"There is a consumer {name!r} already. Nothing was changed. Give the endpoint another name.")


def _locked(using: str, name: str) -> models.WebhookEndpoint:
    rows = models.WebhookEndpoint.objects.using(using).select_related("consumer__topic")
    row = rows.filter(consumer__name=name).select_for_update(of=["self"]).first()
    if row is None:
        raise unknown(using, name)
    return row


def unknown(using: str, name: str) -> UnknownName:
    """The error that there is no endpoint of a name."""
    known = models.WebhookEndpoint.objects.using(using).values_list("consumer__name", flat=True)
    return UnknownName(f"There is no webhook endpoint {name!r} in the database {using!r}. {did_you_mean(name, known)}")
