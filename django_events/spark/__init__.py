"""Spark: the log as a batch and streaming source, a sink, exports and analytics jobs.

    spark.read.format("django_events").option("dsn", dsn).option("subscribe", "orders").load()

Nothing in this package imports Django: executors need no more than psycopg and PyArrow.
"""
