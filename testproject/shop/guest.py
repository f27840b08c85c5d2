"""The login of a visitor who looks at the shop for a while."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth.models import User
from django.core.management.base import CommandError

NAME = "demo"
MARK = "made by manage.py demo --serve"  # its last name: the demo of another user is left alone


@contextmanager
def login() -> Iterator[str]:
    """A superuser called "demo" until the block ends; yields the password, which is new each time."""
    password = secrets.token_urlsafe(12)
    user = User.objects.filter(username=NAME).first() or User(username=NAME, last_name=MARK)
    if user.last_name != MARK:
        raise CommandError(
            f"This database has a user {NAME!r} already whom the demo didn't make. Rename that user, or set "
            "DATABASE_URL to another database."
        )
    user.is_active = user.is_staff = user.is_superuser = True
    user.set_password(password)
    user.save()
    try:
        yield password
    finally:
        # Another demo on the same database may have given the login its own password meanwhile, and ends it then.
        User.objects.filter(pk=user.pk, password=user.password).delete()
