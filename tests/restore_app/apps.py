"""The topics and consumers of tests that restore."""

from django.apps import AppConfig


class RestoreAppConfig(AppConfig):
    name = "tests.restore_app"
    label = "restore_app"
