"""Pages for machines: probes and Prometheus."""

from collections.abc import Callable

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

View = Callable[..., HttpResponse]


def for_machines(view: View) -> View:
    """Not cached, not sent to a login, and without the transaction of ATOMIC_REQUESTS: it would wait for the database,
    or fail with one that is down before the page could say so."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return login_not_required(require_safe(never_cache(view)))
