"""Lists that Django's admin draws: of one database at a time, and without counting what is long."""

from typing import TYPE_CHECKING, Any

from django.contrib.admin import ShowFacets, SimpleListFilter
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_events.admin import addresses
from django_events.admin.pages import Pages

COUNTED = 10_000
if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:  # it takes no parameter when it runs
    AnyPaginator = Paginator


class BoundedPaginator(AnyPaginator):
    """Counts up to a bound: what is behind it is found by a filter or a search."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by()[:COUNTED].count() if isinstance(rows, QuerySet) else len(rows)


class DatabaseFilter(SimpleListFilter):
    """Which database is listed, where there are several."""

    title = _("database")
    parameter_name = addresses.PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(alias, alias) for alias in addresses.databases() if alias != addresses.home()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # Lists has chosen it: searches and other filters are about that one too


class AddressedChangeList(ChangeList):
    """Links to rows name their database."""

    def url_for_result(self, result: Model) -> str:
        address = addresses.written(result.pk, result._state.db or addresses.home())
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(name, args=[quote(address)], current_app=self.model_admin.admin_site.name)


class Lists(Pages):
    """Rows that stand in a list of Django's own."""

    paginator = BoundedPaginator
    list_per_page = 100
    list_max_show_all = 0
    show_facets = ShowFacets.NEVER  # they are counts

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return AddressedChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).using(addresses.database_of(request))
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        pk, using = addresses.read(object_id)
        return super().get_queryset(request).using(using).filter(pk=pk).first()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        def view() -> HttpResponse:
            answer: HttpResponse = super(Lists, self).changelist_view(request, extra_context)
            return answer

        return self.explained(request, view)
