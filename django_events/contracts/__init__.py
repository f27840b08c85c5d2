"""What events of a topic look like: their schemas, checked, read and rendered.

An app declares models by `topic(schemas=[…])`. `checking` has publishers keep to them, `reading` makes them of what is
in the log, whatever version that has; `files` keeps them as JSON Schemas in the site's repository, `compatibility` says
what a change of them breaks. `asyncapi` and `cloudevents` are other forms of the same. pydantic isn't
imported before there is a model: nearly all that is asked of one, its class answers.
"""
