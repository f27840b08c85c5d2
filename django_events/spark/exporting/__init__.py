"""Spark writes the files of an export, and those of a stream."""
