"""Inboxes: messages of a broker, or the log of another site, become events of a topic.

`inbox_worker` is the worker of an inbox, `queue_worker` of one that receives from a queue, and `mirror_worker` of one
that keeps the ids of another site's log; `serving` says which. What differs from broker to broker is a source, see
`sources`: one class that opens a connection, says where to begin, reads behind a place, waits, and closes. A site can
write its own, and `source_promises` checks it against a real broker. `log_reader` reads the log of another site; where
an inbox keeps the ids, `log.mirroring` writes what it read.
"""
