"""The consumers of the commands' tests, as a Django app."""

from django.apps import AppConfig


class ConsumingAppConfig(AppConfig):
    name = "tests.support.consuming_app"
    label = "consuming_app"
    default_auto_field = "django.db.models.BigAutoField"
