"""What a key is called where it must not stand: a keyed hash, which only this site can make."""

from django.conf import settings
from django.utils.crypto import salted_hmac


def secrets() -> list[str | bytes]:
    """The secret of the site, and those that it had before."""
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


def digest(secret: str | bytes, topic: str, key: str) -> str:
    """The name of a key of a topic. Without the secret the key can't be found by trying."""
    return salted_hmac("django_events.erase", f"{topic}\0{key}", secret=secret, algorithm="sha256").hexdigest()


def digests(topic: str, key: str) -> list[str]:
    """The names that a key may have in records, by each secret."""
    return [digest(secret, topic, key) for secret in secrets()]


def secret_name(secret: str | bytes) -> str:
    """Which secret a name was made with, for those who look whether they still have it."""
    return salted_hmac("django_events.erase.secret", "", secret=secret, algorithm="sha256").hexdigest()[:16]


def secret_names() -> list[str]:
    return [secret_name(secret) for secret in secrets()]
