"""Files of events: an export in parts, and the journal that says which of them are whole. Spark or this process writes.

Nothing in this package imports Django or PySpark: what writes the files is given to it, see `export.Engine`.
"""
