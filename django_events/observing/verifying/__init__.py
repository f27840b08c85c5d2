"""Proving the invariants on a whole database: a module for each kind of row; `proving` goes through all of them."""
