"""`dumpdata` and `loaddata`: a log is no fixture, and the rest of a site is."""

import json

import pytest
from django.core import serializers
from django.core.management import call_command

from django_events import publish
from django_events.exceptions import Invalid
from django_events.models import BufferedEvent, Event, Topic
from testproject.shop.models import Product
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.django_db
WAY_OUT = r"Load the file with --exclude django_events, or .* manage.py dumpdata --exclude django_events"


@pytest.fixture
def dump(tmp_path, things):
    """A site with a product, an event in the log and one in the buffer, written by dumpdata."""
    Product.objects.create(sku="tea", price=1, on_shelf=1)
    publish(things, "logged")
    transfer_all()
    publish(things, "buffered")
    file = tmp_path / "site.json"
    call_command("dumpdata", output=str(file))
    Product.objects.all().delete()
    return str(file)


@pytest.mark.slow
def test_a_dump_of_a_whole_site_is_refused_with_the_way_out_and_changes_nothing(dump):
    before = list(Topic.objects.values()), Event.objects.count(), BufferedEvent.objects.count()

    with pytest.raises(Invalid, match=rf"^Problem installing fixture .*django_events\..*{WAY_OUT}"):
        call_command("loaddata", dump, verbosity=0)

    assert before == (list(Topic.objects.values()), Event.objects.count(), BufferedEvent.objects.count())
    assert not Product.objects.exists()


@pytest.mark.slow
def test_a_dump_of_a_whole_site_is_loaded_without_its_events(dump):
    call_command("loaddata", dump, exclude=["django_events"], verbosity=0)

    assert Product.objects.get().sku == "tea"
    assert Event.objects.of("things").count() == 1


def test_a_topic_of_another_database_does_not_take_the_place_of_one(things):
    """In a new database the ids of topics are in the order in which `migrate` made them there."""
    row = Topic.objects.get(name="things")
    [written] = json.loads(serializers.serialize("json", [row]))

    def load(**changed):
        text = json.dumps([{**written, **changed}])
        for one in serializers.deserialize("json", text):
            one.save()

    load()
    with pytest.raises(Invalid, match=WAY_OUT):
        load(fields={**written["fields"], "name": "others"})
    with pytest.raises(Invalid, match=WAY_OUT):
        load(pk=row.pk + 1_000)
    assert Topic.objects.get(pk=row.pk).name == "things"
