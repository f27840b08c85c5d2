"""The site of streams, for gunicorn."""

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from django_events import end_streams_on_sigterm  # noqa: E402

end_streams_on_sigterm()
