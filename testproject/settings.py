"""The shop's settings. DATABASE_URL names a PostgreSQL; without it a private one starts by itself."""

import os
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

BASE_DIR = Path(__file__).resolve().parent
SECRET_KEY = "not a secret: the shop runs on this machine only"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
ROOT_URLCONF = "testproject.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "pgtrigger",
    "django_events",
    "testproject.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_events.middleware.RememberWrites",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def database() -> dict[str, object]:
    """The server that DATABASE_URL names, or the private one."""
    url = os.environ.get("DATABASE_URL")
    if not url:
        return {"ENGINE": "testproject.private_postgres", "NAME": "postgres"}
    named = conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": named.pop("dbname", ""),
        "USER": named.pop("user", ""),
        "PASSWORD": named.pop("password", ""),
        "HOST": named.pop("host", ""),
        "PORT": str(named.pop("port", "")),
        "OPTIONS": named,
    }


DATABASES = {"default": database()}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_events": {"handlers": ["console"], "level": "INFO"}},
}
