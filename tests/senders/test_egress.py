"""The egress guard: what may be connected to, decided on the address, whatever the URL looks like."""

from __future__ import annotations

import random
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network

import pytest
from aiohttp import ClientConnectorError, ClientSession, TCPConnector
from hypothesis import given
from hypothesis import strategies as st
from tests.senders.egress_corpus import ALLOWED_ADDRESSES, ALLOWED_HOSTS, REFUSED_ADDRESSES, REFUSED_HOSTS
from tests.senders.webhook_peers import LOOPBACK, Names, guard, post, sender_for

from homing.errors import SettingsError
from homing.senders.egress import EgressGuard, EgressRefused, parse_networks
from homing.testing.http_sink import Answer, HttpSink

STRICT = EgressGuard()


def info(address: str) -> tuple[int, int, int, str, tuple[str, int]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family, socket.SOCK_STREAM, 0, "", (address, 80))


class TestAddresses:
    def test_the_corpus_is_as_large_as_promised(self) -> None:
        assert len(set(REFUSED_ADDRESSES)) >= 150
        assert len(set(REFUSED_HOSTS) - {f"[{a}]" for a in REFUSED_ADDRESSES} - set(REFUSED_ADDRESSES)) >= 90
        assert len(set(ALLOWED_ADDRESSES)) >= 40

    @pytest.mark.parametrize("address", REFUSED_ADDRESSES)
    def test_refused(self, address: str) -> None:
        reason = STRICT.refusal(address)
        assert reason is not None
        assert "HOMING_EGRESS_ALLOW" in reason
        with pytest.raises(EgressRefused, match="HOMING_EGRESS_ALLOW"):
            STRICT.open_socket(info(address))

    @pytest.mark.parametrize("address", ALLOWED_ADDRESSES)
    def test_allowed(self, address: str) -> None:
        assert STRICT.refusal(address) is None
        STRICT.open_socket(info(address)).close()

    @pytest.mark.parametrize(
        ("address", "reason"),
        [
            ("127.0.0.1", "127.0.0.1 is a loopback address; HOMING_EGRESS_ALLOW can permit it"),
            ("10.1.2.3", "10.1.2.3 is a private address; HOMING_EGRESS_ALLOW can permit it"),
            ("fe80::1%eth0", "fe80::1 is a link-local address; HOMING_EGRESS_ALLOW can permit it"),
            ("no address", "what the name stands for is no IP address"),
            ("", "what the name stands for is no IP address"),
        ],
    )
    def test_the_reason_can_be_acted_on(self, address: str, reason: str) -> None:
        assert STRICT.refusal(address) == reason

    @given(st.ip_addresses(v=6))
    def test_what_embeds_a_refused_address_is_refused(self, address: IPv6Address) -> None:
        low = IPv4Address(int(address) & 0xFFFFFFFF)
        for prefix in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::"):
            assert STRICT.refusal(str(IPv6Address(int(IPv6Address(prefix)) | int(low)))) is not None

    @given(st.ip_addresses())
    def test_nothing_that_python_knows_not_to_be_global_passes(self, address: IPv4Address) -> None:
        # It knows less than we do, but what it does know must hold here as well.
        if not address.is_global or address.is_multicast:
            assert STRICT.refusal(str(address)) is not None


class TestAllowList:
    def test_a_network_permits_what_lies_in_it(self) -> None:
        allowing = EgressGuard(parse_networks("10.0.0.0/8, fd00::/8"))
        assert allowing.refusal("10.9.8.7") is None
        assert allowing.refusal("fd12::1") is None
        assert allowing.refusal("11.0.0.1") is None
        assert allowing.refusal("192.168.0.1") is not None
        assert allowing.refusal("fe80::1") is not None

    @pytest.mark.parametrize(
        "address", ["169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fe80::a9fe:a9fe"]
    )
    def test_metadata_services_are_permitted_by_their_own_address_only(self, address: str) -> None:
        everything = parse_networks("0.0.0.0/0 ::/0")
        refusal = EgressGuard(everything).refusal(address)
        assert refusal is not None
        assert "metadata" in refusal
        assert EgressGuard(parse_networks(f"{address}/31" if "." in address else "fe80::/10")).refusal(
            address
        )
        assert EgressGuard(parse_networks(address)).refusal(address) is None
        assert EgressGuard([ip_network(address)]).refusal(address) is None

    @pytest.mark.parametrize(
        "address", ["64:ff9b::169.254.169.254", "::ffff:169.254.169.254", "2002:a9fe:a9fe::1", "::a9fe:a9fe"]
    )
    def test_nor_are_they_in_disguise(self, address: str) -> None:
        everything = parse_networks("0.0.0.0/0 ::/0")
        assert "metadata" in (EgressGuard(everything).refusal(address) or "")
        assert EgressGuard(parse_networks(address)).refusal(address) is None

    def test_both_what_carries_and_what_is_carried_must_be_permitted(self) -> None:
        nat64 = EgressGuard(parse_networks("64:ff9b::/96"))
        assert nat64.refusal("64:ff9b::8.8.8.8") is None
        assert nat64.refusal("64:ff9b::10.0.0.1") == (
            "64:ff9b::a00:1 contains 10.0.0.1, a private address; HOMING_EGRESS_ALLOW can permit it"
        )
        assert EgressGuard(parse_networks("64:ff9b::/96 10.0.0.0/8")).refusal("64:ff9b::10.0.0.1") is None
        assert EgressGuard(parse_networks("10.0.0.0/8")).refusal("::ffff:10.0.0.1") is not None

    def test_networks_are_read_as_people_write_them(self) -> None:
        assert parse_networks("") == ()
        assert parse_networks(" \n") == ()
        assert parse_networks("10.0.0.0/8,192.168.1.20  fd00::/8\n::1,") == (
            ip_network("10.0.0.0/8"),
            ip_network("192.168.1.20/32"),
            ip_network("fd00::/8"),
            ip_network("::1/128"),
        )
        assert parse_networks("172.16.0.0/255.240.0.0") == (IPv4Network("172.16.0.0/12"),)

    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("localhost", "write addresses and networks such as"),
            ("10.0.0.0/33", "is no network"),
            ("10.0.0.5/8", "write 10.0.0.0/8 for all of it, or 10.0.0.5 for this address"),
            ("10.0.0.0/8;::1", "with commas between them"),
            ("2130706433", "is no network"),
        ],
    )
    def test_what_is_no_network_is_explained(self, text: str, hint: str) -> None:
        with pytest.raises(SettingsError, match="HOMING_EGRESS_ALLOW") as caught:
            parse_networks(text)
        assert hint in str(caught.value)


class TestUrls:
    @pytest.mark.parametrize("host", REFUSED_HOSTS)
    def test_refused_hosts(self, host: str) -> None:
        for url in (
            f"https://{host}/hook",
            f"https://{host}:8443/",
            f"https://{host}?a=1",
            f"HTTPS://{host}",
        ):
            assert STRICT.url_refusal(url) is not None

    @pytest.mark.parametrize("host", ALLOWED_HOSTS)
    def test_allowed_hosts(self, host: str) -> None:
        for url in (
            f"https://{host}/hook",
            f"https://{host}:8443/",
            f"https://{host}?a=1",
            f"HTTPS://{host}",
        ):
            assert STRICT.url_refusal(url) is None

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("", "must begin with https://"),
            ("example.com/hook", "must begin with https://"),
            ("ftp://example.com/", "must begin with https://"),
            ("file:///etc/passwd", "must begin with https://"),
            ("https:example.com", "must begin with https://"),
            ("https:/example.com", "must begin with https://"),
            ("//example.com", "must begin with https://"),
            (" https://example.com", "contains a space"),
            ("https://example.com/a b", "contains a space"),
            ("https://example.com/a\nb", "control character"),
            ("https://example.com/\x00", "control character"),
            ("https://exam\tple.com/", "control character"),
            ("https://example.com\\@10.0.0.1/", "a backslash"),
            ("https://example.com/straße", "percent-encode"),
            ("https://", "names no valid host"),
            ("https:///hook", "names no valid host"),
            ("https://:443/", "names no valid host"),
            ("https://a..b/", "names no valid host"),
            ("https://.example.com/", "names no valid host"),
            ("https://-a.example/", "names no valid host"),
            ("https://exa mple/", "contains a space"),
            ("https://exa$mple.com/", "names no valid host"),
            ("https://exam%70le.com/", "names no valid host"),
            ("https://" + "a" * 64 + ".com/", "names no valid host"),
            ("https://" + "a." * 127 + "com/", "names no valid host"),
            ("https://\u2028.example/", "names no valid host"),
            ("https://user@example.com/", "user and password"),
            ("https://user:secret@example.com/", "user and password"),
            ("https://example.com@10.0.0.1/", "user and password"),
            ("https://example.com/#part", "a fragment"),
            ("https://example.com#@10.0.0.1/", "a fragment"),
            ("https://example.com:0/", "from 1 to 65535"),
            ("https://example.com:65536/", "from 1 to 65535"),
            ("https://example.com:/", "from 1 to 65535"),
            ("https://example.com:http/", "from 1 to 65535"),
            ("https://example.com:-1/", "from 1 to 65535"),
            ("https://example.com:\uff14\uff14\uff13/", "from 1 to 65535"),
            ("https://example.com:99999999999999999999/", "from 1 to 65535"),
            ("https://example.com:25/", "another protocol"),
            ("https://example.com:22/", "another protocol"),
            ("https://example.com:6667/", "another protocol"),
            ("https://example.com/" + "a" * 2029, "longer than 2,048"),
            ("http://example.com/", "HOMING_ALLOW_HTTP"),
            ("https://0x7f.1/", "as 127.0.0.1"),
            ("https://134744072/", "as 8.8.8.8"),
            ("https://127.0.0.1/", "loopback"),
            ("https://[::ffff:127.0.0.1]/", "IPv4-mapped"),
        ],
    )
    def test_each_fault_has_its_own_reason(self, url: str, reason: str) -> None:
        said = STRICT.url_refusal(url)
        assert said is not None
        assert reason in said
        assert "secret" not in said

    def test_the_longest_url_passes(self) -> None:
        assert STRICT.url_refusal("https://example.com/" + "a" * 2028) is None

    @pytest.mark.clause("JOB-24")
    def test_http_where_it_is_allowed(self) -> None:
        assert EgressGuard(allow_http=True).url_refusal("http://example.com/") is None
        assert EgressGuard(allow_http=True).url_refusal("ftp://example.com/") is not None

    def test_an_address_of_the_allow_list(self) -> None:
        allowing = EgressGuard(parse_networks(LOOPBACK), allow_http=True)
        assert allowing.url_refusal("http://127.0.0.1:8080/hook") is None
        assert allowing.url_refusal("http://[::1]:8080/hook") is None
        assert allowing.url_refusal("http://127.1/") is not None

    @given(st.text(max_size=60))
    def test_no_text_is_too_odd(self, text: str) -> None:
        for url in (text, f"https://{text}", f"https://{text}/hook", f"https://example.com{text}"):
            target = STRICT.target(url)
            if STRICT.url_refusal(url) is None:
                # What passes means the same to everybody: it is read again as it was.
                assert not isinstance(target, str)
                assert STRICT.target(getattr(target, "url", "")) == target

    @given(st.lists(st.integers(0, 2**33) | st.integers(0, 255), min_size=1, max_size=5), st.data())
    def test_numbers_are_read_as_the_system_reads_them(self, numbers: list[int], data: st.DataObject) -> None:
        written = [data.draw(st.sampled_from([str(n), hex(n), f"0{n:o}", f"0X{n:x}"])) for n in numbers]
        host = ".".join(written)
        try:
            address = str(IPv4Address(socket.inet_aton(host)))
        except OSError:
            assert STRICT.url_refusal(f"https://{host}/") is not None
            return
        said = STRICT.url_refusal(f"https://{host}/")
        assert said is not None or host == address
        assert said is None or f"as {address}" in said or host == address


class TestEndToEnd:
    async def test_no_socket_for_any_refused_literal(self) -> None:
        watched = guard("")
        async with HttpSink(host="0.0.0.0") as sink, HttpSink(host="::", port=sink.port) as sink6:
            async with sender_for(watched) as sender:
                for host in REFUSED_HOSTS:
                    result = await sender.send(post(f"http://{host}:{sink.port}/"))
                    assert result.error_code in {"egress_refused", "invalid_url"}, host
                    assert (result.status, result.unknown) == (None, False)
            assert (watched.opened, sink.connected, sink6.connected) == (0, 0, 0)

    @pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::"])
    async def test_the_second_line_holds_alone(self, address: str) -> None:
        # A connector without our resolver: the socket factory sees what is about to be connected to.
        connector = TCPConnector(socket_factory=STRICT.open_socket)
        host = f"[{address}]" if ":" in address else address
        async with HttpSink(host=address) as sink, ClientSession(connector=connector) as session:
            with pytest.raises(ClientConnectorError) as caught:
                await session.post(f"http://{host}:{sink.port}/")
            assert isinstance(caught.value.os_error, EgressRefused)
            assert sink.connected == 0

    async def test_a_name_with_one_bad_address_is_refused(self) -> None:
        names = Names({"mixed.example": ("127.0.0.2", "10.0.0.1"), "good.example": ("127.0.0.2",)})
        watched = guard("127.0.0.2")
        async with HttpSink(host="127.0.0.2") as sink, sender_for(watched, lookup=names) as sender:
            for _ in range(5):
                result = await sender.send(post(f"http://mixed.example:{sink.port}/"))
                assert result.error_code == "egress_refused"
                assert "10.0.0.1" not in result.message
                assert "HOMING_EGRESS_ALLOW can permit it" in result.message
            assert (watched.opened, sink.connected) == (0, 0)
            assert (await sender.send(post(f"http://good.example:{sink.port}/"))).status == 200

    async def test_1000_rounds_of_rebinding(self) -> None:
        """A name that turns from a permitted address to a forbidden one and back, at every question."""
        chance = random.Random(7)
        answers = [("127.0.0.2",), ("127.0.0.3",), ("127.0.0.2", "127.0.0.3"), ("127.0.0.3", "127.0.0.2")]
        given_out: list[tuple[str, ...]] = []

        def flip() -> tuple[str, ...]:
            given_out.append(chance.choice(answers))
            return given_out[-1]

        seconds = iter(range(0, 10_000_000, 100))
        # Hanging up every time, and a clock that runs on, make each round ask and connect anew.
        script = {"/": Answer(close=True)}
        async with (
            HttpSink(script, host="127.0.0.2") as good,
            HttpSink(script, host="127.0.0.3", port=good.port) as bad,
            sender_for(
                guard("127.0.0.2"), lookup=Names({"flip.example": flip}), monotonic=lambda: next(seconds)
            ) as sender,
        ):
            url = f"http://flip.example:{good.port}/"
            results = [await sender.send(post(url, timeout=1e9)) for _ in range(1000)]
            assert len(given_out) == 1000
            permitted = [found == ("127.0.0.2",) for found in given_out]
            assert [r.status == 200 for r in results] == permitted
            assert {r.error_code for r in results} == {None, "egress_refused"}
            assert (good.count, bad.connected) == (sum(permitted), 0)
