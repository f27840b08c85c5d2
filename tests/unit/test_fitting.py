"""What is left of a value that is too large."""

import pytest

from django_events.publishing.encoding import to_json
from django_events.publishing.fitting import fitting

LONG, LONGER = "x" * 500, "y" * 600


@pytest.mark.parametrize(
    ("value", "left", "omitted"),
    [
        ({"id": 1, "body": "short"}, {"id": 1, "body": "short"}, []),
        ({"id": 1, "body": LONG}, {"id": 1}, ["body"]),
        ({"id": 1, "body": LONG, "more": LONGER}, {"id": 1}, ["more", "body"]),
        ({"id": 1, "body": "\N{SNOWMAN}" * 40}, {"id": 1}, ["body"]),
        ({"changed": LONG, "id": 1}, {"id": 1}, ["changed"]),
        ({"a" * 500: 1, "id": 1}, {"id": 1}, ["a" * 500]),
        ([LONG], None, ["*"]),
        (LONG, None, ["*"]),
        (7, 7, []),
    ],
)
def test_the_largest_fields_are_left_out_until_it_fits(value, left, omitted):
    assert fitting(value, most=100) == (left, omitted)
    assert len(to_json("value", left).encode()) <= 100
