"""Who logs in, and how. They are gone when the test ends."""

from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client

if TYPE_CHECKING:
    from playwright.sync_api import Page

PASSWORD = "correct horse battery staple"


def superuser(name: str = "ada") -> User:
    """A superuser, who may do everything."""
    return User.objects.create_superuser(name, password=PASSWORD)


def viewer(*permissions: str, name: str = "ben") -> User:
    """A member of staff who may do what is named, like "view_topic" or "django_events.view_topic"."""
    user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
    user.user_permissions.set([permission(codename) for codename in permissions])
    return user


def permission(name: str) -> Permission:
    app, _, codename = name.rpartition(".")
    found = Permission.objects.filter(codename=codename)
    return (found.filter(content_type__app_label=app) if app else found).get()


def login(page: "Page", user: User, base_url: str) -> None:
    """Give the page's browser the session of a user, without the form."""
    client = Client()
    client.force_login(user)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": base_url, "httpOnly": True}])
