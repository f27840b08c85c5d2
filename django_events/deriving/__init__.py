"""Derived state: tables that a consumer keeps true by folding events, and how they are made anew.

A derived table says up to which id it is true, counts every event once, and can be rebuilt beside the one that is
served. What keeps it is an ordinary stream consumer.
"""
