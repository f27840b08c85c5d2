"""Consumers for the tests of the commands that run them."""
