"""What all our pages of the admin have in common: who may see them, what they say when something is wrong."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.models import CharField, Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from django_events import sql
from django_events.admin import addresses
from django_events.models import Consumer, DeadLetter, Inbox, Intervention, Overview, ScheduledEvent, Topic
from django_events.sql.search_path import tables_missing

View = Callable[..., HttpResponse]
if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:  # it takes no parameter when it runs
    ModelAdmin = admin.ModelAdmin


class Pages(ModelAdmin):
    """Rows that are looked at and acted upon, and never edited in a form: that would break what they promise."""

    show_full_result_count = False
    object_history_template = "admin/django_events/history.html"

    class Media:
        css: ClassVar = {"all": ["django_events/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        seeing = f"view_{self.opts.model_name}"
        return [
            self.page("<path:object_id>/history/", "history", self.history_view, seeing),
            *super().get_urls(),
        ]

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The admin's log of a row, whichever way its address is written."""
        address = addresses.written(*self.read(unquote(object_id)))
        answer: HttpResponse = super().history_view(request, quote(address), extra_context)
        return answer

    def read(self, address: str) -> tuple[int | str, str]:
        """The key of a row, and its database; steps of maintenance have names for keys."""
        return addresses.read_of(address, numbered=not isinstance(self.opts.pk, CharField))

    def page(self, route: str, name: str, view: View, *permissions: str, post: bool = False) -> URLPattern:
        """The URL of a page for those who have all these permissions of our models."""
        guarded = self._guarded(view, permissions, post=post)
        return path(route, guarded, name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")

    def _guarded(self, view: View, permissions: tuple[str, ...], *, post: bool) -> View:
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not all(may(request, permission) for permission in permissions):
                raise PermissionDenied
            if request.method not in (("GET", "HEAD", "POST") if post else ("GET", "HEAD")):
                return HttpResponseNotAllowed(["GET", "POST"] if post else ["GET"])
            if "address" in kwargs:
                kwargs["address"] = unquote(kwargs["address"])
            return self.explained(request, lambda: view(request, *args, **kwargs))

        wrapped: View = never_cache(self.admin_site.admin_view(inner))
        # A rewind keeps workers off by a row, which they can't see while it is in an open transaction.
        for alias in connections:
            wrapped = transaction.non_atomic_requests(alias)(wrapped)
        return wrapped

    def explained(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """A page that says what is wrong with the database, instead of a server error."""
        try:
            response = view()
            return response.render() if isinstance(response, TemplateResponse) else response
        except Http404 as error:  # a site's own page would not say why
            context = {"title": _("Not there"), "said": str(error)}
            return self.answer(request, "unavailable.html", context, status=404)
        except (DatabaseError, InterfaceError) as error:
            said = reason(error, _broken(request))
            if said is None:
                raise
            context = {"title": _("Nothing to show"), "said": said, "details": sql.said(error)}
            return self.answer(request, "unavailable.html", context, status=503)

    def refuse(self, request: HttpRequest, permission: str) -> None:
        """An action that this user may not take is refused, whatever page asked for it."""
        if not may(request, permission):
            raise PermissionDenied

    def answer(
        self, request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200
    ) -> TemplateResponse:
        """A page in the frame of the admin."""
        request.current_app = self.admin_site.name
        everything = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "home": addresses.home(),
            "sees": self.sees(request),
            "trail": None,
            "may_find": self.admin_site.is_registered(Overview) and may(request, "view_overview"),
            **context,
        }
        return TemplateResponse(request, f"admin/django_events/{template}", everything, status=status)

    def sees(self, request: HttpRequest) -> dict[str, bool]:
        """Which of our models this user can open: links lead to these only. A site needn't show all of them."""
        pages = {
            "topic": (Topic, "view_topic"),
            "event": (Topic, "view_event"),
            "consumer": (Consumer, "view_consumer"),
            "deadletter": (DeadLetter, "view_deadletter"),
            "intervention": (Intervention, "view_intervention"),
            "scheduledevent": (ScheduledEvent, "view_scheduledevent"),
            "inbox": (Inbox, "view_inbox"),
        }
        return {
            name: self.admin_site.is_registered(model) and may(request, permission)
            for name, (model, permission) in pages.items()
        }

    def url(self, name: str, *args: int | str, model: type[Model] | None = None) -> str:
        """The address of a page of this model, or of another one of ours."""
        of = (model or self.model)._meta.model_name
        quoted = [quote(arg) for arg in args]
        return reverse(f"admin:django_events_{of}_{name}", args=quoted, current_app=self.admin_site.name)

    def list_url(self, using: str, **chosen: object) -> str:
        """The address of the list of this model."""
        return self.url("changelist") + addresses.query(using, **chosen)

    def note(self, request: HttpRequest, row: Model, message: str) -> None:
        """Write an action into the admin's log, as a change of this row."""
        using = row._state.db or addresses.home()
        LogEntry.objects.create(
            user_id=cast("int", request.user.pk),
            content_type=ContentType.objects.get_for_model(row),
            object_id=addresses.written(row.pk, using),
            object_repr=str(row)[:200],
            action_flag=CHANGE,
            change_message=message,
        )


def may(request: HttpRequest, *permissions: str) -> bool:
    """Whether the user has all these permissions, like `rewind_consumer`."""
    return request.user.has_perms([f"django_events.{name}" for name in permissions])


def by(request: HttpRequest) -> str:
    """The name of the user who acts, for the intervention."""
    return request.user.get_username()


def _broken(request: HttpRequest) -> str:
    """The alias of the database that a page is about, as far as its address tells."""
    asked = request.resolver_match.kwargs if request.resolver_match else {}
    address = unquote(str(asked.get("address") or asked.get("object_id") or ""))
    named = address.partition("@")[2] or request.GET.get(addresses.PARAMETER, "")
    return named if named in connections else addresses.home()


def reason(error: Exception, using: str) -> str | None:
    """A sentence about an error of the database; None if it is a defect of this package."""
    alias = {"alias": using}
    kind = sql.kind_of(error)
    match kind:
        case sql.ErrorKind.LOST:
            return _("The database “%(alias)s” can't be reached.") % alias
        case sql.ErrorKind.ROWS_HIDDEN:
            return _("The database “%(alias)s” would hide rows from the user that the site connects as.") % alias
        case sql.ErrorKind.TABLE_GONE:
            return tables_missing(using)
        case sql.ErrorKind.READ_ONLY:
            return _("The database “%(alias)s” can only be read. Nothing was changed.") % alias
        case sql.ErrorKind.FORBIDDEN:
            return _("The database “%(alias)s” doesn't allow this to the user that the site connects as.") % alias
        case sql.ErrorKind.CANCELED:
            return _("The database “%(alias)s” ended a statement that took longer than its limit.") % alias
    if kind.passes:
        return _("The database “%(alias)s” couldn't do this now. Try again.") % alias
    return None
