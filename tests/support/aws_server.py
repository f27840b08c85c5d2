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
    """SQS and SNS."""

    name = "aws"
    WORDS = "SendMessageBatch"
    may_double = False  # the queue is a FIFO queue, and tests take less than five minutes

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
        if folder is not None:
            self.make_queue("parcels.fifo")

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
        client = self.client("sqs")
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        for body in bodies:
            client.send_message(QueueUrl=url, MessageBody=body, **more, **once(queue, body))

    def send_letters(self, numbers: Iterable[int]) -> None:
        self.send("letters.fifo", *map(str, numbers), MessageGroupId="one")

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """All that is in a queue, which is empty then."""
        client, found = self.client("sqs"), []
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        while messages := client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"]
        ).get("Messages"):
            found += messages
            for one in messages:
                client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return found

    def entries(self, queue: str = "parcels.fifo") -> list[Entry]:
        """All that was ever found in a queue."""
        for one in self.messages(queue):
            attributes = {name: value["StringValue"] for name, value in one["MessageAttributes"].items()}
            data = json.dumps(json.loads(one["Body"])["data"])
            self._read.append(Entry(queue, attributes["ce_id"], attributes, data, one["MessageId"]))
        return self._read

    def clear(self) -> None:
        self._read = []
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
