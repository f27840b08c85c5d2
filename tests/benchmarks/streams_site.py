"""A site of streams, and of what they are compared with: a view that browsers ask again and again."""

import os

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, JsonResponse
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()

from django_events import declarations, end_streams_on_sigterm, sse  # noqa: E402
from django_events.declarations import DeclaredTopic  # noqa: E402
from django_events.models import Event  # noqa: E402

declarations.registry.add(DeclaredTopic(name="bench"))


def poll(request: HttpRequest) -> JsonResponse:
    """What came for a user since the last time."""
    user, after = request.GET["user"], int(request.GET["after"])
    found = Event.objects.of("bench").filter(id__gt=after, key=user).order_by("id")[:200]
    answer = JsonResponse([{"id": event.id, "value": event.value} for event in found], safe=False)
    answer["Content-Length"] = len(answer.content)
    return answer


urlpatterns = [
    path("live/", sse("bench", authorize=lambda request: {"keys": [request.GET["user"]]})),
    path("poll/", poll),
]
settings.ROOT_URLCONF = __name__
settings.ALLOWED_HOSTS = ["*"]
settings.MIDDLEWARE = []
settings.DEBUG = False
settings.DJANGO_EVENTS = {**getattr(settings, "DJANGO_EVENTS", {}), "LIVE_CONNECTIONS": 5_000}
application = ASGIHandler()
end_streams_on_sigterm()
