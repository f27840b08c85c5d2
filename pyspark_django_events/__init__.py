"""Lets Spark find format("django_events") by itself: it looks into every package whose name begins with pyspark_."""

import warnings

try:
    from django_events.spark.source import EventsSource as DefaultSource

    __all__ = ["DefaultSource"]
except ImportError as error:
    # An error here would be the end of every other source that Spark looks for.
    warnings.warn(f'format("django_events") is not available: {error}. It needs psycopg and pyarrow.', stacklevel=1)
