"""Bridges to brokers: relays send the events of a topic on, inboxes take messages in.

Both get to a broker by what the settings have under its name, see `brokers`. `promises` checks what a bridge of a
site's own has to keep; `django_events.testing` offers that.
"""
