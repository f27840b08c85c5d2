"""The settings of another project, on the private PostgreSQL, and with everything published where that is asked for."""

import os
from importlib import import_module

theirs = import_module(os.environ["FOREIGN_SETTINGS"])
globals().update({name: getattr(theirs, name) for name in dir(theirs) if name.isupper()})

NAME = os.environ["FOREIGN_DATABASE"]
DATABASES = {"default": {"ENGINE": "testproject.private_postgres", "NAME": "postgres", "TEST": {"NAME": NAME}}}
MEDIA_ROOT = os.environ["FOREIGN_MEDIA"]  # empty for each run: tests leave files, and look at the names of new ones
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # theirs take most of the time
TEST_RUNNER = "foreign.runner.WithoutChecks"
if os.environ["FOREIGN_EVENTS"] != "without":
    INSTALLED_APPS = [*theirs.INSTALLED_APPS, "pgtrigger", "django_events", "foreign.everything"]
    PGTRIGGER_MIGRATIONS = False
    PGTRIGGER_INSTALL_ON_MIGRATE = True
