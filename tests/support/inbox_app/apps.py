"""The app of the inbox."""

from django.apps import AppConfig


class InboxAppConfig(AppConfig):
    name = "tests.support.inbox_app"
    label = "inbox_app"
