"""The shop's pages: where customers order, and the admin."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path

from testproject.shop import pages


def no_icon(request: HttpRequest) -> HttpResponse:
    """Browsers ask for it; without this the first page of each is followed by an error 404."""
    return HttpResponse(status=204)


urlpatterns: list[URLPattern | URLResolver] = [
    path("", pages.counter, name="counter"),
    path("live/", pages.live, name="live"),
    path("live/orders/", pages.stream, name="stream"),
    path("admin/", admin.site.urls),
    path("favicon.ico", no_icon),
]
