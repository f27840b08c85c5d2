"""A cluster of brokers that librdkafka makes of itself; prints where they are, and runs until it is killed."""

import signal

from confluent_kafka import Producer

if __name__ == "__main__":
    cluster = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "mock", "log_level": 0})
    brokers = cluster.list_topics(timeout=10).brokers.values()
    print(",".join(f"127.0.0.1:{broker.port}" for broker in brokers), flush=True)
    signal.pause()
