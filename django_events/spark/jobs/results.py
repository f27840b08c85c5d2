"""What becomes of what a job computed: rows here, or files somewhere."""

from typing import Any

from pyspark.sql import DataFrame

from django_events.spark.exporting.files import AS_TEXT


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows, with times that know their zone."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def write(frame: DataFrame, path: str, format: str) -> None:
    """Into a new folder of files; one that is there already is left alone, and refused."""
    options = {} if format == "parquet" else AS_TEXT
    if format == "csv":
        options = {**options, "header": "true"}
    frame.write.format(format).options(**options).save(path)
