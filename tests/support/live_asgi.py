"""The site of streams, for uvicorn."""

from django.core.asgi import get_asgi_application

application = get_asgi_application()

from django_events import end_streams_on_sigterm  # noqa: E402

end_streams_on_sigterm()
