"""Measuring what a database can do, on a topic that is made for it and dropped afterwards."""
