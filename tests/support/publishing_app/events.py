"""What the models of this app publish to."""

from django_events import topic

library = topic("library", partitions=4)
drafts = topic("drafts")
lending = topic("lending")
accounts = topic("accounts", partitions=4)
shelves = topic("shelves")
captured = topic("captured")
