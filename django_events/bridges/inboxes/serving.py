"""Which worker serves an inbox: by whether its source is a queue, and whether it keeps the ids of another site's log.

worker = worker_of("default", payments_in)
run(worker, stop)
"""

from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.bridges.inboxes.mirror_worker import MirrorWorker
from django_events.bridges.inboxes.queue_worker import QueueInboxWorker
from django_events.declarations import DeclaredInbox


def worker_of(using: str, inbox: DeclaredInbox, *, once: bool = False) -> InboxWorker:
    """The worker of an inbox on one database."""
    kind = InboxWorker
    if getattr(inbox.source, "is_queue", False):
        kind = QueueInboxWorker
    elif inbox.keep_ids:
        kind = MirrorWorker
    return kind(using, inbox, once=once)
