"""Every model of the site has an outbox, and every table is captured."""

import pgtrigger
from django.apps import apps

from django_events import capture, outbox, topic

OURS = {"django_events", "pgtrigger"}

topic("outbox")
topic("captured")

for model in apps.get_models(include_auto_created=True):
    options = model._meta
    if options.app_label not in OURS and options.managed and not options.proxy:
        hidden = [field.attname for field in options.concrete_fields if field.attname == "changed"]
        outbox("outbox", exclude=hidden)(model)
        pgtrigger.register(*capture("captured", exclude=hidden))(model)
