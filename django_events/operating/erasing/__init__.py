"""Erasure of personal data: a module for each place that keeps some; `api` goes through all of them."""
