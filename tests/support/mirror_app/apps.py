"""The app of the topic that two sites have."""

from django.apps import AppConfig


class MirrorAppConfig(AppConfig):
    name = "tests.support.mirror_app"
    label = "mirror_app"
