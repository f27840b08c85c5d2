"""Numbers in the JSON of an event."""

import math
import re

from pyspark.sql import Column
from pyspark.sql import functions as f

from django_events.exceptions import Invalid

PATH = re.compile(r"""\$(\.[^.\[\]'"]+|\[[0-9]{1,9}\]|\['[^']+'\]|\["[^"]+"\])+""")
# Django writes a Decimal as text. What Java takes for a number beyond these, like "5d", is not meant as one.
NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\z"


def number_at(option: str, path: str, value: Column) -> Column:
    """The number at a path like "$.lines[0].price"; null where there is none, or where the text isn't JSON."""
    if not PATH.fullmatch(path):
        raise Invalid(
            f"Option {option!r} is {path!r}, expected a path in the value like '$.total', '$.lines[0].price' or "
            "'$[\"unit price\"]'."
        )
    text = f.try_variant_get(f.try_parse_json(value), path, "string")
    # Each step has the one before it once, so that Spark parses a value once.
    number = f.regexp_extract(text, NUMBER, 0).try_cast("double")
    return f.nullif(f.nullif(number, f.lit(math.inf)), f.lit(-math.inf))
