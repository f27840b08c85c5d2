"""A site that sends the shop's orders to browsers."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_events import sse

PAGE = """<!doctype html><title>live</title><link rel="icon" href="data:,"><script>
let position = "orders/0";
window.seen = [];

function listen() {
  const source = new EventSource(`/live/?lastEventId=${encodeURIComponent(position)}`);
  source.addEventListener("visit", (event) => {
    position = event.lastEventId;
    window.seen.push(JSON.parse(event.data).id);
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 200);
  });
}

listen();
</script>"""


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse(PAGE)


live = sse("orders", authorize=lambda request: {}, retry=timedelta(milliseconds=200))
urlpatterns = [path("", page), path("live/", live)]
