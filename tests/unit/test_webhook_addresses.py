"""Where webhooks may go. No database, and no look-up of a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_events.exceptions import Invalid
from django_events.outward.addresses import (
    ForbiddenAddress,
    networks,
    reason_against,
    refuse_addresses,
    refuse_url,
    without_secrets,
)

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:8.8.8.8", "64:ff9b::808:808"]
FORBIDDEN = {
    "127.0.0.1": "loopback",
    "127.9.9.9": "loopback",
    "::1": "loopback",
    "0.0.0.0": "unspecified",
    "::": "unspecified",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "192.168.1.1": "private",
    "fd12::1": "private",
    "100.64.0.1": "not public",
    "169.254.169.254": "link-local",
    "fe80::1%eth0": "link-local",
    "100.100.100.200": "metadata",
    "168.63.129.16": "metadata",
    "192.0.0.192": "metadata",
    "fd00:ec2::254": "metadata",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "240.0.0.1": "private",
    "255.255.255.255": "private",
    "192.0.2.1": "private",
    "198.18.0.1": "private",
    "::ffff:127.0.0.1": "loopback",
    "::ffff:169.254.169.254": "link-local",
    "::ffff:10.1.2.3": "private",
    "::127.0.0.1": "not public",
    "64:ff9b::a9fe:a9fe": "link-local",
    "64:ff9b:1::a00:1": "carries",
    "2002:7f00:1::": "carries",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "carries",
    "fec0::1": "private",
    "2001:db8::1": "private",
    "localhost": "not an IP address",
}


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address):
    assert not reason_against(address, ())


@pytest.mark.requirement("P10")
@pytest.mark.parametrize(("address", "reason"), FORBIDDEN.items())
def test_no_request_goes_to_an_address_inside(address, reason):
    assert reason in reason_against(address, ())


def test_one_forbidden_address_among_several_forbids_the_name():
    refuse_addresses("partner.example", PUBLIC, ())
    with pytest.raises(ForbiddenAddress, match=r"partner\.example has the address 10\.0\.0\.1, which is private"):
        refuse_addresses("partner.example", [*PUBLIC, "10.0.0.1"], ())


def test_a_network_can_be_allowed_however_its_addresses_are_written():
    allowed = networks(["10.1.0.0/16", "fd12::/64"])

    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::7"):
        assert not reason_against(address, allowed)
    for address in ("10.2.0.1", "fd13::7", "127.0.0.1"):
        assert reason_against(address, allowed)


def test_without_tls_only_allowed_networks_are_reached():
    allowed = networks(["10.1.0.0/16"])

    assert not reason_against("10.1.2.3", allowed, encrypted=False)
    assert reason_against("8.8.8.8", allowed, encrypted=False) == "for requests with TLS only"


@pytest.mark.slow
@given(st.ip_addresses())
def test_every_address_is_judged_and_one_inside_never_passes_as_ipv6(address):
    reason = reason_against(str(address), ())
    if address.version == 4:
        for written in (f"::ffff:{address}", f"64:ff9b::{address}"):
            assert reason_against(written, ()) == reason
    if address.is_private or address.is_loopback or address.is_link_local:
        assert reason or (address.version == 6 and address.ipv4_mapped)


@pytest.mark.parametrize(
    "url",
    [
        "https://partner.example/hooks",
        "HTTPS://partner.example:8443/hooks?token=a%20b",
        "https://xn--bcher-kva.example/",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/",
    ],
)
def test_a_url_of_a_public_receiver_is_taken(url):
    refuse_url(url, ())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://partner.example/", "no TLS"),
        ("ftp://partner.example/", "expected https"),
        ("file:///etc/passwd", "expected https"),
        ("partner.example", "expected https"),
        ("https://", "expected https"),
        ("https://partner.example:0/", "expected https"),
        ("https://partner.example:99999/", "can't be understood"),
        ("https://[::1/", "can't be understood"),
        ("https://user:word@partner.example/", "a user"),
        ("https://partner.example/#x", "a fragment"),
        ("https://partner.example/a b", "spaces"),
        ("https://partner.example/\r\nx", "spaces"),
        ("https://bücher.example/", "beyond ASCII"),
        ("https://partner.example/" + "x" * 2_000, "2,000"),
        ("https://127.0.0.1/", "loopback"),
        ("https://[::ffff:169.254.169.254]/", "link-local"),
        ("", "beyond ASCII"),
    ],
)
def test_another_url_is_refused(url, said):
    with pytest.raises(Invalid, match=said):
        refuse_url(url, ())


def test_a_url_is_shown_without_what_may_be_a_secret():
    assert without_secrets("https://user:word@partner.example/hooks?token=abc") == "'https://partner.example/hooks…'"
    assert without_secrets("https://partner.example/hooks") == "'https://partner.example/hooks'"
    assert without_secrets("https://partner.example/@me#abc?d") == "'https://partner.example/@me…'"
    for begin in ("", "//", "https:/", "HTTPS://"):
        shown = without_secrets(f"{begin}user:word@partner.example/hooks?token=abc")
        assert shown == f"'{begin}partner.example/hooks…'"
    assert without_secrets("https://[") == "(not a URL)"
