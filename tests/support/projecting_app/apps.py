"""The models of projections, as a Django app."""

from django.apps import AppConfig


class ProjectingAppConfig(AppConfig):
    name = "tests.support.projecting_app"
    label = "projecting_app"
    default_auto_field = "django.db.models.BigAutoField"
