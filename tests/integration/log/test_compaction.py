"""Compaction: the newest event of each key stays, whatever is read, written, erased or ended meanwhile."""

import pytest

from django_events import Draft, publish_many
from django_events.log import compaction
from django_events.log.segments import segments
from django_events.models import Event, Topic, TopicHead
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S14")]


def compact():
    return compaction.compact("default", Topic.objects.get(name="things"))


def test_the_newest_event_of_each_key_stays(make_topic):
    topic = make_topic("things", segment_size=100, compact=True)
    publish_many(topic, [Draft(value=n, key=str(n % 7)) for n in range(450)])
    transfer_all()
    done = compact()
    assert (done.segments, done.events) == (4, 393)
    head = TopicHead.objects.get(topic__name="things")
    assert (head.compacted_until, head.kept_events) == (400, 7)
    kept = list(Event.objects.since(topic).filter(id__lte=400).values_list("id", "value"))
    assert kept == [(n, n - 1) for n in range(394, 401)]
    assert Event.objects.since(topic, 400).count() == 50
    assert next((one.first, one.end) for one in segments("default", head.topic_id)) == (1, 401)
    assert dict(Event.objects.latest(topic).values_list("key", "value")) == {str(n % 7): n for n in range(443, 450)}
