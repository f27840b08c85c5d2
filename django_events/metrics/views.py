"""A page for Prometheus: the site includes it in its urls itself.

path("metrics", django_events.metrics.views.metrics)
path("metrics", django_events.metrics.views.metrics, {"using": "reading"})  # only this one
"""

import os

from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare

from django_events.conf import settings
from django_events.metrics.exposition import CONTENT_TYPE, text
from django_events.observing.machines import for_machines
from django_events.observing.state import read, read_all

PERMISSIONS = ("django_events.view_topic", "django_events.view_consumer")


@for_machines  # Prometheus has a token and no session: the view says itself who may read
def metrics(request: HttpRequest, *, using: str | None = None) -> HttpResponse:
    """The state of all databases: for who has METRICS_TOKEN, or may look at topics and consumers in the admin.

    With `using` of this one only: by an alias whose login may read, where the site itself may only publish.
    What processes count is in it where they share PROMETHEUS_MULTIPROC_DIR. The counts of one process alone are not:
    the next request may be answered by another one.
    """
    if not _may_read(request):
        said = "Send the header Authorization: Bearer, with what DJANGO_EVENTS['METRICS_TOKEN'] says.\n"
        return HttpResponse(said, status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"})
    said = text(read_all() if using is None else read(using))
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from django_events.metrics.prometheus import of_all_processes

        said += of_all_processes()
    return HttpResponse(said, content_type=CONTENT_TYPE)


def _may_read(request: HttpRequest) -> bool:
    if django_settings.DEBUG:
        return True
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if settings.METRICS_TOKEN is not None and scheme.lower() == "bearer":
        return constant_time_compare(given.strip(), settings.METRICS_TOKEN)
    user = getattr(request, "user", None)
    return user is not None and getattr(user, "is_staff", False) and user.has_perms(PERMISSIONS)
