"""What happens in the shop."""

from django_events import topic

orders = topic("orders", partitions=8, timeline=True)
payments = topic("payments", partitions=4)
stock = topic("stock")
