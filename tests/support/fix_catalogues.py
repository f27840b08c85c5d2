"""Where tables may be: a catalogue of Iceberg's in the PostgreSQL of the tests, and a store that speaks S3."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from django.db import connection

from testproject.private_postgres.server import choose_free_port
from tests.spark.test_export import url
from tests.support.processes import listens, wait_until


@pytest.fixture
def catalogue(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name, for this process and those that it starts."""
    where = url(connection.get_connection_params()).replace("postgresql:", "postgresql+psycopg:", 1)
    tell_pyiceberg(monkeypatch, URI=where, WAREHOUSE=f"file://{tmp_path}/warehouse")
    yield "tested"
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS iceberg_tables, iceberg_namespace_properties")


def tell_pyiceberg(monkeypatch: pytest.MonkeyPatch, **said: str) -> None:
    """Tell it of the catalogue `tested`, by the environment, as far as it isn't told already."""
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
    config = pytest.importorskip("pyiceberg.utils.config")
    for name, value in said.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TESTED__{name}", value)
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", config.Config())  # it reads the environment once


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store that speaks S3, with a conditional PUT."""
    address = f"http://127.0.0.1:{(port := choose_free_port())}"
    quiet = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=quiet, stderr=quiet) as store:
        try:
            wait_until(lambda: listens(port))
            urlopen(Request(f"{address}/lake", method="PUT")).close()
            known = {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
            for name, value in known.items():
                monkeypatch.setenv(name, value)
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.setenv(name, "x")
            yield "s3://lake/events"
        finally:
            store.kill()


@pytest.fixture
def catalogue_of_store(catalogue: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The catalogue in PostgreSQL, of tables that are in the store."""
    tell_pyiceberg(
        monkeypatch,
        WAREHOUSE="s3://lake/warehouse",
        S3__ENDPOINT=os.environ["AWS_ENDPOINT_URL"],
        S3__REGION=os.environ["AWS_REGION"],
        S3__ACCESS_KEY_ID="x",
        S3__SECRET_ACCESS_KEY="x",
    )
    return catalogue
