"""Relays to SQS and SNS, as moto's server plays them: what is sent, what is refused, and what an outage costs."""

import json
import random
import re
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

import pytest
from django.test import override_settings
from django.utils import timezone

from django_events import Backoff, Draft, publish_many, sns, sqs
from django_events.bridges.relays import aws as shared
from django_events.bridges.relays import relaying as relaying_module
from django_events.bridges.relays.answers import Unroutable
from django_events.bridges.relays.aws import AwsBridge, group_of, once_of, text_of
from django_events.bridges.relays.aws_batches import RequestPace
from django_events.bridges.relays.relaying import Relaying
from django_events.bridges.relays.targets import RelayMessage, Route, TargetUnavailable
from django_events.consuming.handlers import FailedAt
from django_events.exceptions import MessageRefused
from django_events.operations import rewind
from tests.support.fix_consumers import dead_letters, end_pauses, exhaust, position_of, positions, run_once, serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.requirement("X20")]


def message(number=1, *, key="k", body=b"1", to="q.fifo", media_type="application/json"):
    now = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    attributes = {"id": f"things/{number}", "source": "/things", "time": now, "relay": "relay"}
    return RelayMessage(number, f"things/{number}", Route(to), key, attributes, {"content-type": media_type}, body)


class Scripted(AwsBridge):
    """Answers as AWS may, which moto does not: by a list, or by a function of the messages in a request."""

    def __init__(self, *answers, named="q.fifo"):
        super().__init__("aws", named)
        self.answers = list(answers)
        self.asked: list[list[int]] = []
        self.lock = threading.Lock()

    text = "said"

    def entry(self, text, attributes):
        return {"MessageBody": text}

    def ask(self, address, entries):
        indexes = [int(entry["Id"]) for entry in entries]
        with self.lock:
            self.asked.append(indexes)
            answer = self.answers.pop(0) if self.answers and not callable(self.answers[0]) else self.answers[:1]
        if isinstance(answer, list):
            answer = answer[0](indexes) if answer else {}
        if isinstance(answer, Exception):
            raise answer
        failed = [
            {"Id": one["Id"], "Code": answer[int(one["Id"])], "SenderFault": True, "Message": self.text}
            for one in entries
            if int(one["Id"]) in answer
        ]
        told = {one["Id"] for one in failed}
        return {"Successful": [{"Id": one["Id"]} for one in entries if one["Id"] not in told], "Failed": failed}


class Refusal(Exception):
    def __init__(self, code, text=""):
        super().__init__(f"{code}: {text}")
        self.response = {"Error": {"Code": code}}


def test_a_request_has_each_message_group_once_and_ten_messages():
    bridge = Scripted()
    keys = ["a", "a", "b", "a", *map(str, range(10))]
    assert bridge.send([message(n, key=key) for n, key in enumerate(keys)]) == [None] * len(keys)

    assert sorted(bridge.asked) == [[0, 2, 4, 5, 6, 7, 8, 9, 10, 11], [1], [3], [12, 13]]
    assert bridge.asked.index([1]) < bridge.asked.index([3])


def test_a_queue_without_order_gets_requests_of_ten():
    bridge = Scripted()
    bridge.send([message(n, key="a", to="q") for n in range(23)])
    assert sorted(len(one) for one in bridge.asked) == [3, 10, 10]


def test_a_request_is_no_larger_than_aws_takes_and_nothing_passes_in_its_group():
    bridge = Scripted()
    large = b'"%s"' % (b"x" * 200_000)
    bridge.send(
        [message(1, key="a", body=large), message(2, key="b", body=large), message(3, key="b"), message(4, key="c")]
    )
    assert sorted(bridge.asked) == [[0, 3], [1], [2]]
    assert bridge.asked.index([1]) < bridge.asked.index([2])


def test_requests_go_side_by_side_as_many_as_the_client_has_connections():
    together = threading.Barrier(10)  # which breaks where fewer are under way
    under_way, most = set(), []

    def answer(indexes):
        under_way.add(indexes[0])
        most.append(len(under_way))
        together.wait(30)
        under_way.discard(indexes[0])
        return {}

    bridge = Scripted(answer)
    assert bridge.send([message(n, key="a", to="q") for n in range(500)]) == [None] * 500
    assert len(bridge.asked) == 50
    assert max(most) <= 10


def test_the_settings_say_how_many_requests_go_side_by_side():
    from botocore.config import Config

    options = {"region_name": "eu-west-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    for more, expected in ({}, 10), ({"config": Config(max_pool_connections=3)}, 3):
        with override_settings(DJANGO_EVENTS={"BROKERS": {"aws": {**options, **more}}}):
            bridge = sqs("q").bridge()
            bridge.open()
            assert bridge._pace.at_once == expected
            bridge.close()


@pytest.mark.parametrize("fails", [False, True])
def test_of_a_group_one_request_is_under_way_and_nothing_is_sent_behind_what_has_no_answer(fails):
    dice, keys = random.Random(1), [str(n) for n in range(23)]
    messages = [message(n, key=dice.choice(keys)) for n in range(300)]
    under_way: dict[str, int] = {}
    there: dict[str, list[int]] = {key: [] for key in keys}
    lock = threading.Lock()

    def answer(indexes):
        groups = [messages[index].key for index in indexes]
        with lock:
            assert not under_way.keys() & set(groups)
            under_way.update(dict.fromkeys(groups, 1))
        time.sleep(dice.random() / 500)  # so that they end in another order
        failed = {index: "InternalError" for index in indexes if fails and index % 97 == 96}
        with lock:
            for index in set(indexes) - failed.keys():
                there[messages[index].key].append(index)
            for group in groups:
                del under_way[group]
        return failed

    bridge = Scripted(answer)
    if not fails:
        assert bridge.send(messages) == [None] * 300
        assert {key: [n for n in range(300) if messages[n].key == key] for key in keys} == there
        return
    with pytest.raises(TargetUnavailable, match="InternalError") as raised:
        bridge.send(messages)
    accepted = {index for indexes in there.values() for index in indexes}
    told = {*range(raised.value.acknowledged), *(int(one.rpartition("/")[2]) for one in raised.value.ahead)}
    assert told == accepted
    assert len(accepted) < 300
    for key, indexes in there.items():
        assert indexes == [n for n in range(300) if messages[n].key == key][: len(indexes)]


@pytest.mark.parametrize("whole", [True, False])
def test_where_aws_wants_fewer_requests_fewer_go_side_by_side_and_nothing_is_sent_twice(monkeypatch, whole):
    monkeypatch.setattr(shared, "SLOWER_AFTER", 0.0)
    under_way, taken, refused = threading.Semaphore(3), [], []

    def answer(indexes):
        if not under_way.acquire(blocking=False):
            refused.extend(indexes)
            return Refusal("RequestThrottled") if whole else dict.fromkeys(indexes, "ThrottlingException")
        try:
            time.sleep(0.05)  # the others come meanwhile
            taken.extend(indexes)
            return {}
        finally:
            under_way.release()

    bridge = Scripted(answer)
    assert bridge.send([message(n, key="a", to="q") for n in range(300)]) == [None] * 300
    assert sorted(taken) == list(range(300))
    assert refused
    assert bridge._pace.at_once <= 3


def test_where_aws_does_not_answer_a_batch_fails_when_one_request_has_waited_in_full():
    """Also where it is asked for the URL of the queue, as all requests of a batch do at first."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "region_name": "eu-west-1",
            "aws_access_key_id": "x",
            "aws_secret_access_key": "y",
            "endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "timeout": 1.0,
        }
        with override_settings(DJANGO_EVENTS={"BROKERS": {"aws": options}}):
            bridge = sqs("q").bridge()
            bridge.open()
            began = time.monotonic()
            with pytest.raises(TargetUnavailable, match="ReadTimeoutError"):
                bridge.send([message(n, key="a", to="q") for n in range(200)])
            assert time.monotonic() - began < 5.0
            bridge.close()


def test_where_aws_wants_less_than_one_request_at_a_time_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(shared, "SLOWER_AFTER", 0.0)
    bridge = Scripted(lambda indexes: Refusal("RequestThrottled"))
    with pytest.raises(TargetUnavailable, match="RequestThrottled") as raised:
        bridge.send([message(n, to="q") for n in range(300)])
    assert raised.value.asked_for == shared.THROTTLED_FOR
    assert len(bridge.asked) == 10 + 5 + 2 + 1


def test_more_requests_go_side_by_side_again_after_a_while():
    pace = RequestPace(4)
    pace.slow_down()
    assert pace.at_once == 2
    for expected in (2, 3, 4, 4):
        for _ in range(99):
            pace.note_answer()
        assert pace.at_once == expected
        pace.note_answer()
    pace.slow_down()
    pace.slow_down()
    pace.slow_down()
    assert pace.at_once == 1


def test_an_error_that_is_no_limit_is_said_although_aws_wants_less_too():
    bridge = Scripted(lambda indexes: Refusal("RequestThrottled" if indexes[0] % 20 else "InternalError"))
    with pytest.raises(TargetUnavailable) as raised:
        bridge.send([message(n, to="q") for n in range(100)])
    assert raised.value.asked_for == shared.THROTTLED_FOR
    assert len(bridge.asked) == 10


def test_nothing_of_a_group_is_sent_behind_what_failed():
    bridge = Scripted({1: "InternalError"})
    with pytest.raises(TargetUnavailable, match="InternalError: said") as raised:
        bridge.send([message(0, key="a"), message(1, key="b"), message(2, key="c"), message(3, key="b")])

    assert bridge.asked == [[0, 1, 2]]
    assert (raised.value.acknowledged, raised.value.ahead) == (1, {"things/2"})


def test_what_is_refused_for_itself_holds_up_nothing():
    bridge = Scripted({1: "InvalidMessageContents"})
    first, second, third = bridge.send([message(n, key="a", to="q") for n in range(3)])
    assert (first, third) == (None, None)
    assert isinstance(second, MessageRefused)


def test_a_fault_of_the_sender_that_no_message_has_is_an_outage():
    with pytest.raises(TargetUnavailable, match="KmsDisabled"):
        Scripted({0: "AWS.KmsDisabled"}).send([message()])


def test_a_request_that_is_refused_as_a_whole_is_sent_one_by_one():
    def answer(indexes):
        if len(indexes) > 1:
            return Refusal("AWS.SimpleQueueService.BatchRequestTooLong")
        return Refusal("InvalidParameterValue") if indexes == [1] else {}

    bridge = Scripted(answer)
    answers = bridge.send([message(n, key=str(n)) for n in range(3)])
    assert sorted(bridge.asked) == [[0], [0, 1, 2], [1], [2]]
    assert [type(one) for one in answers] == [type(None), MessageRefused, type(None)]


@pytest.mark.parametrize(
    "code",
    [
        "RequestThrottled",
        "AWS.SimpleQueueService.KmsThrottled",
        "KMS.ThrottlingException",
        "Throttled",
        "KMSThrottling",
    ],
)
def test_aws_is_left_alone_for_a_while_if_it_wants_less(code):
    with pytest.raises(TargetUnavailable) as raised:
        Scripted(Refusal(code)).send([message()])
    assert raised.value.asked_for == shared.THROTTLED_FOR


@pytest.mark.parametrize("service", ["sqs", "sns"])
def test_all_codes_by_which_a_service_wants_less_are_known(service):
    from botocore.session import get_session

    model = get_session().get_service_model(service)
    errors = [model.shape_for(name).metadata for name in model.shape_names if "hrottl" in name]
    codes = {about["error"]["code"] for about in errors if about.get("error")}
    codes |= {name for name in model.shape_names if "hrottl" in name}
    assert codes
    assert codes <= shared.THROTTLED


@pytest.mark.parametrize(("named", "kind"), [("q", TargetUnavailable), (lambda event: "q", Unroutable)])
def test_a_queue_that_is_not_there_is_an_outage_or_the_fault_of_the_function(named, kind):
    bridge = Scripted(Refusal("AWS.SimpleQueueService.NonExistentQueue"), named=named)
    if kind is TargetUnavailable:
        with pytest.raises(kind):
            bridge.send([message()])
        return
    [answer] = bridge.send([message()])
    assert isinstance(answer, Unroutable)


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_of_a_group_is_sent_behind_what_waits_for_its_queue(whole):
    """The queue is made meanwhile, and what failed is tried again later: it would come behind its successor."""
    text = "Invalid parameter: QueueUrl"
    missing = Refusal("AWS.SimpleQueueService.NonExistentQueue") if whole else {0: "InvalidParameterValue"}
    bridge = Scripted(missing, named=lambda event: "q.fifo")
    bridge.text = text
    messages = [message(0, key="a"), message(1, key="a"), message(2, key="b"), message(3, key="a", to="other.fifo")]
    answers = bridge.send(messages)

    sent = [index for index, answer in enumerate(answers) if answer is None]
    assert sent == [3] if whole else [2, 3]
    assert [type(one) for one in answers[:2]] == [Unroutable, Unroutable]
    assert 1 not in [index for asked in bridge.asked for index in asked]


@pytest.mark.parametrize("name", ["TopicArn", "QueueUrl", "MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("code", ["InvalidParameter", "InvalidParameterValue"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_aws_says_of_the_queue_is_no_fault_of_a_message(name, code, whole):
    text = f"Invalid parameter: {name} Reason: it is not in this region"
    for named in ("q.fifo", lambda event: "q.fifo"):
        bridge = Scripted(Refusal(code, text) if whole else {0: code, 1: code}, named=named)
        bridge.text = text
        messages = [message(1, key="a"), message(2, key="b")]
        if callable(named):
            assert [type(one) for one in bridge.send(messages)] == [Unroutable, Unroutable]
        else:
            with pytest.raises(TargetUnavailable, match=name) as raised:
                bridge.send(messages)
            assert raised.value.acknowledged == 0
        assert bridge.asked == [[0, 1]]


def test_a_topic_of_another_region_is_said_before_anything_is_sent():
    options = {"region_name": "eu-west-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"aws": options}}):
        sns("arn:aws:sns:eu-west-1:123456789012:orders").bridge().open()
        with pytest.raises(TargetUnavailable, match=r"region_name='eu-west-1', and the topic .* is in 'us-east-1'"):
            sns("arn:aws:sns:us-east-1:123456789012:orders").bridge().open()


def test_ids_are_those_that_aws_takes():
    assert group_of(message(key="customer-7")) == "customer-7"
    assert len(group_of(message(key="Zoë"))) == 64
    assert group_of(message(5, key=None)) == "things/5"
    assert once_of(message(5)) == "things/5@2026-01-01T00:00:00+00:00/relay"
    assert once_of(message(5)) != once_of(message(6))


@pytest.mark.parametrize(
    ("body", "media_type", "text"),
    [
        (None, "application/json", "null"),
        ('"\ufffe \uffff ä"'.encode(), "application/json", '"\\ufffe \\uffff ä"'),
        (b"plain", "text/plain", "plain"),
    ],
)
def test_payloads_are_text(body, media_type, text):
    assert text_of(message(body=body, media_type=media_type)) == text


@pytest.mark.parametrize(
    ("body", "said"), [(b"\xff", "no text"), ("\ufffe".encode(), "U+FFFE"), (b"\x01", "U+0001"), (b"", "empty")]
)
def test_what_is_no_text_is_refused_by_itself(body, said):
    with pytest.raises(MessageRefused, match=said.replace("+", r"\+")):
        text_of(message(body=body, media_type="application/octet-stream"))


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_each_event_is_a_cloudevent_in_its_group(things, make_relay, aws):
    aws.make_queue("things.fifo")
    fill_topic(things, {"n": 1}, {"n": 2}, type="order.placed", key="Ada")
    fill_topic(things, "bytes", key="Bob")
    relay = make_relay(things, to=sqs("things.fifo"), transform=lambda event: b"\xff" if event.id == 3 else event.value)
    assert serve_due(relay) == 3

    messages = {
        one["Attributes"]["MessageDeduplicationId"].partition("@")[0]: one for one in aws.messages("things.fifo")
    }
    assert set(messages) == {"things/1", "things/2", "things/3"}
    first, third = messages["things/1"], messages["things/3"]
    assert first["Attributes"]["MessageGroupId"] == "Ada"
    assert {name: value["StringValue"] for name, value in first["MessageAttributes"].items()} | {"ce_time": ""} == {
        "content-type": "application/cloudevents+json; charset=utf-8",
        "ce_id": "things/1",
        "ce_source": "/things",
        "ce_relay": "relay",
        "ce_time": "",
    }
    assert {"type": "order.placed", "subject": "Ada", "data": {"n": 1}}.items() <= json.loads(first["Body"]).items()
    assert json.loads(third["Body"])["data_base64"] == "/w=="


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_fifo_queue_has_the_order_of_a_key_and_drops_what_a_relay_sends_again(lanes, make_relay, aws):
    aws.make_queue("lanes.fifo")
    for n in range(7):
        for key in "abc":
            fill_topic(lanes, n, key=key)
    relay = make_relay(lanes, to=sqs("lanes.fifo"), form="value")
    run_once(relay, threads=2)
    assert rewind(relay, to=1)
    assert run_once(relay, threads=2) == 21
    run_once(make_relay(lanes, to=sqs("lanes.fifo"), form="value", name="again"), threads=2)

    by_key: dict[tuple[str, str], list[str]] = {}
    for one in aws.messages("lanes.fifo"):
        name = one["MessageAttributes"]["ce_relay"]["StringValue"]
        by_key.setdefault((name, one["Attributes"]["MessageGroupId"]), []).append(one["Body"])
    assert by_key == {(name, key): [str(n) for n in range(7)] for name in ("relay", "again") for key in "abc"}


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_sns_hands_the_same_messages_on(things, make_relay, aws):
    aws.make_queue("copies.fifo")
    arn = aws.make_topic("things.fifo", "copies.fifo")
    fill_topic(things, {"n": 1}, {"n": 2}, key="Ada")
    serve_due(make_relay(things, to=sns(arn)))

    found = aws.messages("copies.fifo")
    assert [json.loads(one["Body"])["id"] for one in found] == ["things/1", "things/2"]
    assert {one["Attributes"]["MessageGroupId"] for one in found} == {"Ada"}


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_message_that_is_larger_than_sns_takes_is_refused_by_itself(things, make_relay, aws):
    aws.make_queue("copies")
    arn = aws.make_topic("things", "copies")
    fill_topic(things, 1, "x" * 2**18, 3, "y" * (2**18 - 1_000))
    relay = make_relay(things, to=sns(arn), form="value")
    serve_due(relay)

    assert sorted(len(one["Body"]) for one in aws.messages("copies")) == [1, 1, 2**18 - 998]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (2, 1)
    assert re.fullmatch(
        r"MessageRefused: It has 262\d{3} bytes with its headers, and the target takes 262144\.", letter.error
    )


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_an_outage_of_sns_counts_no_attempt_and_ends(things, make_relay, aws):
    aws.make_queue("copies.fifo")
    arn = aws.make_topic("things.fifo", "copies.fifo")
    relay = make_relay(things, to=sns(arn))
    fill_topic(things, 1, key="k")
    serve_due(relay)
    fill_topic(things, 2, 3, key="k")
    with override_settings(DJANGO_EVENTS={"BROKERS": {"aws": {**aws.options, **aws.at(1)}}}):
        for _ in range(4):  # more than `retry` has attempts
            run_once(relay)
            assert "EndpointConnectionError" in position_of(relay).error
            end_pauses(relay)
    position = position_of(relay)
    assert (position.position, position.attempts, dead_letters(relay)) == (1, 0, [])
    run_once(relay)

    assert position_of(relay).error == ""
    assert [json.loads(one["Body"])["id"] for one in aws.messages("copies.fifo")] == [f"things/{n}" for n in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_function_says_the_topic_of_sns_and_one_that_is_not_there_holds_up_nothing(things, make_relay, aws):
    arns = {name: aws.make_topic(name, aws.make_queue(f"of-{name}").rpartition("/")[2]) for name in ("paid", "placed")}
    arns |= {"unknown": arns["paid"].replace("paid", "unknown"), "no arn": "paid"}
    for number, kind in enumerate(["placed", "unknown", "paid", "no arn", "placed"], start=1):
        fill_topic(things, number, type=kind)
    relay = make_relay(things, to=sns(lambda event: arns[event.type]), form="value")
    exhaust(relay)

    assert {one["Body"] for one in aws.messages("of-placed")} == {"1", "5"}
    assert {one["Body"] for one in aws.messages("of-paid")} == {"3"}
    assert [(one.event_id, one.attempts) for one in dead_letters(relay)] == [(2, 3), (4, 1)]
    assert "is not the ARN of a topic of SNS" in dead_letters(relay)[1].error


class Throttled(NamedTuple):
    """A target whose requests AWS answers as it is told to."""

    scripted: Scripted

    def problems(self):
        return iter(())

    def check_installed(self):
        pass

    def route(self, event, partition):
        return Route("q.fifo")

    def bridge(self):
        return self.scripted


@pytest.mark.usefixtures("transactional_db")
def test_a_worker_leaves_a_target_alone_for_as_long_as_it_asks(things, make_relay, monkeypatch):
    monkeypatch.setattr(shared, "THROTTLED_FOR", timedelta(hours=3))
    scripted = Scripted(Refusal("RequestThrottled"))
    monkeypatch.setattr(scripted, "open", lambda: None)
    fill_topic(things, 1)
    relay = make_relay(things, to=Throttled(scripted), retry=Backoff(base=timedelta(milliseconds=1)))
    before = timezone.now()
    serve_due(relay)

    retry_at = position_of(relay).retry_at
    assert retry_at >= before + timedelta(hours=3)
    assert serve_due(relay) == 0
    assert len(scripted.asked) == 1
    assert position_of(relay).retry_at == retry_at
    end_pauses(relay)
    assert serve_due(relay) == 1
    assert (len(scripted.asked), position_of(relay).error) == (2, "")


class Recording(Scripted):
    """Remembers what it has taken, by message group. The first request with event 11 gets no answer."""

    def __init__(self):
        super().__init__()
        self.there: dict[str, list[str]] = {}
        self.times = count(1)

    def open(self):
        pass

    def entry(self, text, attributes):
        return {"MessageBody": text, "address": attributes["ce_id"]["StringValue"]}

    def ask(self, address, entries):
        answer = super().ask(address, entries)
        if entries[0]["address"] == "things/11" and next(self.times) == 1:
            raise Refusal("InternalError")
        with self.lock:
            for one in entries:
                self.there.setdefault(one["MessageGroupId"], []).append(one["address"])
        return answer

    @property
    def taken(self):
        return sum(map(len, self.there.values()))


KEYS_OF_MANY = [str(n % 40) for n in range(200)]


@pytest.fixture
def many(things):
    publish_many(things, [Draft(value=n, key=key) for n, key in enumerate(KEYS_OF_MANY)])
    transfer_all()
    return received()


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("remembered", [60.0, 0.0])
def test_what_aws_has_taken_beside_a_request_that_failed_is_not_sent_again(
    things, many, make_relay, monkeypatch, remembered
):
    """Requests side by side: of one there is no answer, and what is behind it in its group waits; the others arrive."""
    monkeypatch.setattr(relaying_module, "REMEMBERED", remembered)
    scripted = Recording()
    relay = make_relay(things, to=Throttled(scripted))
    relaying = Relaying(relay)
    with pytest.raises(FailedAt) as failed:
        relaying(many)
    assert "InternalError" in str(failed.value.error)
    assert failed.value.index == 10 < scripted.taken < 200
    waits = many[failed.value.index]
    positions(relay).update(attempted=waits.id, failing_since=failed.value.error.since)
    relaying(many[failed.value.index :])

    assert scripted.there == {
        key: [f"things/{n + 1}" for n in range(200) if KEYS_OF_MANY[n] == key] for key in set(KEYS_OF_MANY)
    }


@pytest.mark.usefixtures("transactional_db")
def test_a_rewind_sends_again_what_another_worker_had_taken_over_since(things, many, make_relay, monkeypatch):
    """To where this one was, long ago, when requests beside the one that failed were taken."""
    monkeypatch.setattr(relaying_module, "REMEMBERED", 0.0)
    scripted = Recording()
    relay = make_relay(things, to=Throttled(scripted))
    relaying = Relaying(relay)
    with pytest.raises(FailedAt) as failed:
        relaying(many)
    while position_of(relay).position < 200:
        serve_due(relay)
    rewind(relay, to=many[failed.value.index].id)
    before = scripted.taken
    relaying(many[failed.value.index :])

    assert scripted.taken - before == 200 - failed.value.index


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_message_that_is_too_large_is_refused_by_itself(things, make_relay, aws):
    aws.make_queue("things")
    fill_topic(things, 1, "x" * 1_048_500, 3)
    relay = make_relay(things, to=sqs("things"), form="value")
    serve_due(relay)

    assert sorted(one["Body"] for one in aws.messages("things")) == ["1", "3"]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_a_queue_of_a_function_that_is_not_there_is_tried_again_and_then_a_dead_letter(things, make_relay, aws):
    aws.make_queue("known")
    fill_topic(things, 1, type="known")
    fill_topic(things, 2, type="unknown")
    fill_topic(things, 3, type="known")
    fill_topic(things, 4, type="no name")
    relay = make_relay(things, to=sqs(lambda event: event.type), form="value")
    exhaust(relay)

    assert {one["Body"] for one in aws.messages("known")} == {"1", "3"}
    assert [(one.event_id, one.attempts) for one in dead_letters(relay)] == [(2, 3), (4, 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"region_name": "nowhere", "endpoint_url": "http://127.0.0.1:1"}, "EndpointConnectionError"),
        ({"colour": "tops3cret"}, "'colour': no client can be made"),
        ({}, "QueueDoesNotExist"),
    ],
)
def test_an_outage_counts_no_attempt_and_says_no_secret(things, make_relay, aws, wrong, said):
    fill_topic(things, 1)
    relay = make_relay(things, to=sqs("nowhere"))
    with override_settings(DJANGO_EVENTS={"BROKERS": {"aws": {**aws.options, **wrong}}}):
        run_once(relay)

    assert dead_letters(relay) == []
    error = position_of(relay).error
    assert said in error
    assert "wJalrXUtnFEMI" not in error
    assert "tops3cret" not in error
    aws.make_queue("nowhere")
    end_pauses(relay)
    run_once(relay)
    assert len(aws.messages("nowhere")) == 1
