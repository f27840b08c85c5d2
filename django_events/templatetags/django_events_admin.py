"""How our pages of the admin write numbers, times and addresses.

Django imports the tags of every app as soon as it looks at a template engine, also where the admin isn't installed and
where a site registers its own choice of pages. So the admin is imported by the tags that write its addresses only.
"""

import re
from datetime import datetime, timedelta

from django import template
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_events import phrases

register = template.Library()

HUGE = 10**18
UTC_TIME = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}Z")


@register.filter
def number(value: float | None) -> str:
    """`12,000`, as the language groups it; a few decimals of what is small, and `1e+99` where digits say nothing."""
    if value is None:
        return "–"
    if abs(value) >= HUGE:
        return f"{value:.4g}"
    places = 0 if isinstance(value, int) or value >= 100 else 1 if value >= 10 else 2
    whole = int(value) == value
    return number_format(value, 0 if whole else places, force_grouping=True)


@register.filter
def duration(value: timedelta | None) -> SafeString | str:
    """`3 min 12 s`, in this order in every language."""
    return "–" if value is None else format_html('<bdi dir="ltr">{}</bdi>', phrases.duration(value))


@register.filter
def plain(value: object) -> SafeString | str:
    """A text from outside, like a key, an error or a holder: it turns neither itself nor its neighbours around."""
    return "–" if value is None or value == "" else format_html("<bdi>{}</bdi>", phrases.without_turning(str(value)))


@register.filter
def moment(value: datetime | None) -> SafeString | str:
    """`2026-11-20 13:05:19` in the site's zone, and for machines: it reads the same in every language."""
    return "–" if value is None else _time(value, "%Y-%m-%d %H:%M:%S")


@register.filter
def local_times(text: str) -> str:
    """A sentence of a command, whose times are in UTC, with the times of the page: `2026-11-20 14:05:19`."""
    return UTC_TIME.sub(lambda found: f"{timezone.localtime(datetime.fromisoformat(found[0])):%Y-%m-%d %H:%M:%S}", text)


@register.simple_tag
def zone() -> str:
    """The zone of all times on the page: `Europe/Berlin`."""
    return timezone.get_current_timezone_name()


@register.filter
def clock(value: datetime) -> SafeString:
    """`11-20 13:05`: at the ends of a chart."""
    return _time(value, "%m-%d %H:%M")


def _time(value: datetime, form: str) -> SafeString:
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return format_html('<time dir="ltr" datetime="{}">{}</time>', local.isoformat(), local.strftime(form))


@register.filter
def size(value: int | None) -> str:
    """`12 kB`."""
    if value is None:
        return "–"
    amount, unit = float(value), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{number_format(amount, 0 if unit == 'B' or amount >= 10 else 1)} {unit}"


@register.simple_tag(takes_context=True)
def page(context: template.Context, model: str, name: str, row: Model | int, *more: object) -> str:
    """The address of a page of ours: `{% page "topic" "log" topic %}`; a number is a row of the page's database."""
    from django.contrib.admin.utils import quote

    from django_events.admin.addresses import home, written

    using, pk = (row._state.db or home(), row.pk) if isinstance(row, Model) else (context["using"], row)
    args = [quote(written(pk, using)), *more]
    return reverse(f"admin:django_events_{model}_{name}", args=args, current_app=context["request"].current_app)


@register.simple_tag
def database(of: Model | str) -> SafeString | str:
    """Which database a page, or its row, is of, where several hold topics: rows of two may have the same names."""
    from django_events.admin.addresses import home
    from django_events.models.databases import databases

    if len(databases()) < 2:
        return ""
    using = (of._state.db or home()) if isinstance(of, Model) else of
    return format_html('<p class="events-where">{} <strong>{}</strong></p>', gettext("Database:"), using)


@register.inclusion_tag("admin/django_events/sign.html", takes_context=True)
def events_sign(context: template.Context) -> dict[str, object]:
    """A line with a link to the overview, which says how many errors and warnings there are.

    The page of our app has it; a site can have it on the admin's first page.
    """
    from django_events.admin.overview import signs

    return signs(context["request"])


@register.simple_tag(takes_context=True)
def list_page(context: template.Context, model: str, row: Model | None = None, **chosen: object) -> str:
    """The address of a list of ours, of the database of a row, or else of the page."""
    from django_events.admin.addresses import home, query

    using = (row._state.db if row is not None else context.get("using")) or home()
    address = reverse(f"admin:django_events_{model}_changelist", current_app=context["request"].current_app)
    return address + query(using, **chosen)
