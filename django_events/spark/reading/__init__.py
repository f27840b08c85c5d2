"""What `spark.read` and `spark.readStream` need, in the driver and in executors: topics, offsets, ranges, rows."""
