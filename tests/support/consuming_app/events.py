"""Letters are answered, and answers read.

A lease that a worker left behind would hold others up for an hour: longer than any test waits.
"""

import os
from datetime import timedelta
from typing import Any

from django_events import Backoff, consumer, topic
from tests.support.consuming_app import handlers

letters = topic("letters", partitions=4)
answers = topic("answers")

LONG = timedelta(hours=1)
RETRY = Backoff(attempts=3, base=timedelta(0))

answering: Any = consumer(letters, name="answering", lease=LONG, retry=RETRY)(handlers.answer)
reading: Any = consumer(answers, name="reading", lease=LONG, retry=RETRY)(handlers.read)

# A handler in a module that a test writes, or not.
if "LATER_HANDLER" in os.environ:
    later: Any = consumer(letters, name="later", handler=os.environ["LATER_HANDLER"], lease=LONG, retry=RETRY)
