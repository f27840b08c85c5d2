"""The processes that keep events moving."""
