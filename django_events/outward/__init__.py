"""Events for receivers outside of the site, over HTTP: webhooks.

`setting_up` is what a person or a program does to an endpoint, and `endpoints` what its worker knows of it.
`webhook_worker` claims its deliveries and has them sent, `sending` sends requests in one event loop, and `settling`
writes down what came of them. The rest is pure: what is signed, what is sent, where to, and what an answer means.
"""
