"""Lists that Django's admin draws: of one database at a time, and without counting what is long."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib.admin import ShowFacets, SimpleListFilter, helpers
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Max, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_events.admin import addresses
from django_events.admin.pages import Pages
from django_events.models.databases import databases

COUNTED = 10_000
CHOICES = 200  # of a filter
NAMED = 20  # rows that are named before something is done with them
if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:  # it takes no parameter when it runs
    AnyPaginator = Paginator


def local(time: datetime | None) -> str:
    """`2026-11-20 13:05:19` in the site's zone, as our own pages write times."""
    if time is None:
        return "–"
    return f"{timezone.localtime(time) if timezone.is_aware(time) else time:%Y-%m-%d %H:%M:%S}"


class AtLeast(int):
    """A number that is drawn as `≥10000`: there are more, which were not counted."""

    def __str__(self) -> str:
        return f"≥{int(self)}"


class BoundedPaginator(AnyPaginator):
    """Counts rows up to a bound. Rows behind it are found by a filter or a search."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        number = rows.order_by()[: COUNTED + 1].count()
        return AtLeast(COUNTED) if number > COUNTED else number


class DatabaseFilter(SimpleListFilter):
    """Which database is listed, where there are several."""

    title = _("database")
    parameter_name = addresses.PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(alias, alias) for alias in databases() if alias != addresses.home()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # Lists chose the database already, so that searches and other filters are about it too

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Offer the usual database instead of "all": a list is of one database."""
        usual, *others = super().choices(changelist)
        yield {**usual, "display": addresses.home()}
        yield from others


class OfRows(SimpleListFilter):
    """A filter by what a row is about, which the subclass looks up by index: nothing is counted."""

    column = ""

    def rows(self, request: HttpRequest) -> list[tuple[int, str]]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(pk), name) for pk, name in self.rows(request)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        is_id = value.isascii() and value.isdigit() and len(value) < 19
        return queryset.filter(**{self.column: int(value)}) if is_id else queryset.none()


class AddressedChangeList(ChangeList):
    """Links to rows name their database, and rows are in an order to which an index leads."""

    def get_ordering_field(self, field_name: Any) -> Any:
        return super().get_ordering_field(field_name) if field_name in (self.model_admin.sortable_by or ()) else None

    def url_for_result(self, result: Model) -> str:
        address = addresses.written(result.pk, result._state.db or addresses.home())
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(name, args=[quote(address)], current_app=self.model_admin.admin_site.name)


class ActionForm(helpers.ActionForm):
    """The choice of an action. The theme unfold shows the button beside it only when its script knows the choice."""

    action = forms.ChoiceField(label=_("Action:"), widget=forms.Select({"x-model": "action"}))


class Lists(Pages):
    """Models whose rows are shown in a list of Django's admin."""

    paginator = BoundedPaginator
    action_form = ActionForm
    list_per_page = 100
    list_max_show_all = 0
    show_facets = ShowFacets.NEVER  # facets count all rows
    change_form_template = "admin/django_events/row.html"

    def get_urls(self) -> list[URLPattern]:
        seeing = f"view_{self.opts.model_name}"
        return [
            self.page("", "changelist", self.changelist_view, seeing, post=True),
            self.page("<path:object_id>/change/", "change", self.change_view, seeing),
            *super().get_urls(),
        ]

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """What a filter offers: whether another one finds a row would tell what is masked, or not shown at all."""
        offered = set()
        for one in self.list_filter:
            name = getattr(one, "parameter_name", one)
            offered |= {name, f"{name}__exact"}
        fields = {field.name for field in self.opts.get_fields()}
        return lookup in offered or lookup.split("__")[0] not in fields

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = capfirst(self.opts.verbose_name_plural)  # Django's own tells to select a row
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return AddressedChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).using(addresses.database_of(request))
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        pk, using = self.read(object_id)
        return super().get_queryset(request).using(using).filter(pk=pk).first()

    def chosen(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows that an action is about, without those that came since the page asked."""
        newest = request.POST.get("newest", "")
        known = newest.isascii() and newest.isdigit() and len(newest) < 19
        return rows.filter(pk__lte=int(newest)) if known else rows

    def is_decided(self, request: HttpRequest) -> bool:
        return "decided" in request.POST

    def number_of(self, rows: QuerySet[Any]) -> tuple[int, bool]:
        """How many there are, and whether there are more than are counted."""
        number = rows.order_by()[: COUNTED + 1].count()
        return min(number, COUNTED), number > COUNTED

    def ask(
        self,
        request: HttpRequest,
        rows: QuerySet[Any],
        *,
        action: str,
        button: str,
        title: str,
        explanation: str,
        form: forms.Form,
        listed: list[str],
        back: str | None = None,
    ) -> HttpResponse:
        """The page that asks before an action on many rows. It sends the selection again, not its rows."""
        number, uncounted = self.number_of(rows)
        context = {
            "title": title,
            "trail": [],
            "using": rows.db,
            "explanation": explanation,
            "button": button,
            "form": form,
            "listed": listed,
            "more": max(number - NAMED, 0),
            "uncounted": uncounted,
            "action": action,
            "newest": rows.model.objects.using(rows.db).aggregate(newest=Max("pk"))["newest"],
            "chosen": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "across": request.POST.get("select_across", "0"),
            "from_list": back is None,
            "back": back or request.get_full_path(),
        }
        return self.answer(request, "decide.html", context)
