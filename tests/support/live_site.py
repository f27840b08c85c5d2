"""A site that sends the shop's orders to browsers."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_events import sse

PAGE = """<!doctype html><title>live</title><link rel="icon" href="data:,"><script>
const source = new EventSource("/live/?lastEventId=orders/0");
window.seen = [];
source.addEventListener("visit", (event) => window.seen.push(JSON.parse(event.data).id));
</script>"""


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse(PAGE)


urlpatterns = [path("", page), path("live/", sse("orders", authorize=lambda request: {}))]
