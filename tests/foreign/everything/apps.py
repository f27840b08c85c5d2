from django.apps import AppConfig


class Everything(AppConfig):
    name = "tests.foreign.everything"
    label = "foreign_everything"
