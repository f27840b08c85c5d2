"""Values as columns: a schema that was described makes a struct of them, and what doesn't fit is kept in `rescued`.

`descriptions` has the JSON Schemas, `shapes` says which type of Arrow holds what they describe. `blocks` reads many
values at once, `converting` one at a time, and `columns` puts the columns of a batch together. `evolution` says whether
two types can be one table's. Nothing here imports Django: Spark's executors run it.
"""
