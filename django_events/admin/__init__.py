"""The admin: see everything, and repair what broke. Django finds it by itself where its admin is installed."""

from django.contrib import admin

from django_events import models
from django_events.admin.clocks import ClockAdmin
from django_events.admin.consumers import ConsumerAdmin
from django_events.admin.dead_letters import DeadLetterAdmin
from django_events.admin.inboxes import InboxAdmin
from django_events.admin.overview import OverviewAdmin
from django_events.admin.records import InterventionAdmin, MaintenanceStepAdmin
from django_events.admin.scheduled import ScheduledEventAdmin
from django_events.admin.topics import TopicAdmin
from django_events.admin.webhooks import WebhookEndpointAdmin

admin.site.register(models.Overview, OverviewAdmin)
admin.site.register(models.Topic, TopicAdmin)
admin.site.register(models.Consumer, ConsumerAdmin)
admin.site.register(models.DeadLetter, DeadLetterAdmin)
admin.site.register(models.ScheduledEvent, ScheduledEventAdmin)
admin.site.register(models.Clock, ClockAdmin)
admin.site.register(models.WebhookEndpoint, WebhookEndpointAdmin)
admin.site.register(models.Inbox, InboxAdmin)
admin.site.register(models.Intervention, InterventionAdmin)
admin.site.register(models.MaintenanceStep, MaintenanceStepAdmin)
