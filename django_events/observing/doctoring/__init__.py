"""Examinations of a database and of this process: each by itself, in a module for its theme; `examining` does them."""
