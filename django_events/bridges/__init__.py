"""Bridges to brokers: relays send the events of a topic on.

`relaying` is the handler of every relay. What differs from broker to broker is a bridge, see `protocol`: one class
that opens a connection, sends a batch, says what the target has, and closes. A site can write its own.
"""
