"""The topics and consumers of tests that restore."""

from django.apps import AppConfig


class RestoreAppConfig(AppConfig):
    name = "tests.support.restore_app"
    label = "restore_app"
