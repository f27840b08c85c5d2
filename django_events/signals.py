"""Signals of our own, for metrics and for glue. Receivers are called in the process where it happens.

    @receiver(event_dead_lettered)
    def alert(sender, consumer, event, error, **kwargs): ...

The sender is the declaration of the topic or the consumer. A receiver's error is logged by Django, and changes nothing.
None of them is sent across processes: a consumer is for that.

event_published      topic, type, count, using
    Python published so many events of one type, and their transaction is committed.
event_handled        consumer, topic, events, seconds, using
    A handler returned, and what it did is committed with the progress. `events` is what it got.
event_retried        consumer, event, error, pause, using
    An attempt failed, and there will be another one, `pause` later.
event_dead_lettered  consumer, event, error, using
    An event failed too often, and is a dead letter now.
events_expired       consumer, topic, partition, first, last, events, using
    Retention removed events that a consumer had not handled, as its topic is declared: `keep_unread=False`. Sent by
    the process that does maintenance; the sender is the consumer's name.
webhook_disabled     endpoint, topic, reason, using
    A webhook endpoint was disabled, because its receiver said 410, or nothing could be delivered for too long. Sent by
    the process that sends; `endpoint` and the sender are its name.
"""

from django.dispatch import Signal

event_published = Signal()
event_handled = Signal()
event_retried = Signal()
event_dead_lettered = Signal()
events_expired = Signal()
webhook_disabled = Signal()
