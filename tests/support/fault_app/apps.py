"""Consumers for tests that kill, freeze and stop the processes that run them."""

from django.apps import AppConfig


class FaultAppConfig(AppConfig):
    name = "tests.support.fault_app"
    label = "fault_app"
    default_auto_field = "django.db.models.BigAutoField"
