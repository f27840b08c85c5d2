"""Relays: the events of a topic go on to a broker.

`relaying` is the handler of every relay. What differs from broker to broker is a bridge, see `targets`: one class that
opens a connection, sends a batch, says what the target has, and closes. A site can write its own, and `target_promises`
checks it against a real broker.
"""
