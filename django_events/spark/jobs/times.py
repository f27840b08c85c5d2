"""Lengths of time: as people write them, and between two moments."""

import re

from pyspark.sql import Column
from pyspark.sql import functions as f

from django_events.exceptions import Invalid

UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
LENGTH = re.compile(rf"([0-9]{{1,6}}) *({'|'.join(UNITS)})s?")


def seconds(option: str, text: str) -> int:
    """The seconds in a text like "90 minutes"; Invalid if it is no length of time, or zero."""
    found = LENGTH.fullmatch(text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise Invalid(f"Option {option!r} is {text!r}, expected a length of time like '15 minutes' or '1 day'.")
    return int(found[1]) * UNITS[found[2]]


def span(option: str, text: str) -> str:
    """The same in the words of Spark, for which a day may have another length than 24 hours."""
    return f"{seconds(option, text)} seconds"


def between(start: Column, end: Column) -> Column:
    """How many seconds there are from one moment to another, to the microsecond."""
    return (f.unix_micros(end) - f.unix_micros(start)) / 1e6
