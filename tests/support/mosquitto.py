"""A Mosquitto of the test's own, by TLS and with a password, and a subscriber whose session outlives a stop."""

import queue
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import trustme

from testproject.private_postgres.server import choose_free_port
from tests.support.processes import listens, wait_until

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/opt/homebrew/sbin")
PASSWORD = "hunter-two"
LARGEST = 100_000  # bytes of a packet
MARK = "marks"  # a topic: what is sent there comes behind all that was sent before
ACCESS = f"user shop\ntopic write shop/#\nuser subscriber\ntopic read shop/#\ntopic readwrite {MARK}\n"


class Published(NamedTuple):
    """A message as the subscriber gets it."""

    topic: str
    properties: dict[str, str]
    content_type: str | None
    payload: bytes


class Mosquitto:
    """A broker in a folder of its own, on ports of loopback. It keeps sessions and messages over a stop."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.port, self._plain_port = choose_free_port(), choose_free_port()
        self._authority = folder / "authority.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self._authority))
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
        self._process: subprocess.Popen[bytes] | None = None
        self._subscriber: Any = None
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._read: list[Published] = []
        (folder / "access").write_text(ACCESS)
        (folder / "passwords").write_text(f"shop:{PASSWORD}\nsubscriber:{PASSWORD}\n")
        subprocess.run(["mosquitto_passwd", "-U", folder / "passwords"], check=True)
        options = {
            "user": "root",  # the folder is of the user who runs the tests
            "listener": f"{self._plain_port} 127.0.0.1\nlistener {self.port} 127.0.0.1",
            "certfile": folder / "server.pem",  # of the latter
            "keyfile": folder / "server.pem",
            "allow_anonymous": "false",
            "password_file": folder / "passwords",
            "acl_file": folder / "access",
            "max_packet_size": LARGEST,
            "max_inflight_messages": 5,  # at once, which the page's bridge has to obey
            "persistence": "true",
            "persistence_location": f"{folder}/",
            "log_dest": f"file {folder / 'log'}",
        }
        self._file = folder / "mosquitto.conf"
        self._file.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        self.start()

    @property
    def login(self) -> Mapping[str, Any]:
        """As the settings of the page have it."""
        tls = {"ca_certs": str(self._authority)}
        return {"host": "localhost", "port": self.port, "username": "shop", "password": PASSWORD, "tls": tls}

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", self._file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: listens(self.port), what="Mosquitto")

    def stop(self) -> None:
        """End it as its service would: it writes what it keeps."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        if (client := self._subscriber) is not None:
            client.disconnect()
            client.loop_stop()
            # Without a cycle it is gone at once, and closes the sockets by which its thread was woken.
            self._subscriber = client.on_message = client.on_subscribe = None
        if self._process is not None and self._process.poll() is None:
            self.stop()
        self._folder.cleanup()

    def subscribe(self, *topics: str) -> None:
        """Have a session that gets what is sent to these topics, also while its subscriber is away."""
        import paho.mqtt.client as mqtt
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        client = self._subscriber = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id="subscriber", protocol=mqtt.MQTTv5
        )
        subscribed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.username_pw_set("subscriber", PASSWORD)
        client.reconnect_delay_set(1, 1)
        client.on_message = lambda client, data, message: self._messages.put(message)
        client.on_subscribe = lambda client, data, number, reasons, properties: subscribed.put(reasons)
        keeps = Properties(PacketTypes.CONNECT)
        keeps.SessionExpiryInterval = 600
        client.connect("127.0.0.1", self._plain_port, clean_start=False, properties=keeps)
        client.loop_start()
        client.subscribe([(topic, mqtt.SubscribeOptions(qos=1)) for topic in (*topics, MARK)])
        assert not any(reason.is_failure for reason in subscribed.get(timeout=30))

    def received(self) -> list[Published]:
        """All that the subscriber has got, in its order; what the broker has taken by now included."""
        self._subscriber.publish(MARK, qos=1)
        while (message := self._messages.get(timeout=60)).topic != MARK:
            self._read.append(published(message))
        return self._read

    def addresses(self) -> list[str]:
        return [message.properties["id"] for message in self.received()]


def published(message: Any) -> Published:
    properties = message.properties
    return Published(
        message.topic,
        dict(getattr(properties, "UserProperty", ())),
        getattr(properties, "ContentType", None),
        message.payload,
    )
