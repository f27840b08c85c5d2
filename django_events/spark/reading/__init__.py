"""What `spark.read` and `spark.readStream` need, in the driver and in executors, above `django_events.reading`."""
