"""Relays to SQS and SNS, as moto's server plays them: what is sent, what is refused, and what an outage costs."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from django.test import override_settings
from django.utils import timezone

from django_events import Backoff, sns, sqs
from django_events.bridges.relays import aws as shared
from django_events.bridges.relays.answers import Unroutable
from django_events.bridges.relays.aws import AwsBridge, group_of, once_of, text_of
from django_events.bridges.relays.targets import RelayMessage, Route, TargetUnavailable
from django_events.exceptions import MessageRefused
from django_events.operations import rewind
from tests.support.fix_consumers import dead_letters, end_pauses, exhaust, position_of, run_once, serve_due
from tests.support.fix_queues import fill_topic

pytestmark = [pytest.mark.requirement("X20")]


def message(number=1, *, key="k", body=b"1", to="q.fifo", media_type="application/json"):
    now = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    attributes = {"id": f"things/{number}", "source": "/things", "time": now, "relay": "relay"}
    return RelayMessage(number, f"things/{number}", Route(to), key, attributes, {"content-type": media_type}, body)


class Scripted(AwsBridge):
    """Answers as AWS may, which moto does not."""

    def __init__(self, *answers, named="q.fifo"):
        super().__init__("aws", named)
        self.answers = list(answers)
        self.asked: list[list[int]] = []

    text = "said"

    def entry(self, text, attributes):
        return {"MessageBody": text}

    def ask(self, address, entries):
        self.asked.append([int(entry["Id"]) for entry in entries])
        answer = self.answers.pop(0) if self.answers else {}
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

    assert bridge.asked == [[0, 2, 4, 5, 6, 7, 8, 9, 10, 11], [1, 12, 13], [3]]


def test_a_queue_without_order_gets_requests_of_ten():
    bridge = Scripted()
    bridge.send([message(n, key="a", to="q") for n in range(23)])
    assert [len(one) for one in bridge.asked] == [10, 10, 3]


def test_a_request_is_no_larger_than_aws_takes_and_nothing_passes_in_its_group():
    bridge = Scripted()
    large = b'"%s"' % (b"x" * 200_000)
    bridge.send(
        [message(1, key="a", body=large), message(2, key="b", body=large), message(3, key="b"), message(4, key="c")]
    )
    assert bridge.asked == [[0, 3], [1], [2]]


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
    bridge = Scripted(Refusal("AWS.SimpleQueueService.BatchRequestTooLong"), {}, Refusal("InvalidParameterValue"))
    answers = bridge.send([message(n, key=str(n)) for n in range(3)])
    assert bridge.asked == [[0, 1, 2], [0], [1], [2]]
    assert [type(one) for one in answers] == [type(None), MessageRefused, type(None)]


def test_aws_is_left_alone_for_a_while_if_it_wants_less():
    with pytest.raises(TargetUnavailable) as raised:
        Scripted(Refusal("RequestThrottled")).send([message()])
    assert raised.value.asked_for == shared.THROTTLED_FOR


@pytest.mark.parametrize(("named", "kind"), [("q", TargetUnavailable), (lambda event: "q", Unroutable)])
def test_a_queue_that_is_not_there_is_an_outage_or_the_fault_of_the_function(named, kind):
    bridge = Scripted(Refusal("AWS.SimpleQueueService.NonExistentQueue"), named=named)
    if kind is TargetUnavailable:
        with pytest.raises(kind):
            bridge.send([message()])
        return
    [answer] = bridge.send([message()])
    assert isinstance(answer, Unroutable)


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
