"""What the URL and the options of a Redis store say, what is refused, and what an error of the driver is told as."""

from __future__ import annotations

import hashlib
import random
import ssl
import subprocess
import sys
from collections import Counter

import pytest
import redis as synchronous
from redis import exceptions
from redis.asyncio import Redis
from redis.crc import key_slot
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.registry import open_store
from ackwise.stores.redis import RedisStore, from_url
from ackwise.stores.redis.failures import is_misconfigured, reason
from ackwise.stores.redis.script import Layout


def test_a_url_is_shown_without_user_password_and_options() -> None:
    for url, address in [
        ("redis://host", "redis://host:6379"),
        ("redis://user:pass@host:1234/3?timeout=2", "redis://host:1234/3"),
        ("rediss://:pass@host?ca=/etc/ca.pem", "rediss://host:6379"),
        ("redis://[::1]:7000", "redis://[::1]:7000"),
        ("redis+cluster://a:1,b:2,c", "redis+cluster://a:1,b:2,c:6379"),
        ("rediss+cluster://user@a:1", "rediss+cluster://a:1"),
        ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
    ]:
        with case(url, address):
            assert repr(open_store(url)) == f"RedisStore({address!r}, namespace='ackwise')"


def test_the_url_gives_the_options() -> None:
    store = from_url(
        "redis+cluster://h?timeout=2.5&namespace=shop&layout=compact&retention=3600&keys=9000&buckets=8&wait=2&wait_timeout=0.5"
    )
    assert store._layout == Layout("shop", compact=True, retention=3600.0, keys=9000, buckets=8)
    assert (store._timeout, store._replicas and (store._replicas.count, store._replicas.timeout)) == (2.5, (2, 0.5))


def test_a_url_that_can_not_work_is_refused() -> None:
    for url, sentence in [
        ("redis://", "no host and port that can be read"),
        ("redis://host:port", "no host and port that can be read"),
        ("redis://host:0", "no host and port that can be read"),
        ("redis+cluster://host:1,host:65536", "no host and port that can be read"),
        ("redis://host/zero", "ends with a number of a database, and for a cluster with none"),
        ("redis+cluster://host/1", "ends with a number of a database, and for a cluster with none"),
        ("redis://a,b", r"several hosts are for a cluster; write redis\+cluster://"),
        ("redis+unix://host/path", "names no socket"),
        ("rediss+unix:///path", "no URL of a Redis store"),
        ("redis://h?timout=1", "no option timout; did you mean timeout?"),
        ("redis://h?zzz=1", "no option zzz; it has timeout, namespace"),
        ("redis://h?timeout=soon", "timeout is 'soon' in the URL of the Redis store; give seconds"),
        ("redis://h?timeout=0", "timeout is 0.0; give the seconds"),
        ("redis://h?layout=dense", "layout is 'dense' for the Redis store; it can be plain or compact"),
        ("redis://h?retention=0", "retention is 0.0"),
        ("redis://h?keys=many", "keys is 'many'"),
        ("redis://h?keys=0", "keys is 0"),
        ("redis://h?buckets=4", "buckets is for a cluster"),
        ("redis+cluster://h?buckets=257", "buckets is 257"),
        ("redis://h?wait=-1", "wait is -1"),
        ("redis://h?wait=1&wait_timeout=5", r"wait_timeout is 5.0; give seconds, more than 0 and less than the timeout \(5\)"),
        ("redis://h?ca=/ca.pem", "ca, cert and key are for TLS"),
    ]:
        with case(url, sentence), pytest.raises(ConfigurationError, match=sentence):
            from_url(url)


def test_a_namespace_that_could_reach_into_another_is_refused() -> None:
    for namespace in ["", "a:b", "a{b}", "a b", "a\r\nFLUSHALL", "a*", "ä", "a" * 65, "a\n", "../a", "a\0"]:
        with case(namespace), pytest.raises(ConfigurationError, match=r"the namespace of the Redis store is .+; give 1 to 64 letters"):
            RedisStore("redis://host", namespace=namespace)


def test_no_two_namespaces_have_a_key_in_common() -> None:
    places = [bytes(16), b":" * 16, b"}" * 16, b"{a}:" * 4]
    layouts = [Layout(name, buckets=buckets) for name in ("a", "a.a", "a-a") for buckets in (0, 16)]
    keys = [layout.key(place) for layout in layouts for place in places] + [Layout(name).mark for name in ("a", "a.a", "a-a")]
    assert len(set(keys)) == len(keys)


def test_the_keys_of_a_cluster_are_spread_over_its_masters() -> None:
    layout = Layout(buckets=16)
    places = [hashlib.blake2b(bytes([i, j]), digest_size=16).digest() for i in range(64) for j in range(64)]
    keys = [layout.key(place) for place in places]
    slots = Counter(key_slot(key) for key in keys)
    assert len(slots) == 16
    assert {key_slot(keys[i]) for i in layout.groups(keys)[0]} == {key_slot(keys[layout.groups(keys)[0][0]])}
    thirds = Counter(slot * 3 // 16384 for slot in slots.elements())
    assert min(thirds.values()) > len(keys) / 8


def test_a_client_of_another_kind_is_refused() -> None:
    for client in [synchronous.Redis(), object(), "redis://host"]:
        with (
            case(client),
            pytest.raises(ConfigurationError, match=r"the Redis store takes a redis\.asyncio\.Redis or a redis\.asyncio\.RedisCluster"),
        ):
            RedisStore(client=client)  # type: ignore[arg-type]  # that is the point


def test_a_client_that_decodes_what_it_reads_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the client has decode_responses, and records are bytes"):
        RedisStore(client=Redis(decode_responses=True))


def test_a_client_and_a_url_are_one_too_many_and_neither_is_too_few() -> None:
    for arguments in ({}, {"url": "redis://host", "client": Redis()}):
        with pytest.raises(ConfigurationError, match="takes either a URL or a client"):
            RedisStore(**arguments)  # type: ignore[arg-type]  # of two kinds


def test_the_address_of_a_client_is_shown_without_its_password() -> None:
    store = RedisStore(client=Redis(host="host", port=1, username="worker", password="secret"))
    assert repr(store) == "RedisStore('redis://host:1', namespace='ackwise')"


@pytest.mark.slow  # waits for a process
def test_without_the_driver_a_sentence_says_what_to_install() -> None:
    question = (
        "import sys; sys.modules['redis'] = None\n"
        "import ackwise.stores\nfrom ackwise.plugin.registry import open_store\n"
        "try: open_store('redis://user:secret@host')\nexcept Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True).stdout
    assert said == "PackageMissing the Redis store needs redis; install it with pip install 'ackwise[redis]'\n"
    assert "secret" not in said


def test_an_error_of_the_driver_is_told_with_what_to_do() -> None:
    for error, sentence, for_good in [
        (exceptions.TimeoutError("Timeout reading from host:1"), "no answer within 5 s", False),
        (exceptions.AuthenticationError("invalid username-password pair"), "it refused the user or the password", True),
        (exceptions.NoPermissionError("User x has no permissions"), "the user may not do what a claim takes (User x has", True),
        (exceptions.BusyLoadingError("LOADING"), "it is still loading its data", False),
        (exceptions.ReadOnlyError("You can't write"), "it is a replica", False),
        (exceptions.OutOfMemoryError("OOM command not allowed"), "its memory is full", False),
        (exceptions.MovedError("1234 127.0.0.1:7000"), "it is a node of a cluster; write redis+cluster://", True),
        (exceptions.ClusterDownError("CLUSTERDOWN"), "the cluster is down", False),
        (exceptions.MaxConnectionsError(), "all connections of the client are in use", False),
        (exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "it can't write to its disk", False),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), "too few replicas are connected", False),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), "another client's script", False),
        (exceptions.ResponseError("Write commands not allowed after non deterministic commands"), "this Redis is too old", True),
        (exceptions.ResponseError("something new"), "it refused: something new", False),
        (exceptions.ConnectionError("Connection closed by server."), "the connection broke", False),
        (ConnectionRefusedError(111, "Connection refused"), "nothing listens there", False),
        (ssl.SSLError(1, "wrong version number"), "no TLS is spoken there", False),
    ]:
        with case(error, sentence, for_good):
            assert reason(error, 5.0).startswith(sentence)
            assert is_misconfigured(error) is for_good


def test_a_page_of_the_compact_layout_is_full_but_not_too_full() -> None:
    for keys in (1, 180, 181, 1000, 10**6, 10**8, random.Random(1).randrange(10**9)):
        layout = Layout(compact=True, keys=keys)
        fill = keys / 2 / 2**layout.page_bits
        assert fill <= 90
        assert fill > 45 or layout.page_bits == 0
