"""An AWS of moto's in a process of its own: it can be frozen, but forgets all when it ends."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from testproject.private_postgres.server import choose_free_port
from tests.support.brokers import Entry

REGION = "eu-west-1"


def once(queue: str, body: str) -> dict[str, str]:
    """Of a FIFO queue, what it drops a message by."""
    return {"MessageDeduplicationId": body} if queue.endswith(".fifo") else {}


class Aws:
    """SQS and SNS. What a relay sends is read from a queue, which is of SQS and FIFO here."""

    name = "aws"
    WORDS = "SendMessageBatch"
    QUEUE = "parcels.fifo"
    LETTERS = "letters.fifo"
    may_double = False  # the queue remembers what it has taken
    keeps_order = True
    KEYS = 41  # of what is relayed: some requests go side by side
    GROUPS = 7  # of letters

    def __init__(self, folder: Path | None = None) -> None:
        self.port = choose_free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.moto_server", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._read: list[Entry] = []
        self._known: dict[str, tuple[Any, str]] = {}
        if folder is not None:
            self.make_queue(self.QUEUE)

    @property
    def options(self) -> dict[str, Any]:
        """As the settings have them."""
        return {
            "region_name": REGION,
            "aws_access_key_id": "AKIDEXAMPLE",
            "aws_secret_access_key": "wJalrXUtnFEMI",
            "timeout": 3.0,
            **self.at(self.port),
        }

    def at(self, port: int) -> dict[str, Any]:
        """Which of the options say that it is at another port."""
        return {"endpoint_url": f"http://127.0.0.1:{port}"}

    def client(self, service: str) -> Any:
        from boto3.session import Session

        options = {name: value for name, value in self.options.items() if name != "timeout"}
        return Session().client(service, **options)

    def make_queue(self, name: str, **attributes: str) -> str:
        """A queue, by whose URL it is asked."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        url: str = self.client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def make_topic(self, name: str, *queues: str) -> str:
        """A topic with subscriptions of queues, which get messages as they are; returns its ARN."""
        sns = self.client("sns")
        attributes = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        arn: str = sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
        for queue in queues:
            endpoint = f"arn:aws:sqs:{REGION}:123456789012:{queue}"
            sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=endpoint, Attributes={"RawMessageDelivery": "true"})
        return arn

    def send(self, queue: str, *bodies: str, **more: Any) -> None:
        client, url = self._reached(queue)
        for body in bodies:
            client.send_message(QueueUrl=url, MessageBody=body, **more, **once(queue, body))

    def _reached(self, queue: str) -> tuple[Any, str]:
        """A client, which takes long to make, and the URL of a queue."""
        if queue not in self._known:
            client = self.client("sqs")
            self._known[queue] = client, client.get_queue_url(QueueName=queue)["QueueUrl"]
        return self._known[queue]

    def put(self, queue: str, body: str, group: str = "one") -> None:
        """One message, of this group if the queue has any."""
        groups = {"MessageGroupId": group} if queue.endswith(".fifo") else {}
        self.send(queue, body, **groups)

    def send_letters(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.put(self.LETTERS, str(number), str(number % self.GROUPS))

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """All that is in a queue, which is empty then."""
        (client, url), found = self._reached(queue), []
        while messages := client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"]
        ).get("Messages"):
            found += messages
            for one in messages:
                client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return found

    def entries(self, queue: str = "") -> list[Entry]:
        """All that was ever found in a queue. It is empty then."""
        for one in self.messages(queue or self.QUEUE):
            attributes = {name: value["StringValue"] for name, value in one["MessageAttributes"].items()}
            data = json.dumps(json.loads(one["Body"]).get("data"))
            self._read.append(Entry(queue, attributes["ce_id"], attributes, data, one["MessageId"]))
        return self._read

    def clear(self) -> None:
        self._read, self._known = [], {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/moto-api/reset", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def kill(self) -> None:
        """Freeze it."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def start(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class StandardAws(Aws):
    """The same with queues that have no order."""

    name = "aws-standard"
    QUEUE = "parcels"
    LETTERS = "letters"
    may_double = True
    keeps_order = False


class Sns(Aws):
    """A FIFO topic, which hands on to a FIFO queue."""

    name = "sns"
    WORDS = "Action=PublishBatch"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        if folder is not None:
            self.make_topic(self.QUEUE, self.QUEUE)


class StandardSns(Sns):
    """A topic without order, which hands on to a queue without order."""

    name = "sns-standard"
    QUEUE = "parcels"
    may_double = True
    keeps_order = False
