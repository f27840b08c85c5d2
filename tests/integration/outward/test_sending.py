"""Requests to real servers, hostile ones among them: each ends with an answer, and none holds up another."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue

import pytest
import trustme

from django_events.outward.addresses import networks
from django_events.outward.exchange import Request, RequestLimits, WebhookAnswer
from django_events.outward.sending import LONGEST_EXCERPT, Sender, send_once
from tests.support.processes import wait_until
from tests.support.receivers import Receiver

LOOPBACK = networks(["127.0.0.0/8", "::1/128"])
HANGING = 300  # requests; each has two files of this process, which may have 1,024 open


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_receiver(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Receiver]:
    """With a certificate of `localhost`, by an authority that this process trusts."""
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with Receiver(tls=context) as receiver:
        yield receiver


def ask(url: str, *, seconds: float = 30, allowed=LOOPBACK) -> WebhookAnswer:
    return send_once(Request(url, {"webhook-id": "things/1"}, b"{}"), RequestLimits(seconds=seconds, allowed=allowed))


def test_an_answer_has_its_status_and_the_begin_of_its_body(receiver):
    answer = ask(receiver.url("/status/202"))

    assert (answer.status, answer.excerpt, answer.error) == (202, "this is 202", "")
    assert receiver.requests[-1].body == b"{}"
    assert receiver.requests[-1].headers["user-agent"] == "django-events"
    assert "cookie" not in receiver.requests[-1].headers


@pytest.mark.requirement("P10")
def test_a_redirect_is_an_answer_and_is_not_followed(receiver):
    answer = ask(receiver.url("/moved"))

    assert answer.status == 302
    assert not answer.delivered


@pytest.mark.slow
@pytest.mark.requirement("P10")
@pytest.mark.parametrize(
    ("path", "status"), [("/hang", None), ("/drip-head", None), ("/drip", 200), ("/huge", 200), ("/half", None)]
)
def test_a_request_ends_in_its_time_whatever_the_receiver_does(receiver, path, status):
    answer = ask(receiver.url(path), seconds=1)

    assert answer.status == status
    assert len(answer.excerpt) <= LONGEST_EXCERPT
    assert bool(answer.error) == (status is None)


def test_a_receiver_that_is_not_there_is_said(receiver):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        answer = ask(f"http://127.0.0.1:{free.getsockname()[1]}/")

    assert (answer.status, "ClientConnectorError" in answer.error) == (None, True)


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/ok?token=abc", "http://127.0.0.1:99999/ok?token=abc"])
def test_no_error_repeats_the_secrets_of_a_url(receiver, url):
    receiver.behave["/ok?token=abc"] = "nonsense"
    answer = ask(url.format(port=receiver.port))

    assert answer.status is None
    assert answer.error
    assert "abc" not in answer.error


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "127.1", "0"])
def test_no_request_reaches_loopback_unless_allowed(receiver, host):
    before = receiver.connections
    answer = ask(f"http://{host}:{receiver.port}/ok", allowed=())

    assert answer.status is None
    assert answer.error
    assert receiver.connections == before


@pytest.mark.requirement("P10")
def test_a_name_is_looked_up_once_and_that_address_is_connected_to(receiver, monkeypatch):
    """A second answer, of a name that is about to point inside, is never asked for."""
    answers = SimpleQueue[str]()
    for address in ("127.0.0.1", "127.0.0.2"):
        answers.put(address)

    def looked_up(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.get(block=False), port))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    answer = ask(f"http://partner.example:{receiver.port}/ok", allowed=networks(["127.0.0.1/32"]))

    assert answer.status == 204
    assert answers.get() == "127.0.0.2"
    assert receiver.requests[-1].headers["host"] == f"partner.example:{receiver.port}"


@pytest.mark.requirement("P10")
def test_a_name_with_one_address_inside_is_refused_for_all_of_them(receiver, monkeypatch):
    def looked_up(host, port, *args, **kwargs):
        found = ("127.0.0.1", "169.254.169.254")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    before = receiver.connections
    answer = ask(f"http://partner.example:{receiver.port}/ok", allowed=networks(["127.0.0.1/32"]))

    assert "partner.example has the address 169.254.169.254, which is link-local" in answer.error
    assert receiver.connections == before


@pytest.mark.requirement("P10")
def test_tls_verifies_the_name_of_the_url(tls_receiver):
    assert ask(tls_receiver.url("/ok", host="localhost")).status == 204

    wrong = ask(tls_receiver.url("/ok", host="127.0.0.1"))

    assert "CERTIFICATE_VERIFY_FAILED" in wrong.error
    assert wrong.status is None


def test_a_certificate_of_an_authority_that_is_not_trusted_is_refused(tls_receiver, monkeypatch, tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "another.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "another.pem"))

    assert "CERTIFICATE_VERIFY_FAILED" in ask(tls_receiver.url("/ok", host="localhost")).error


@pytest.mark.requirement("P10")
def test_a_fast_receiver_does_not_wait_for_slow_ones():
    answers = SimpleQueue[tuple[str, WebhookAnswer]]()
    with Receiver() as slow, Receiver() as fast, closing(Sender(RequestLimits(seconds=60, allowed=LOOPBACK))) as sender:
        for number in range(HANGING):
            sender.send(
                Request(slow.url("/hang"), {"webhook-id": f"slow/{number}"}, b"{}"),
                lambda one: answers.put(("slow", one)),
            )
        for number in range(100):
            sender.send(
                Request(fast.url("/ok"), {"webhook-id": f"fast/{number}"}, b"{}"),
                lambda one: answers.put(("fast", one)),
            )
        first = [answers.get(timeout=60)[0] for _ in range(100)]
        slow.release()
        rest = [answers.get(timeout=60) for _ in range(HANGING)]

    assert first == ["fast"] * 100, "a slow receiver was in front of a fast one"
    assert [(whose, one.status) for whose, one in rest] == [("slow", 204)] * HANGING
    assert sorted(slow.ids()) == sorted(f"slow/{number}" for number in range(HANGING))


def test_connections_are_used_again(receiver):
    answered = SimpleQueue[WebhookAnswer]()
    before = receiver.connections
    with closing(Sender(RequestLimits(seconds=30, allowed=LOOPBACK))) as sender:
        for _ in range(20):
            sender.send(Request(receiver.url("/ok"), {"webhook-id": "things/1"}, b"{}"), answered.put)
            assert answered.get(timeout=30).status == 204

    assert receiver.connections == before + 1


def test_a_sender_that_is_closed_leaves_no_thread_and_refuses_more(receiver):
    sender = Sender(RequestLimits(seconds=30, allowed=LOOPBACK))
    sender.send(Request(receiver.url("/hang"), {"webhook-id": "things/1"}, b"{}"), lambda answer: None)
    sender.close()
    sender.close()

    assert not [one for one in threading.enumerate() if one.name == "django_events webhooks"]
    with pytest.raises(RuntimeError, match="has ended"):
        sender.send(Request(receiver.url("/ok"), {}, b"{}"), lambda answer: None)


def test_a_name_that_hangs_keeps_one_thread_however_often_it_is_tried(receiver, monkeypatch):
    may_answer, looking = threading.Event(), []
    usual = socket.getaddrinfo

    def looked_up(host, port, *args, **kwargs):
        looking.append(host)
        if host == "hangs.example":
            assert may_answer.wait(60)
        return usual("127.0.0.1", port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    limits = RequestLimits(seconds=0.2, allowed=LOOPBACK)
    answers = SimpleQueue()
    with closing(Sender(limits)) as sender:
        for _ in range(5):
            sender.send(Request(receiver.url(host="hangs.example"), {}, b"{}"), answers.put)
            assert answers.get(timeout=60).error == "No answer within 0.2 seconds."
        assert looking == ["hangs.example"]
        may_answer.set()

        def is_delivered():
            sender.send(Request(receiver.url(host="hangs.example"), {}, b"{}"), answers.put)
            return answers.get(timeout=60).delivered

        wait_until(is_delivered, what="the name to be known")
