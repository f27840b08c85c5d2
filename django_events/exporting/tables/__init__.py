"""Tables of a lakehouse: a topic as a table of Delta or Iceberg, exactly once by the marks of the format itself."""
