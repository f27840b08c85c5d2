"""The app of the relay."""

from django.apps import AppConfig


class RelayAppConfig(AppConfig):
    name = "tests.support.relay_app"
    label = "relay_app"
