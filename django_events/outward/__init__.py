"""Events for receivers outside of the site, over HTTP: webhooks.

`endpoints` is what a person or a program does to an endpoint, `webhook_worker` claims its deliveries and settles them,
`sending` sends requests in one event loop. The rest is pure: what is signed, what is sent, where to, and what follows
from an answer.
"""
