from django.apps import AppConfig


class PublishingConfig(AppConfig):
    name = "tests.support.publishing_app"
    default_auto_field = "django.db.models.BigAutoField"
