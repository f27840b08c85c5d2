"""Signatures as Standard Webhooks specifies them: https://www.standardwebhooks.com

headers = signed(["whsec_…"], message_id="orders/1042", timestamp=1_700_000_000, body=b"{}")

A receiver takes the message if one of its secrets made one of the signatures. So while a secret rotates, both sign.
"""

import base64
import binascii
import hashlib
import hmac
import secrets as random_secrets
from collections.abc import Sequence

from django_events.exceptions import Invalid

PREFIX = "whsec_"
SHORTEST_SECRET, LONGEST_SECRET = 24, 64  # bytes, by the specification
SECRET_BYTES = 32


def new_secret() -> str:
    """A secret made by chance."""
    return PREFIX + base64.b64encode(random_secrets.token_bytes(SECRET_BYTES)).decode()


def refuse_secret(secret: str) -> None:
    """Invalid unless it is a secret that the libraries of receivers take. The message doesn't show it."""
    try:
        size = len(key_of(secret))
    except ValueError:
        size = None
    if size is None or not SHORTEST_SECRET <= size <= LONGEST_SECRET:
        found = "no base64 behind it" if size is None else f"{size} bytes"
        raise Invalid(
            f"The secret of a webhook endpoint has {found}, expected {PREFIX!r} and the base64 of {SHORTEST_SECRET} to "
            f"{LONGEST_SECRET} bytes. Leave it out, and one is made by chance."
        )


def key_of(secret: str) -> bytes:
    """The bytes that sign; ValueError if there are none."""
    if not secret.startswith(PREFIX):
        raise ValueError("no prefix")
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error


def signature(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """One signature: `v1,` and the HMAC of what is sent."""
    signed_bytes = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(key_of(secret), signed_bytes, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def signed(secrets: Sequence[str], *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message, with a signature by each of these secrets."""
    signatures = [signature(secret, message_id=message_id, timestamp=timestamp, body=body) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
