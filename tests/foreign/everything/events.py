"""Every table of the site is captured, and every model has an outbox too where that is asked for."""

import os

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
        if "outbox" in os.environ["FOREIGN_EVENTS"]:
            outbox("outbox", exclude=hidden)(model)
        pgtrigger.register(*capture("captured", exclude=hidden))(model)
