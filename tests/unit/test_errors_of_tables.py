"""What the libraries of tables say when they fail, without the secrets of the addresses that they quote."""

import pytest
from django.core.management import CommandError

from django_events.management.spark import FULL, LOCKED, explained

pyiceberg = pytest.importorskip("pyiceberg.exceptions")
requests = pytest.importorskip("requests")
deltalake = pytest.importorskip("deltalake.exceptions")
sqlalchemy = pytest.importorskip("sqlalchemy.exc")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no server at postgresql+psycopg://lake:hush@db/lake", "postgresql+psycopg://lake:***@db/lake"),
        ("no server at 'http://lake:h/u@sh@db:80/x' now", "'http://lake:***@db:80/x' now"),
        ("GET http://:hush@db/x?token=hush&y=1", "http://:***@db/x?token=***&y=1"),
        ("{'s3.secret-access-key': 'hush', 'uri': 'sqlite://'}", "{'s3.secret-access-key': '***', 'uri': 'sqlite://'}"),
        ("AWS_SECRET_ACCESS_KEY=hush AWS_REGION=x", "AWS_SECRET_ACCESS_KEY=*** AWS_REGION=x"),
        ("host=db password=hush dbname=x", "host=db password=*** dbname=x"),
        ("Signature at https://x.blob/y?sig=hush&se=1", "https://x.blob/y?sig=***&se=1"),
    ],
)
@pytest.mark.parametrize(
    "kind",
    [pyiceberg.RESTError, requests.ConnectionError, deltalake.DeltaError, sqlalchemy.ArgumentError],
    ids=lambda kind: str(kind.__name__),
)
def test_secrets_are_not_shown(kind: type[Exception], text: str, shown: str) -> None:
    with pytest.raises(CommandError) as raised, explained("lake"):
        raise kind(text)

    assert shown in str(raised.value)
    assert "hush" not in str(raised.value)
    assert "The table can't be read or written: " in str(raised.value)
    assert raised.value.returncode == 1
    assert raised.value.__cause__ is None  # its text has the secret, and --traceback shows it


@pytest.mark.parametrize(
    ("text", "said"), [("No space left on device (os error 28)", FULL), ("database is locked", LOCKED)]
)
def test_what_is_known_is_said_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(CommandError) as raised, explained("lake"):
        raise deltalake.DeltaError(text)

    assert str(raised.value) == said


def test_a_connection_of_a_catalogue_that_is_lost_is_none_of_spark() -> None:
    with pytest.raises(CommandError, match=r"^The table can't be .*reset by peer") as raised, explained("lake"):
        raise ConnectionResetError(104, "Connection reset by peer")

    assert raised.value.returncode == 1
