from django.apps import AppConfig


class Everything(AppConfig):
    name = "foreign.everything"
    label = "foreign_everything"
