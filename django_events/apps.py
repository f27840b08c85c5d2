"""The Django app: it discovers declarations and keeps the database in step with them."""

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DjangoEventsConfig(AppConfig):
    name = "django_events"
    verbose_name = _("Events")
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Other apps connect their receivers of post_migrate when they are ready: ours has to be there before them."""
        super().import_models()
        post_migrate.connect(_sync_before_others, dispatch_uid="django_events.sync_before_others")

    def ready(self) -> None:
        from django_events import checks  # noqa: F401  # registers them
        from django_events.conf import events_module
        from django_events.metrics.installing import install
        from django_events.migrating import teach_makemigrations
        from django_events.models.fixtures import refuse_fixtures
        from django_events.publishing.model_signals import connect_declared
        from django_events.publishing.session_settings import listen_for_writes
        from django_events.syncing import sync_after_migrate, sync_topics_before_migrate

        connect_declared()
        autodiscover_modules(events_module())
        connection_created.connect(listen_for_writes)
        install()
        teach_makemigrations()
        refuse_fixtures()
        pre_migrate.connect(sync_topics_before_migrate, sender=self)
        post_migrate.connect(sync_after_migrate, sender=self)


def _sync_before_others(**kwargs: Any) -> None:
    from django_events.syncing import sync_before_others

    sync_before_others(**kwargs)
