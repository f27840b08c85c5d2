"""A small shop: the tests' project, the tutorial's example and the demo at once."""
