"""What a login at a broker has to be allowed to do, as the guides say it: no more is needed."""

import pytest
from django.test import override_settings

from django_events import Draft, jetstream, jetstream_source, rabbitmq_source, redis_source, redis_stream
from django_events import rabbitmq as to_rabbitmq
from django_events.operations import rewind
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import take_in, values
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20", "X21")]

LEAST = {"username": "least", "password": "hunter-two"}
LEAST_OF_RABBITMQ = {"userid": "least", "password": "hunter-two"}


@pytest.fixture
def least_of_redis(redis):
    """Make a login of Redis that may do just this."""
    with redis.client() as client:

        def login(keys, *commands):
            words = [f"+{command}" for command in commands]
            client.execute_command("ACL", "SETUSER", "least", "on", ">hunter-two", f"~{keys}", "-@all", *words)
            return override_settings(DJANGO_EVENTS={"BROKERS": {"redis": {**redis.options, **LEAST}}})

        yield login
        client.execute_command("ACL", "DELUSER", "least")


@pytest.fixture
def least_of_nats(nats, tmp_path):
    """Start NATS anew with a login that may do just this, beside one that may do all."""

    def login(*publish):
        rights = f"publish: [{', '.join(map('{!r}'.format, publish))}], subscribe: ['_INBOX.>']"
        conf = tmp_path / "nats.conf"
        conf.write_text(
            f"authorization {{ users: [{{user: least, password: hunter-two, permissions: {{{rights}}}}},"
            " {user: all, password: all}] }\nno_auth_user: all\n"
        )
        nats.kill()
        nats.launch("-c", str(conf))
        wait_until(nats.answers, what="NATS")
        servers = [f"nats://least:hunter-two@127.0.0.1:{nats.port}"]
        return override_settings(DJANGO_EVENTS={"BROKERS": {"nats": {**nats.options, "servers": servers}}})

    yield login
    nats.kill()
    nats.start()


def relay_twice(things, relay):
    """The second time, the broker is asked what it has."""
    fill_topic(things, 1, 2)
    assert serve_due(relay) == 2
    rewind(relay, to=1)
    fill_topic(things, 3)
    assert serve_due(relay) == 3


def test_a_relay_to_redis(things, make_relay, redis, least_of_redis):
    with least_of_redis("shop.*", "xadd", "xinfo|stream", "xrange", "xrevrange", "multi", "exec"):
        relay = make_relay(things, to=redis_stream("shop.things"), partitioned=False)
        relay_twice(things, relay)
    assert [one.address for one in redis.entries()] == ["things/1", "things/2", "things/3"]


def test_a_relay_to_jetstream(things, make_relay, nats, least_of_nats):
    nats.add_stream("THINGS-0", "shop.things.0")
    with least_of_nats("shop.things.>", "$JS.API.STREAM.INFO.THINGS-0", "$JS.API.STREAM.MSG.GET.THINGS-0"):
        relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
        relay_twice(things, relay)
    assert [one.address for one in nats.entries("THINGS")] == ["things/1", "things/2", "things/3"]


def test_an_inbox_from_redis(things, make_inbox, redis, least_of_redis):
    inbox = make_inbox(things, source=redis_source("bank.in"), transform=lambda one: Draft(value=one.json()))
    with redis.client() as client, least_of_redis("bank.*", "ping", "xinfo|stream", "xrange", "xread", "multi", "exec"):
        for number in (1, 2):
            client.xadd("bank.in", {"data": number})
            assert take_in(inbox) == 1
    assert values(things) == [1, 2]


def test_an_inbox_from_jetstream(things, make_inbox, nats, least_of_nats):
    nats.add_stream("BANK", "bank.in")
    inbox = make_inbox(things, source=jetstream_source("BANK"), transform=lambda one: Draft(value=one.json()))
    with least_of_nats("$JS.API.STREAM.INFO.BANK", "$JS.API.STREAM.MSG.GET.BANK"):
        for number in (1, 2):
            nats.publish("bank.in", b"%d" % number)
            assert take_in(inbox) == 1
    assert values(things) == [1, 2]


@pytest.fixture
def least_of_rabbitmq(rabbitmq):
    """Make a login of RabbitMQ with these rights to configure, to write and to read."""
    rabbitmq.control("add_user", *LEAST_OF_RABBITMQ.values())

    def login(configure, write, read):
        rabbitmq.control("set_permissions", "least", configure, write, read)
        options = {**rabbitmq.options, **LEAST_OF_RABBITMQ}
        return override_settings(DJANGO_EVENTS={"BROKERS": {"rabbitmq": options}})

    yield login
    rabbitmq.control("delete_user", "least")


@pytest.mark.slow
def test_a_relay_to_a_queue_of_rabbitmq(things, make_relay, rabbitmq, least_of_rabbitmq):
    with least_of_rabbitmq("^$", r"^amq\.default$", "^$"):
        fill_topic(things, 1, 2)
        assert serve_due(make_relay(things, to=to_rabbitmq("parcels"))) == 2
    assert [one.address for one in rabbitmq.entries()] == ["things/1", "things/2"]


@pytest.mark.slow
def test_a_relay_to_an_exchange_of_rabbitmq(things, make_relay, rabbitmq, least_of_rabbitmq):
    rabbitmq.declare("letters", exchange="shop", key="#")
    with least_of_rabbitmq("^$", "^shop$", "^$"):
        fill_topic(things, 1, 2)
        assert serve_due(make_relay(things, to=to_rabbitmq("any", exchange="shop"))) == 2
    assert [one.address for one in rabbitmq.entries("letters")] == ["things/1", "things/2"]
    rabbitmq.remove("letters")


@pytest.mark.slow
def test_an_inbox_from_a_queue_of_rabbitmq(things, make_inbox, rabbitmq, least_of_rabbitmq):
    rabbitmq.declare("vault")
    with least_of_rabbitmq("^$", "^$", "^vault$"):
        inbox = make_inbox(things, source=rabbitmq_source("vault"), transform=lambda one: Draft(value=one.json()))
        rabbitmq.publish("vault", b"1", b"2")
        assert take_in(inbox) == 2
    assert values(things) == [1, 2]
    rabbitmq.remove("vault")
