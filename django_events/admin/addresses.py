"""Which database a page is about: it is a part of the address of what the page shows.

`7` is row 7 of the database where events are written, `7@archive` that of the alias `archive`.
"""

from urllib.parse import urlencode

from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _

from django_events.models.buffer import writable
from django_events.models.databases import databases

PARAMETER = "database"


def home() -> str:
    """The alias of pages whose address names none."""
    return writable()


def checked(alias: str) -> str:
    """An alias from the address of a page; Http404 if that database holds no topics."""
    if alias not in databases():
        raise Http404(_("There is no database “%(alias)s” with topics.") % {"alias": alias})
    return alias


def database_of(request: HttpRequest) -> str:
    """The alias that a request for a list names."""
    return checked(request.GET.get(PARAMETER) or home())


def written(pk: object, using: str) -> str:
    """A row in an address: its id, and the alias if it is not the usual one."""
    return str(pk) if using == home() else f"{pk}@{using}"


def read(address: str) -> tuple[int, str]:
    """The row and the alias of an address; Http404 if it is none."""
    pk, alias = read_of(address, numbered=True)
    return int(pk), alias


def read_of(address: str, *, numbered: bool) -> tuple[int | str, str]:
    """The same of a model whose rows have numbers, or names."""
    pk, at, alias = address.partition("@")
    if not pk or "\0" in pk or (numbered and not _is_id(pk)) or (at and not alias):
        raise Http404(_("“%(address)s” is no address of a row.") % {"address": address})
    return int(pk) if numbered else pk, checked(alias or home())


def id_of(request: HttpRequest, name: str) -> int | None:
    """An id from the query of a page; None if it is no id."""
    text = request.GET.get(name, "")
    return int(text) if _is_id(text) else None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def query(using: str, **chosen: object) -> str:
    """The query of a list's address: its database, unless it is the usual one, and what else is chosen."""
    said = {**({PARAMETER: using} if using != home() else {}), **chosen}
    return f"?{urlencode(said)}" if said else ""
