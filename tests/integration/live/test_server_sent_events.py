"""Server-sent events: by uvicorn and by Django's WSGI server, resumed exactly, and refused where they have to be."""

import asyncio
import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.core.exceptions import PermissionDenied
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.urls import path

from django_events import Draft, end_streams, end_streams_on_sigterm, publish_many, sse
from django_events.exceptions import Invalid
from django_events.live import server_sent_events, tailing
from django_events.maintaining.expiring import expire
from django_events.models import Topic
from django_events.received import ReceivedEvent
from tests.integration.live.test_listening import is_tailed, no_threads
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P10")]

PATIENT = 60.0


def authorize(request):
    if user := request.GET.get("user"):
        return {"keys": [f"{user}.*"]}
    if "refused" in request.GET:
        raise PermissionDenied
    return None if "stranger" in request.GET else {}


def shouted(event):
    if event.value == "bad":
        raise ValueError("It can't be shouted.")
    return None if event.value == "quiet" else f"{event.value}!\nTwice."


async def shouted_later(event):
    return None if event.value is None else {"said": f"{event.value['n']}!", "card": "4711"}


urlpatterns = [
    path("things/", sse("things", authorize=authorize)),
    path("both/", sse(["things", "lanes"], authorize=authorize)),
    path("shouted/", sse("things", authorize=authorize, transform=shouted)),
    path("clouds/", sse("things", authorize=authorize, form="cloudevent")),
    path("shouted-clouds/", sse("things", authorize=authorize, transform=shouted_later, form="cloudevent")),
    path("plain/", lambda request: HttpResponse("plain")),
]


def fill(topic, *values, **fields):
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


@contextmanager
def serving_asgi():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(get_asgi_application(), lifespan="off", log_level="warning", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            wait_until(lambda: server.started, what="uvicorn")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            end_streams()
            thread.join()


@contextmanager
def serving_wsgi():
    class Quiet(WSGIRequestHandler):
        def log_message(self, *arguments):
            pass

    server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    server.set_app(get_wsgi_application())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        end_streams()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(params=[serving_asgi, serving_wsgi], ids=["uvicorn", "wsgi"])
def port(request, make_topic):
    """It ends before the topics are dropped: its streams read them until then."""
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]), request.param() as port:
        yield port
    wait_until(no_threads, what="the end of the tailer")


@contextmanager
def streaming(port, where, last=None, method="GET"):
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENT)
    connection.request(method, where, headers={"Last-Event-ID": last} if last else {})
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def blocks(response):
    """What comes, by field, as far as it is dispatched or moves the position."""
    fields = {}
    while line := response.readline().decode():
        name, _, text = line.rstrip("\n").partition(": ")
        if line == "\n":
            yield fields
            fields = {}
        elif name in fields:
            fields[name] += f"\n{text}"
        else:
            fields[name] = text


def events(response, count):
    found = []
    for fields in blocks(response):
        if "data" in fields:
            found.append(fields)
        if len(found) == count:
            return found
    raise AssertionError(f"It ended after {found}.")


def test_events_are_sent_as_they_come_and_resumed_exactly(port, things, lanes):
    with streaming(port, "/both/") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert (response.headers["Cache-Control"], response.headers["X-Accel-Buffering"]) == ("no-cache", "no")
        first = next(blocks(response))
        assert (first["retry"], first["id"]) == ("2000", "things/0,lanes/0")
        fill(things, {"n": 1}, type="order.paid", key="7")
        fill(lanes, "a\nb")
        one, two = events(response, 2)
    assert (one["event"], one["id"]) == ("order.paid", "things/1,lanes/0")
    told = json.loads(one["data"])
    assert told.pop("logged_at")
    assert told == {"topic": "things", "id": 1, "type": "order.paid", "key": "7", "value": {"n": 1}}
    assert json.loads(two["data"])["value"] == "a\nb" and "event" not in two

    fill(things, 2)
    with streaming(port, "/both/", last=one["id"]) as response:
        assert {fields["id"] for fields in events(response, 2)} >= {"things/2,lanes/1"}
    with streaming(port, f"/both/?lastEventId={two['id']}") as response:
        [again] = events(response, 1)
        assert json.loads(again["data"])["value"] == 2


def test_each_user_gets_what_is_for_this_user(port, things):
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        fill(things, {"card": "4711"}, key="ann.1")
        fill(things, {"card": "0815"}, key="bob.1")
        with streaming(port, "/things/?user=bob", last="things/0") as response:
            [one] = events(response, 1)
    assert (one["id"], json.loads(one["data"])["value"]) == ("things/2", {"card": "•••"})


def test_what_is_sent_can_be_chosen_and_what_fails_is_left_out(port, things):
    fill(things, "quiet", "bad", "loud")
    with streaming(port, "/shouted/", last="things/0") as response:
        [one] = events(response, 1)
    assert (one["id"], one["data"]) == ("things/3", "loud!\nTwice.")


def test_events_can_be_cloudevents_without_masked_fields(port, things):
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card", "id"]}):
        fill(
            things, {"card": "4711", "n": 1}, type="order.paid", key="7", metadata={"schema_version": 2, "user": "ada"}
        )
        publish_many(things, [Draft(body=b"4711"), Draft(value={"n": 2})])
        transfer_all()
        with streaming(port, "/clouds/", last="things/0") as response:
            paid, body, _ = events(response, 3)
        with streaming(port, "/shouted-clouds/", last="things/0") as response:
            one, other = events(response, 2)
    assert (paid["event"], paid["id"], other["id"]) == ("order.paid", "things/1", "things/3")
    told = json.loads(paid["data"])
    assert told.pop("time").endswith("Z")
    attributes = {"specversion": "1.0", "id": "things/1", "source": "/things", "type": "order.paid", "subject": "7"}
    assert told == {**attributes, "schemaversion": "2", "data": {"card": "•••", "n": 1}}
    assert json.loads(body["data"])["data_base64"] is None
    told = json.loads(one["data"])
    assert (told["id"], told["data"]) == ("things/1", {"said": "1!", "card": "•••"})


def test_a_form_that_there_is_not_is_refused():
    with pytest.raises(Invalid, match="form is 'cloudevent_binary', expected 'json' or 'cloudevent'"):
        sse("things", authorize=authorize, form="cloudevent_binary")


def test_what_has_expired_is_told_and_it_goes_on(port, make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    fill(topic, *range(1, 151))
    assert expire("default", Topic.objects.get(name=topic.name)).segments == 1
    with streaming(port, "/things/", last="things/20") as response:
        gone, one = events(response, 2)
    assert gone["event"] == "expired" and "things/21 to things/100" in gone["data"]
    assert (gone["id"], one["id"]) == ("things/100", "things/101")


def test_a_log_that_is_another_one_is_told(port, things):
    with streaming(port, "/things/", last="things/5") as response:
        [gone] = events(response, 1)
        assert gone["event"] == "replaced"
        assert json.loads(gone["data"])["message"].startswith("The log is another one than before.")
        assert next(blocks(response))["id"] == "things/0"
        fill(things, 1)
        assert events(response, 1)[0]["id"] == "things/1"


@pytest.mark.parametrize(
    ("where", "method", "last", "status"),
    [
        ("/things/", "POST", None, 405),
        ("/things/", "GET", "nonsense", 400),
        ("/things/?stranger", "GET", None, 403),
        ("/things/?refused", "GET", None, 403),
    ],
)
def test_what_is_refused(port, things, where, method, last, status):
    with streaming(port, where, last=last, method=method) as response:
        assert response.status == status
        assert status != 400 or "'nonsense' is no position" in response.read().decode()


def test_a_process_has_so_many_streams_and_not_more(port, things):
    with override_settings(DJANGO_EVENTS={"LIVE_CONNECTIONS": 1}):
        with streaming(port, "/things/") as first:
            next(blocks(first))
            with streaming(port, "/things/") as second:
                assert (second.status, second.headers["Retry-After"]) == (503, "5")
            assert end_streams() == 1
            assert first.read() is not None
        wait_until(server_sent_events._streams.has_room, what="room")


def test_a_topic_that_the_view_sends_no_more_is_no_reason_to_refuse(port, things, lanes):
    fill(things, 1, 2)
    with streaming(port, "/things/", last="things/1,lanes/7") as response:
        [event] = events(response, 1)
    assert event["id"] == "things/2"


def test_a_response_that_is_never_sent_takes_no_place(things, rf):
    view = sse("things", authorize=lambda request: {})
    with override_settings(DJANGO_EVENTS={"LIVE_CONNECTIONS": 1}):
        for _ in range(3):
            assert view(rf.get("/")).status_code == 200


@pytest.mark.parametrize("factory", [RequestFactory, AsyncRequestFactory])
def test_a_response_has_its_place_before_it_is_sent(things, factory):
    """All browsers come at once after a deploy: none is counted as a stream yet when the last one is let in."""
    view = sse("things", authorize=lambda request: {})
    with override_settings(DJANGO_EVENTS={"LIVE_CONNECTIONS": 2}):
        made = [view(factory().get("/")) for _ in range(3)]
        assert [one.status_code for one in made] == [200, 200, 503]
        made[0].close()
        assert view(factory().get("/")).status_code == 200
        del made[:]
        assert view(factory().get("/")).status_code == 200


def test_one_that_is_ended_while_it_opens_sends_no_empty_position(things, rf):
    """An empty one would wipe the position that the browser has."""
    stream = sse("things", authorize=lambda request: {})(rf.get("/"))
    begin = next(content := iter(stream))
    stream.end()
    assert b"id:" not in begin + b"".join(content)


def test_a_stream_keeps_no_connection_of_its_request(things):
    """Under WSGI it would keep one for as long as a browser stays."""
    fill(things, 1)
    asked = []

    def counting(given):
        asked.append((connections["default"], Topic.objects.count()))
        return given.value if isinstance(given, ReceivedEvent) else {}

    views = type("Urls", (), {"urlpatterns": [path("", sse("things", authorize=counting, transform=counting))]})
    with (
        override_settings(ROOT_URLCONF=views, MIDDLEWARE=[]),
        serving_wsgi() as port,
        streaming(port, "/", last="things/0") as response,
    ):
        [event] = events(response, 1)
        wait_until(lambda: asked[1][0].connection is None, what="the end of the connection")
    assert event["data"] == "1"
    assert asked[0][0] is asked[1][0]


async def parts_of(where, count):
    """The parts of a stream until it has sent so many events, each with how often the event loop went round before."""
    rounds = 0

    async def go_round():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(go_round())
    response = sse("things", authorize=authorize)(AsyncRequestFactory().get(where))
    found, events_sent = [], 0
    try:
        async for part in response.streaming_content:
            found.append((rounds, part))
            events_sent += part.count(b"\ndata: ")
            if events_sent == count:
                return found
    finally:
        task.cancel()
        response.close()
    raise AssertionError(f"It ended after {found}.")


def test_all_else_in_the_event_loop_runs_between_the_parts_of_a_stream_that_is_behind(things, monkeypatch):
    """A few hundred streams would keep all other requests waiting for minutes."""
    monkeypatch.setattr(server_sent_events, "MOST_TOGETHER", 1)
    fill(things, *range(100))
    parts = asyncio.run(parts_of("/?lastEventId=things/0", 100))
    wait_until(no_threads, what="the end of the tailer")
    sent = [rounds for rounds, part in parts if b"data: " in part]
    assert len(sent) == len(set(sent)) == 100


def test_events_that_wait_together_are_sent_together(things, monkeypatch):
    monkeypatch.setattr(server_sent_events, "LONGEST_TURN", PATIENT)
    fill(things, *range(100))
    parts = [part for _, part in asyncio.run(parts_of("/?lastEventId=things/0", 100))]
    wait_until(no_threads, what="the end of the tailer")
    sent = [line for line in b"".join(parts).split(b"\n") if line.startswith(b"id: ")]
    assert sent[-100:] == [f"id: things/{n}".encode() for n in range(1, 101)]
    assert max(part.count(b"data: ") for part in parts) > 1


def test_what_is_ready_does_not_wait_for_what_the_next_event_waits_for(things):
    async def sent():
        got_first = asyncio.Event()

        async def slow(event):
            if event.value == 2:
                await got_first.wait()
            return {"n": event.value}

        request = AsyncRequestFactory().get("/?lastEventId=things/0")
        response = sse("things", authorize=authorize, transform=slow)(request)
        found = b""
        try:
            async with asyncio.timeout(PATIENT):
                async for part in response.streaming_content:
                    found += part
                    if b'{"n": 1}' in found:
                        got_first.set()
                    if b'{"n": 2}' in found:
                        return found
        finally:
            response.close()
        raise AssertionError(f"It ended after {found!r}.")

    fill(things, 1, 2)
    lines = asyncio.run(sent()).split(b"\n")
    wait_until(no_threads, what="the end of the tailer")
    assert [line for line in lines if line.startswith(b"data: ")] == [b'data: {"n": 1}', b'data: {"n": 2}']


@pytest.fixture
def handlers(monkeypatch):
    """Handlers of signals as a server may have set them; those of the test run come back."""
    monkeypatch.setattr(server_sent_events, "_is_wanted", False)
    monkeypatch.setattr(server_sent_events, "_ended_by_signal", {})
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_the_process_ignores_ends_no_stream():
    """A process in the background of a shell ignores SIGINT, gets it with all others at Ctrl-C, and goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_streams_on_sigterm()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert callable(signal.getsignal(signal.SIGTERM))


@pytest.mark.usefixtures("handlers")
def test_a_server_that_loads_the_site_in_another_thread_starts():
    """Django's runserver does."""
    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(end_streams_on_sigterm).result()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_streams_that_are_ended_come_back_without_loss(port, things):
    seen, last = [], "things/0"
    for n in range(10):
        fill(things, n, n + 100)
        with streaming(port, "/things/", last=last) as response:
            for fields in events(response, 1 + n % 2):
                seen.append(json.loads(fields["data"])["value"])
                last = fields["id"]
            end_streams()
    with streaming(port, "/things/", last=last) as response:
        seen += [json.loads(one["data"])["value"] for one in events(response, 20 - len(seen))]
    assert seen == [value for n in range(10) for value in (n, n + 100)]
    connections.close_all()


@pytest.mark.parametrize("form", ["json", "cloudevent"])
def test_the_text_of_an_event_is_made_once_for_all_streams_that_may_see_it(things, monkeypatch, form):
    """Each stream has its own filter and its own position; what `transform` makes is made for each."""
    made = []
    kind = "_as_it_is" if form == "json" else "_as_cloudevent"
    make = getattr(server_sent_events, kind)
    monkeypatch.setattr(server_sent_events, kind, lambda event: made.append(event.id) or make(event))
    begun = asyncio.Event()

    async def sent(where, count, **options):
        response = sse("things", authorize=authorize, form=form, **options)(AsyncRequestFactory().get(where))
        found, waits = b"", True
        try:
            async with asyncio.timeout(PATIENT):
                async for part in response.streaming_content:
                    found += part
                    if waits and b"id: things/0" in found:
                        waits = False
                        opened.append(where)
                        if len(opened) == 5:
                            begun.set()
                    if found.count(b"\ndata: ") == count:
                        return found
        finally:
            response.close()

    opened = []

    async def all_of_them():
        asked = [("/", 4), ("/", 4), ("/?user=1", 2), ("/?user=2", 2)]
        tasks = [asyncio.create_task(sent(*one)) for one in asked]
        tasks.append(asyncio.create_task(sent("/", 4, transform=lambda event: f"for one: {event.id}")))
        await begun.wait()
        await sync_to_async(fill_for_two)()
        return await asyncio.gather(*tasks)

    def fill_for_two():
        wait_until(lambda: is_tailed(*tailing._tailers["default"].listeners), what="the tailer, which reads for all")
        drafts = [Draft(value={"n": n, "card": "4711"}, key=f"{n % 2 + 1}.order") for n in range(1, 5)]
        publish_many(things, drafts)
        transfer_all()
        connections.close_all()  # this thread's

    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        first, second, of_one, of_two, transformed = asyncio.run(all_of_them())
    wait_until(no_threads, what="the end of the tailer")
    assert sorted(made) == [1, 2, 3, 4]
    name = "value" if form == "json" else "data"
    told, told_too, told_one, told_two = (
        [json.loads(line[6:])[name] for line in text.decode().split("\n") if line.startswith("data: ")]
        for text in (first, second, of_one, of_two)
    )
    assert told == told_too == [{"n": n, "card": "•••"} for n in range(1, 5)]
    assert (told_one, told_two) == (told[1::2], told[0::2])
    assert transformed.count(b"for one: ") == 4
    assert server_sent_events._texts._texts == {}
