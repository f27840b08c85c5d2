"""The password of the database: in no plan, log, error, checkpoint or file."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from django_events import Draft
from django_events.exceptions import Invalid, NotReady
from django_events.models import StagedEvent
from django_events.reading.dsn import Dsn, fetch
from django_events.spark import java
from django_events.spark.sink import SQL as SINK_SQL
from tests.spark.conftest import PASSWORD

JOB = """
import sys
from pyspark.sql import SparkSession
from django_events.exporting.export import Export, export
from django_events.spark.exporting.engine import SparkEngine

dsn, folder = sys.stdin.read().splitlines()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", folder + "/events")
    .config("spark.eventLog.compress", "false").config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("DEBUG")

def options(**more):
    return {"dsn": dsn, **more}

frame = spark.read.format("django_events").options(**options(subscribe="things")).load()
frame.explain("formatted")
frame.explain(True)
print(frame._jdf.queryExecution().toString())
assert frame.count() == 3
export(SparkEngine(spark), Export(dsn=dsn, topics=("things",), path=folder + "/files"))
stream = spark.readStream.format("django_events").options(**options(subscribe="things", startingOffsets="earliest"))
stream.load().writeStream.option("checkpointLocation", folder + "/c1").trigger(availableNow=True).start(
    folder + "/out", format="json").awaitTermination()
into = stream.load().select("value").writeStream.format("django_events")
query = into.options(**options(topic="things", sink="copy", checkpointLocation=folder + "/c2"))
query = query.trigger(availableNow=True).start()
query.explain(True)
query.awaitTermination()
print(query.lastProgress)
frame.select("value").write.format("django_events").options(**options(topic="things")).mode("append").save()
for wrong in (options(subscribe="nothing"), options(subscribe="things", nonsense="1"),
              {"dsn": dsn.replace("port=", "port=1"), "subscribe": "things"}, {"dsn": "postgresql://u:" + PASSWORD}):
    try:
        spark.read.format("django_events").options(**wrong).load().count()
    except Exception as error:
        print(error)
    else:
        raise SystemExit("not refused")
failing = frame.selectExpr("'{' as value").write.format("django_events").options(**options(topic="things"))
try:
    failing.mode("append").save()
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.timeout(300)
@pytest.mark.requirement("X1")
@pytest.mark.usefixtures("transactional_db")
def test_the_password_is_shown_nowhere(log: Callable[..., Any], dsn: str, tmp_path: Path) -> None:
    from tests.spark.conftest import move

    log(*(Draft(value=n) for n in range(3)))
    parameters = conninfo_to_dict(dsn)
    parameters.setdefault("password", PASSWORD)
    password = str(parameters["password"])
    (tmp_path / "events").mkdir()
    java.provide()
    done = subprocess.run(
        [sys.executable, "-c", JOB.replace("PASSWORD", repr(password))],
        input=f"{make_conninfo('', **parameters)}\n{tmp_path}",
        env={**os.environ, "PYTHONPATH": ".", "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    move()

    assert done.returncode == 0, done.stderr[-3000:].replace(password, "<password>")
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.parent.parent.name == "events" or path.parent.name == "events" for path in written)
    assert any("c1" in path.parts for path in written)
    assert any("files" in path.parts and path.suffix == ".parquet" for path in written)
    shown = [str(path) for path, content in written.items() if password.encode() in content]
    assert shown == []
    for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        lines = [line.replace(password, "<password>")[:300] for line in text.splitlines() if password in line]
        assert lines == [], name


def test_an_address_is_shown_without_its_password() -> None:
    dsn = Dsn("postgresql://user:s%40crt@host:5432/name?sslpassword=hidden")

    assert str(dsn) == "host=host port=5432 dbname=name user=user"
    assert "s@crt" not in f"{dsn!r}{dsn}{vars(type(dsn))}"
    assert pickle.loads(pickle.dumps(dsn)) == dsn
    rare = "host=h dbname=a@b scram_client_key=s3cret options='-c app.password=s3cret'"
    assert str(Dsn(rare)) == "host=h dbname=a@b"
    assert dsn.masked(ValueError("it was s@crt and hidden")) == "it was *** and ***"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:s3cret@h:notaport/x?y",
        "host=h password=s3cret nonsense",
        "s3cret",
        "postgresql://u:hush@s3cret@host/db",
        "postgresql://u:s3cret/Xyz@host:5432/db",
        "postgresql://u:123/s3cret@host:5432/db",
        "postgresql://u:s3cret,h:99/db",
    ],
)
def test_a_wrong_address_is_refused_without_being_shown(text: str) -> None:
    try:
        with Dsn(text).connected():
            pass
    except Exception as error:
        assert "s3cret" not in f"{error}{error.__cause__}"
    else:
        pytest.fail("it was not refused")


def test_the_option_that_is_wrong_is_named() -> None:
    with pytest.raises(Invalid, match="Option 'databaseUrl' is no address"):
        Dsn("nonsense", option="databaseUrl")


@pytest.fixture
def poor(dsn: str) -> Iterator[str]:
    """The address for a role that may read the topics, and nothing else."""
    role = f"spark_without_rights_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
        cursor.execute(f"GRANT SELECT ON django_events_topic, django_events_topichead TO {role}")
    yield make_conninfo(dsn, user=role, password=PASSWORD)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {role}")
        cursor.execute(f"DROP ROLE {role}")


def test_a_role_without_rights_is_told_what_it_needs(poor: str) -> None:
    with pytest.raises(NotReady) as raised, Dsn(poor).connected() as used:
        fetch(used, SINK_SQL.unstage, attempts=[])

    assert "permission denied for table django_events_stagedevent" in str(raised.value)
    assert "events grants --role reader|sink" in str(raised.value)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize("way", ["batch", "stream"])
def test_a_sink_without_rights_is_told_before_the_job(
    spark: Any, poor: str, log: Any, tmp_path: Path, dsn: str, way: str
) -> None:
    """From a task the same comes in pages of Java's."""
    topic = str(log(Draft(value=1)))
    with pytest.raises(Exception, match="events grants --role") as raised:
        if way == "batch":
            frame = spark.createDataFrame([("1",)], "value string")
            frame.write.format("django_events").options(dsn=poor, topic=topic).mode("append").save()
        else:
            stream = spark.readStream.format("django_events").options(
                dsn=dsn, subscribe=topic, startingOffsets="earliest"
            )
            to = {"dsn": poor, "topic": topic, "sink": "s", "checkpointLocation": str(tmp_path)}
            query = stream.load().select("value").writeStream.format("django_events").options(**to)
            query.trigger(availableNow=True).start().awaitTermination()

    assert len(str(raised.value).strip().splitlines()) < 40
    assert not StagedEvent.objects.exists()


def test_a_sentence_of_ours_can_be_all_that_is_said(spark: Any, poor: str) -> None:
    """Without the stack of Spark's Python, by a setting of Spark's that the documentation names."""
    spark.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    try:
        with pytest.raises(Exception, match="There is no topic 'thing' in the database") as raised:
            spark.read.format("django_events").options(dsn=poor, subscribe="thing").load().count()
    finally:
        spark.conf.unset("spark.sql.execution.pyspark.udf.hideTraceback.enabled")

    assert "File" not in str(raised.value)
    assert len(str(raised.value).strip().splitlines()) < 5
