"""Where requests may go: to public addresses, and to those in `WEBHOOK_NETWORKS`.

A name is looked up once for each connection, all addresses of the answer are checked, and the connection is made to one
of these addresses. A second look-up, which could answer otherwise, never happens.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from django_events.exceptions import Invalid

LONGEST_URL = 2_000
ALLOW = "No request goes there. If it should, add the network to DJANGO_EVENTS['WEBHOOK_NETWORKS']."

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where a cloud tells a machine its credentials. Most such addresses are link-local or private anyway; these are not.
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# A gateway on the way may take another address out of one of these: 6to4, Teredo, and NAT64 of a site's own.
_CARRYING = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "64:ff9b:1::/48")))
# As a person may write a URL: the scheme may be left out, or a slash of it.
_PARTS = re.compile(r"((?:[a-z][a-z0-9+.-]*:)?/+|)([^/]*)(.*)", re.IGNORECASE | re.DOTALL)


class ForbiddenAddress(OSError):
    """An address to which no request may go."""


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks of `WEBHOOK_NETWORKS`; ValueError if one is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def reason_against(text: str, allowed: Sequence[Network], *, encrypted: bool = True) -> str:
    """Why no request may go to an address; empty if one may.

    Without TLS only to the networks that are allowed: elsewhere, anything on the way could read the events.
    """
    try:
        address = _meant(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return "not an IP address"
    if any(address in network for network in allowed if network.version == address.version):
        return ""
    if address in _METADATA:
        return "a cloud's metadata service"
    if address.version == 6 and any(address in network for network in _CARRYING):
        return "one that carries an address of IPv4"
    reasons = (
        (address.is_unspecified, "unspecified"),
        (address.is_loopback, "loopback"),
        (address.is_link_local, "link-local"),
        (address.is_multicast, "multicast"),
        (address.is_private or (address.version == 6 and address.is_site_local), "private"),
        (not address.is_global or address.is_reserved, "not public"),
        (not encrypted, "for requests with TLS only"),
    )
    return next((reason for is_so, reason in reasons if is_so), "")


def _meant(address: Address) -> Address:
    """Where a packet goes: an address of IPv4 may be written as one of IPv6, or be reached through NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address


def refuse_addresses(
    host: str, addresses: Iterable[str], allowed: Sequence[Network], *, encrypted: bool = True
) -> None:
    """ForbiddenAddress if a request may not go to one of the addresses of a host, even if it may go to others."""
    for address in addresses:
        if reason := reason_against(address, allowed, encrypted=encrypted):
            raise ForbiddenAddress(f"{host} has the address {address}, which is {reason}. {ALLOW}")


def refuse_url(url: str, allowed: Sequence[Network]) -> None:
    """Invalid unless events may be sent to a URL, as far as that can be said without looking up its name."""
    shown = without_secrets(url)
    if len(url) > LONGEST_URL or not re.fullmatch(r"[!-~]+", url):
        raise Invalid(
            f"The URL {shown} has spaces, letters beyond ASCII, or more than {LONGEST_URL:,} characters. Write a name "
            "of another script as xn--…, and the path with %…."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid(f"The URL {shown} can't be understood: {error}.") from error
    if parts.scheme not in ("https", "http") or not host or port == 0:
        raise Invalid(f"The URL {shown} is not one of a webhook, expected https://…")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise Invalid(
            f"The URL {shown} has a user, a password or a fragment, expected none. The signature says who sends."
        )
    if parts.scheme == "http" and not allowed:
        raise Invalid(f"The URL {shown} has no TLS, expected https://…, or a network in WEBHOOK_NETWORKS.")
    reason = reason_against(host, allowed, encrypted=parts.scheme == "https") if _is_address(host) else ""
    if reason:
        raise Invalid(f"The URL {shown} is of an address that is {reason}. {ALLOW}")


def _is_address(host: str) -> bool:
    """Whether a host is an address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_secrets(url: str) -> str:
    """A URL as pages, logs and errors show it: the query and a password may be secrets of the receiver."""
    try:
        urlsplit(url)
    except ValueError:
        return "(not a URL)"
    kept = re.split("[?#]", url, maxsplit=1)[0]
    scheme, host, path = _PARTS.fullmatch(kept).groups()  # type: ignore[union-attr]  # it matches any text
    shown = scheme + host.rpartition("@")[2] + path
    return repr(f"{shown[:200]}…" if len(kept) < len(url) or len(shown) > 200 else shown)
