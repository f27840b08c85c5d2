"""Bridges to brokers: relays send the events of a topic on, inboxes take messages in.

`relaying` is the handler of every relay. What differs from broker to broker is a bridge, see `protocol`: one class
that opens a connection, sends a batch, says what the target has, and closes. A site can write its own.

`inbox_worker` is the worker of every inbox. What differs is a source, see `sources`: one class that opens a connection,
says where to begin, reads behind a place, waits, and closes. `log_reader` reads the log of another site; where an inbox
keeps the ids, `log.mirroring` writes what it read.

`target_promises` and `source_promises` check both against a real broker; `django_events.testing` offers them.
"""
