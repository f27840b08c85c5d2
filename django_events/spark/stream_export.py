"""Following the log into files or into another system, as a streaming query that goes on where it stopped.

Each micro-batch is written into a folder of its own, over what an interrupted try left there: a reader of the files
sees each event once, whatever reads them. Into other formats, Spark's own sinks write.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_events.exceptions import ExportRefused
from django_events.spark import files
from django_events.spark.records import FOLDER, Records, exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class Follow:
    """What to follow, and where to."""

    dsn: str = field(repr=False)
    topics: tuple[str, ...]
    path: str | None = None
    format: str = "parquet"
    by: tuple[str, ...] = ("day",)
    sink: str | None = None
    sink_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint: str | None = None
    start: str = "earliest"
    every: str | None = None
    once: bool = False
    most: int | None = None
    consumer: str | None = None
    allow_loss: bool = False


def follow(spark: "SparkSession", wanted: Follow) -> "StreamingQuery":
    """Start the query."""
    options = {
        "dsn": wanted.dsn,
        "subscribe": ",".join(wanted.topics),
        "startingOffsets": wanted.start,
        "failOnDataLoss": str(not wanted.allow_loss).lower(),
    }
    if wanted.most is not None:
        options["maxOffsetsPerTrigger"] = str(wanted.most)
    if wanted.consumer is not None:
        options["consumer"] = wanted.consumer
    checkpoint = wanted.checkpoint or f"{wanted.path}/{FOLDER}/checkpoint"
    if wanted.path is not None:
        _refuse_folder(spark, wanted.path, checkpoint)
        _keep_way(Records(spark, wanted.path, "stream"), wanted)
    frame = spark.readStream.format("django_events").options(**options).load()
    name = f"stream_events {' '.join(wanted.topics)}"
    if wanted.sink is not None:
        shaped = for_kafka(frame) if wanted.sink == "kafka" else frame
        query = shaped.writeStream.format(wanted.sink).options(**wanted.sink_options)
    else:
        query = frame.writeStream.foreachBatch(_Files(wanted))
    query = query.queryName(name).option("checkpointLocation", checkpoint)
    if wanted.once:
        query = query.trigger(availableNow=True)
    elif wanted.every is not None:
        query = query.trigger(processingTime=wanted.every)
    return query.start()


def for_kafka(frame: "DataFrame") -> "DataFrame":
    """As Kafka's sink takes them: the value or the body as bytes, the rest of what an event says as headers.

    Kafka places them by their key, and the option topic or the event's own says where to.
    """
    from pyspark.sql import functions as f

    says = [
        f.struct(f.lit(name).alias("key"), f.col(name).cast("string").cast("binary").alias("value"))
        for name in ("offset", "type", "metadata", "published_at")
    ]
    value = f.coalesce(f.col("value").cast("binary"), f.col("body")).alias("value")
    return frame.select("topic", "key", value, f.array(*says).alias("headers"))


def _refuse_folder(spark: "SparkSession", path: str, checkpoint: str) -> None:
    """ExportRefused where this query would write over what another one, or an export, has written."""
    if exists(spark, f"{path}/{FOLDER}/journal"):
        raise ExportRefused(f"{path} holds what export_events writes. Follow the log into another folder.")
    if exists(spark, f"{path}/batch={0:012d}") and not exists(spark, f"{checkpoint}/metadata"):
        raise ExportRefused(
            f"{path} holds batches, and {checkpoint} doesn't say of which query: a new one would write over them. "
            "Follow the log into another folder, or say where the checkpoint is."
        )


def _keep_way(records: Records, wanted: Follow) -> None:
    """Note how the files are the first time; ExportRefused for others later: no reader could take them together."""
    way = {"format": wanted.format, "by": list(wanted.by)}
    noted = records.read()
    for other in noted:
        if other.keys() != way.keys() or type(other["by"]) is not list:
            raise records.damaged(f"expected {', '.join(way)} in {other}")
        if other != way:
            raise ExportRefused(
                f"{records.path} tells of files {files.described(other['format'], [*map(str, other['by'])])}. This "
                f"query writes them {files.described(wanted.format, wanted.by)}. Follow the log into another folder."
            )
    if not noted:
        records.add([way])


class _Files:
    """Writes micro-batches into folders. With Spark Connect it runs on the server."""

    def __init__(self, wanted: Follow) -> None:
        self.path, self.format, self.by = wanted.path, wanted.format, wanted.by

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        folders = ["topic", *files.folders(self.by)]
        together = files.with_folders(frame, self.by).hint("rebalance", *folders)
        files.writer(together, self.format, folders).save(f"{self.path}/batch={batch:012d}")
