"""Why a value doesn't fit a model, in sentences without the value: errors are logged, and kept in dead letters."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from django_events.masking import HIDDEN, hides, is_masked

SHOWN = 10  # fields
# Messages that may quote what was given, where a site masks fields: another field's value may be in them.
_QUOTE = ("_error", "union_tag_invalid")


class Misfit(Exception):
    """A value doesn't fit, for each of these reasons."""

    def __init__(self, *problems: str) -> None:
        super().__init__(listed(problems))
        self.problems = problems


def listed(problems: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return "; ".join(problems[:SHOWN]) + more


def of_error(error: Exception) -> Misfit:
    """What a model says of a value: a sentence for each field. None of them has the value."""
    errors: Any = getattr(error, "errors", None)
    if not callable(errors):
        return Misfit(said(error))
    try:
        found = errors(include_url=False, include_context=False, include_input=False)
    except TypeError:  # it only looks like one of pydantic's
        return Misfit(said(error))
    return Misfit(*map(_sentence, found))


def of_unwritable(error: Exception, model: type[Any]) -> Misfit:
    """Why an instance of a model can't be written: the field, if the error names one. Its text quotes the value."""
    if isinstance(error, UnicodeDecodeError):
        both = "ser_json_bytes and val_json_bytes"
        return Misfit(f"it has bytes that are no UTF-8. Set {both} in its model_config, both to 'base64'")
    fields: Any = getattr(model, "model_fields", {})
    wrong = [name for name in fields if f"field_name='{name}'" in str(error)]
    return Misfit(*([f"$.{name}: is not of its declared type" for name in wrong] or [type(error).__name__]))


def said(error: BaseException) -> str:
    """An error of the site's own code; only its type where fields are masked, because its text may quote one."""
    return type(error).__name__ if hides() else f"{type(error).__name__}: {error}"


def path(location: Iterable[str | int]) -> str:
    """`$.lines[0].sku`."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _sentence(error: Mapping[str, Any]) -> str:
    location, kind = error["loc"], str(error["type"])
    masked = next((at for at, part in enumerate(location, 1) if isinstance(part, str) and is_masked(part)), None)
    quotes = hides() and (kind.endswith(_QUOTE) or kind not in _own_kinds())
    said = error["msg"] if masked is None and not quotes else f"{HIDDEN} ({kind})"
    return f"{path(location[:masked])}: {said}"  # what stands below a masked field is masked, keys too


@cache
def _own_kinds() -> frozenset[str]:
    """The kinds of error that pydantic has itself. A site's own, a PydanticCustomError, may say anything."""
    # Imported where an error of a model is there, so pydantic is too.
    from pydantic_core.core_schema import ErrorType

    return frozenset(get_args(ErrorType))
