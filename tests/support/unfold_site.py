"""The shop's settings with the theme django-unfold, whose templates stand in for the admin's."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as SHOP

INSTALLED_APPS = ["unfold", *SHOP]
