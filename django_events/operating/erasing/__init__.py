"""Erasure of personal data: a module for each kind of row that has some; `api` goes through all of them."""
