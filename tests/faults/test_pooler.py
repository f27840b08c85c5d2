"""Everything works through a pooler that gives each transaction another connection."""

import signal
from pathlib import Path

import psycopg

from tests.faults.test_kills import TOPICS, buffered, committed
from tests.processes import Processes, check_log, wait_until


def test_publishers_and_transfers_share_few_connections(processes: Processes, pooler: str, tmp_path: Path):
    direct = processes.url
    processes.url = pooler
    publishers = [processes.start_publisher(f"p{i}") for i in range(4)]
    transfers = [processes.start("run_transfer") for _ in range(2)]
    wait_until(lambda: committed(publishers) > 500, what="500 events")
    for publisher in publishers:
        publisher.stop()
    wait_until(lambda: buffered(direct) == 0, what="an empty buffer")
    for transfer in transfers:
        transfer.send_signal(signal.SIGTERM)
    assert [transfer.wait(30) for transfer in transfers] == [0, 0]

    assert check_log(direct, TOPICS, publishers) == committed(publishers)
    assert "through a pooler" in processes.log_of("run_transfer")
    with psycopg.connect(direct) as connection:
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
