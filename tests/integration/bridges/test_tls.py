"""Relays and inboxes by TLS: with the authority that signed the server's certificate, and none without it."""

import ssl
from contextlib import closing
from typing import Any, NamedTuple

import pytest
import trustme
from django.test import override_settings

from django_events import Draft, jetstream, jetstream_source, redis_source, redis_stream
from tests.support.brokers import NATS, REDIS, Nats, Redis
from tests.support.fix_consumers import dead_letters, end_pauses, position_of, serve_due
from tests.support.fix_inboxes import error, row, take_in, values
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.slow]

SECRET = "tops3cret"


class Secured(NamedTuple):
    """A server that talks by TLS alone, and wants a password."""

    server: Any
    to: Any
    source: Any
    knowing: dict[str, Any]  # options with the authority
    ignorant: dict[str, Any]


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """The authority that signs, and a server's certificate with its key in front."""
    folder, authority = tmp_path_factory.mktemp("pems"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return str(folder / "authority.pem"), str(folder / "server.pem")


@pytest.fixture
def secured_redis(pems, tmp_path):
    if REDIS is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    authority, certificate = pems

    class WithTls(Redis):
        def start(self):
            self.url = f"rediss://:{SECRET}@localhost:{self.port}/0?ssl_ca_certs={authority}"
            self.more = {
                "port": 0,
                "tls-port": self.port,
                "tls-cert-file": certificate,
                "tls-key-file": certificate,
                "tls-ca-cert-file": authority,
                "tls-auth-clients": "no",
                "requirepass": SECRET,
            }
            super().start()

    with closing(WithTls(tmp_path)) as server:
        ignorant = {**server.options, "host": "localhost", "password": SECRET, "ssl": True}
        knowing = {**ignorant, "ssl_ca_certs": authority}
        yield Secured(server, redis_stream("shop.things"), redis_source("bank"), knowing, ignorant)


@pytest.fixture
def secured_nats(pems, tmp_path):
    if NATS is None:
        pytest.skip("nats-server is not installed: apt-get install nats-server")
    authority, certificate = pems
    trusting = ssl.create_default_context(cafile=authority)

    class WithTls(Nats):
        def start(self):
            self.login = {"tls": trusting, "tls_hostname": "localhost", "user": "shop", "password": SECRET}
            words = ["--user", "shop", "--pass", SECRET]
            self.launch("--tls", "--tlscert", certificate, "--tlskey", certificate, *words)
            wait_until(self.answers, what="NATS")

    with closing(WithTls(tmp_path)) as server:
        server.add_stream("THINGS-0", "shop.things.0")
        server.add_stream("BANK", "bank")
        login = {"user": "shop", "password": SECRET}
        ignorant = {**server.options, **login, "servers": [f"tls://localhost:{server.port}"]}
        knowing = {**ignorant, "tls": trusting}
        to, source = jetstream("shop.things", stream="THINGS"), jetstream_source("BANK")
        yield Secured(server, to, source, knowing, ignorant)


@pytest.fixture(params=["redis", "nats"])
def secured(request):
    return request.getfixturevalue(f"secured_{request.param}")


def told(options):
    return override_settings(DJANGO_EVENTS={"BROKERS": {"redis": options, "nats": options}})


@pytest.mark.requirement("X20")
def test_a_relay_sends_by_tls_to_the_server_whose_certificate_it_knows_alone(things, make_relay, secured, caplog):
    relay = make_relay(things, to=secured.to)
    fill_topic(things, 1, 2)
    with told(secured.ignorant):
        serve_due(relay)
        reason = position_of(relay).error
        assert (position_of(relay).position, dead_letters(relay)) == (0, [])
        end_pauses(relay)
    with told(secured.knowing):
        assert serve_due(relay) == 2

    assert [one.address for one in secured.server.entries(*everything(secured))] == ["things/1", "things/2"]
    assert "certificate verify failed" in reason.lower()
    assert SECRET not in reason + caplog.text


@pytest.mark.requirement("X21")
def test_an_inbox_reads_by_tls_from_the_server_whose_certificate_it_knows_alone(things, make_inbox, secured, caplog):
    inbox = make_inbox(things, source=secured.source, transform=lambda message: Draft(value=message.json()))
    if isinstance(secured.server, Nats):
        secured.server.publish("bank", b"7")
    else:
        with secured.server.client() as client:
            client.xadd("bank", {"data": "7"})
    with told(secured.ignorant):
        take_in(inbox)
        reason = error()
    with told(secured.knowing):
        assert take_in(inbox) == 1

    assert (values(things), row().error) == ([7], "")
    assert "certificate verify failed" in reason.lower()
    assert SECRET not in reason + caplog.text


def everything(secured):
    return ["THINGS"] if isinstance(secured.server, Nats) else ["shop.*"]
