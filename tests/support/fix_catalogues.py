"""A catalogue of Iceberg's in the PostgreSQL of the tests, as a site tells PyIceberg of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.spark.test_export import url


@pytest.fixture
def catalogue(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name, for this process and those that it starts."""
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
    config = pytest.importorskip("pyiceberg.utils.config")
    where = url(connection.get_connection_params()).replace("postgresql:", "postgresql+psycopg:", 1)
    monkeypatch.setenv("PYICEBERG_CATALOG__TESTED__URI", where)
    monkeypatch.setenv("PYICEBERG_CATALOG__TESTED__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", config.Config())  # it reads the environment once
    yield "tested"
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS iceberg_tables, iceberg_namespace_properties")
