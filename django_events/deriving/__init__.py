"""Derived state: tables that a consumer keeps true by folding events, and how a site sees it.

A roll-up has figures by time and group, and is folded in the database, a range of ids at a time; a projection has the
rows of a model, and is folded in Python by batches. Both say up to which id they are true, count every event once, and
can be rebuilt beside the table that is served. What keeps them is an ordinary stream consumer. A site waits for its own
writes to be there, and takes snapshots of tables whose history began before their events.
"""
