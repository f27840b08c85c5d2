"""Analytics jobs: each a function from DataFrames to a DataFrame, in a module of its name. `registry` lists them.

    from django_events.spark.jobs.counts import counts

    counts(spark.read.format("django_events").option("dsn", dsn).option("subscribe", "orders").load(), every="1 day")

The time of an event is `published_at`: what was logged late, or in another order, is counted where it belongs. Buckets
begin at full multiples since 1970 in UTC, whatever the zone of the session.
"""
