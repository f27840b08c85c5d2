"""A topic that describes its events, as the code of before has it."""

from django_events import topic
from tests.support.typed_app.described import Counted

things = topic("things", schemas=[Counted], undescribed="pass", schema_check="off")
