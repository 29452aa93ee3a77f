"""No store tells its password to anybody, and no name that it is given is taken for anything but a name."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import pytest
from tests.databases.server import free_port
from tests.shared import SharedServer
from tests.stores.cases import case
from tests.stores.dialects import MariaDBDatabase, PostgresDatabase
from tests.waiting import PATIENCE
from typer.testing import CliRunner

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.log import Log
from ackwise.middleware.policies.policies import Dedup, Events, Transactional
from ackwise.middleware.storage.claimstore import Acquired, Busy, Claim, ClaimAnswer, ClaimKey, Exchange, MaintainedStore, Outcome
from ackwise.middleware.storage.transaction import Finish, Finished, Taken
from ackwise.plugin.app import App
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.registry import has_inbox, open_inbox, open_store
from ackwise.plugin.settings.connecting import shown_url
from ackwise.stores.redis import RedisStore
from ackwise.stores.sqlite import SQLiteStore

USER, PASSWORD = "m0llie", "hunter2"

#: Every form of a URL that lets somebody in, with user, password and place to fill in.
FORMS: Final = {
    "redis": "redis://{user}:{password}@{at}/0",
    "rediss": "rediss://{user}:{password}@{at}/0",
    "redis+cluster": "redis+cluster://{user}:{password}@{at}",
    "rediss+cluster": "rediss+cluster://{user}:{password}@{at}",
    "redis+unix": "redis+unix://{user}:{password}@/not/there.sock",
    "postgresql": "postgresql://{user}:{password}@{at}/shop",
    "postgres": "postgres://{user}:{password}@{at}/shop",
    "mysql": "mysql://{user}:{password}@{at}/shop",
    "mariadb": "mariadb://{user}:{password}@{at}/shop",
}

#: The password as it should be written, and as people write it who do not know that it has to be encoded.
SPELLINGS: Final = {
    "encoded": f"{PASSWORD}%2F%40%3A",
    "with a slash": f"{PASSWORD}/x",
    "with a question mark": f"{PASSWORD}?x",
    "with a hash": f"{PASSWORD}#x",
    "with an at sign": f"{PASSWORD}@x",
    "with a colon": f"x:{PASSWORD}",
    "with a bracket": f"[{PASSWORD}",
    "with a percent sign": f"%{PASSWORD}%zz",
    "with a space and a newline": f"{PASSWORD} \n",
}


def said_by(error: BaseException) -> str:
    """All that a log or a terminal could show of an error."""
    return "".join([str(error), repr(error), *traceback.format_exception(error)])


def is_silent(text: str) -> bool:
    return PASSWORD not in text and USER not in text


def ways(url: str) -> list[Callable[[str], Any]]:
    """What makes something of a URL."""
    return [open_store, open_inbox] if has_inbox(url) else [open_store]


def made_of(url: str) -> list[Any]:
    """The store and the inbox of a URL, as far as it is not refused; a refusal tells no secret."""
    made, refusals = [], []
    for way in ways(url):
        try:
            made.append(way(url))
        except ConfigurationError as error:
            refusals.append(said_by(error))
    assert [said for said in refusals if not is_silent(said)] == []
    return made


async def try_everything(url: str) -> list[AckwiseError]:
    """Every call that connects; none of them may succeed or tell a secret."""
    refusals = []
    for part in made_of(url):
        assert is_silent(f"{part!r} {part}")
        calls: list[Callable[[], Awaitable[object]]] = [part.open]
        calls += [getattr(part, name) for name in ("init", "check", "cleanup") if hasattr(part, name)]
        if hasattr(part, "exchange"):
            calls.append(partial(part.exchange, Exchange([Claim(ClaimKey(bytes(16), None, 1), 1)])))
        for call in calls:
            with pytest.raises((StoreUnavailable, ConfigurationError)) as caught:
                await call()
            assert is_silent(said_by(caught.value)), said_by(caught.value)
            assert str(caught.value).count("\n") == 0
            refusals.append(caught.value)
        await part.close()
    return refusals


@pytest.fixture(autouse=True)
def _silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing of it is in any log, ours or a driver's, at any level."""
    caplog.set_level(logging.DEBUG)
    yield
    assert is_silent(caplog.text), caplog.text


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[str]:
    """A port that takes connections, and says `answer` and hangs up, or nothing at all. Waits for the callers to hang up."""
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if answer is not None:
                writer.write(answer)
                writer.write_eof()
            while await reader.read(2**16):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.ensure_future(talk(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*talks)


def url_of(form: str, *, user: str = USER, password: str = SPELLINGS["encoded"], at: str = "127.0.0.1:1") -> str:
    return FORMS[form].format(user=user, password=password, at=at)


async def test_a_server_that_is_away_is_told_of_without_user_and_password() -> None:
    away = await asyncio.gather(*(try_everything(url_of(form, at=f"127.0.0.1:{free_port()}")) for form in FORMS))
    assert all(len(refusals) >= 5 for refusals in away)


@pytest.mark.slow  # waits for each client to give up
@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "something else"])
async def test_a_server_that_answers_nothing_or_something_else_is_told_of_without_user_and_password(answer: bytes | None) -> None:
    async with answering(answer) as at:
        assert all(await asyncio.gather(*(try_everything(f"{url_of(form, at=at)}?timeout=0.5") for form in FORMS)))


@pytest.mark.slow  # waits for each client to give up
async def test_a_password_that_was_not_encoded_is_not_told_either() -> None:
    spellings = list(SPELLINGS.values())[1:]
    at = f"127.0.0.1:{free_port()}"
    for form in FORMS:
        await asyncio.gather(*(try_everything(url_of(form, password=password, at=at) + "?timeout=0.3") for password in spellings))


def test_no_part_of_a_password_that_ends_an_address_is_told() -> None:
    """What stands before the character looks like a port, what stands behind it like a path, an option or nothing at all."""
    for form, character, before, options in product(FORMS, "?/#", ("4711", "47@4711"), ("", "?timeout=2", "?timeout=x")):
        url = url_of(form, password=f"{before}{character}90210") + options
        assert not {USER, "4711", "90210"} & set(re.findall(r"\w+", shown_url(url))), url
        for way in ways(url):
            with pytest.raises(ConfigurationError) as caught:
                way(url)
            assert not re.search(f"{USER}|4711|90210", said_by(caught.value).replace(url, "") + str(caught.value)), url
    for url in ("redis://u:77?ret@h/0", "redis://:77?ret@h", "redis+cluster://u:77?ret@h", "redis://u:77#ret@h/0"):
        with pytest.raises(ConfigurationError) as caught:
            RedisStore(url)
        assert not re.search("77|ret@", str(caught.value)), url


def test_an_at_sign_in_an_option_is_no_end_of_a_password_and_is_refused_where_it_could_be_one() -> None:
    for scheme, option in (
        ("postgresql", "db?application_name=me@host"),
        ("postgresql", "db?sslrootcert=/a@b&timeout=2"),
        ("mysql", "db?sslrootcert=/a@b"),
        ("rediss", "0?ca=/a@b&timeout=2"),
    ):
        for way in ways(f"{scheme}://"):
            assert "//h" in repr(way(f"{scheme}://u:p@h/{option}")), option
            with pytest.raises(ConfigurationError, match="an @ in an option"):
                way(f"{scheme}://h/{option}")


def test_what_is_shown_of_a_url_holds_no_secret() -> None:
    for url, shown in (
        ("redis://u:p@h/0", "redis://***@h/0"),
        ("redis://u:a@b@h/0", "redis://***@h/0"),
        ("redis://u:a/b@h/0", "redis://***@h/0"),
        ("redis://u:a?b@h/0", "redis://***@h/0"),
        ("redis://u:a?b=c@h/0", "redis://***"),
        ("postgresql://h/d?password=a@b", "postgresql://***"),
        ("postgresql://h/d?password=a", "postgresql://h/d?***"),
        ("postgresql://h/d#secret", "postgresql://h/d?***"),
        ("sqlite:///a@b.db", "sqlite://***@b.db"),
        ("events", "events"),
    ):
        assert shown_url(url) == shown


def test_the_log_masks_a_password_whatever_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    for password in ("a/b", "a?b", "a@b", "a#b", "a:b"):
        Log().warning("something happened", error=f"can't reach redis://u:{password}@h/0: refused")
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]  # is ours
    assert fields == [{"error": "can't reach redis://***@h/0: refused"}] * 5


def test_a_url_that_can_t_be_taken_apart_or_has_a_timeout_that_is_no_time_is_a_sentence() -> None:
    cases = [(f"{scheme}://[x", ".") for scheme in ("sqlite", "memory", "redis", "postgresql", "mysql")]
    for url in ("sqlite:///claims.db", "redis://h", "postgresql://h/d", "mysql://h/d"):
        cases += [(f"{url}?timeout={timeout}", "timeout is") for timeout in ("nan", "inf", "0", "-1")]
    for url, sentence in cases:
        for way in ways(url):
            with pytest.raises(ConfigurationError, match=sentence) as caught:
                way(url)
            assert is_a_sentence(caught.value), url


async def test_wrong_options_and_schemes_policies_and_events_tell_nothing_of_a_url(tmp_path: Path) -> None:
    for form in FORMS:
        with case(form):
            for option in ("password", "pasword", "user", "token", "sslpassword"):
                url = f"{url_of(form, user='a', password='b')}?{option}={PASSWORD}"
                for way in ways(url):
                    with pytest.raises(ConfigurationError) as caught:
                        way(url)
                    assert is_silent(said_by(caught.value)), option
            url = url_of(form, password=PASSWORD)
            for wrong in (f"x{url}", url.replace("://", ":/"), url.replace("://", "//")):
                for way in (open_store, open_inbox):
                    with pytest.raises(ConfigurationError) as caught:
                        way(wrong)
                    assert is_silent(said_by(caught.value)), wrong
            for policy in (Dedup(url), Transactional(url)):
                assert is_silent(f"{policy!r} {policy}")
            app = App("billing", brokers="127.0.0.1:1")
            app.use(Dedup(url), Events(str(tmp_path / form)))
            sink = app._slots.open_sink("billing", ["orders"])
            assert sink is not None
            await sink.open()
            await sink.close()
            written = [file.read_bytes() for file in (tmp_path / form).rglob("*") if file.is_file()]  # nothing else runs
            assert any(written)
            assert all(is_silent(content.decode("utf-8", "replace")) for content in written)


APP: Final = """
from ackwise import App, Dedup, Transactional

app = App("billing", brokers="127.0.0.1:1", start_timeout=0.1)
app.use({policy}({url!r}))

@app.agent("orders")
async def bill(value: bytes) -> None: ...
"""


@contextmanager
def app_with(policy: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A command line in a folder with an app; calling it gives everything that it prints."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (folder / "worker.py").write_text(APP.format(policy=policy, url=url))

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(new_app(), list(arguments), prog_name="ackwise")
        sys.modules.pop("worker", None)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.output
        return done.output

    yield call


@pytest.mark.slow  # two hundred commands, one after the other
@pytest.mark.parametrize("policy", ["Dedup", pytest.param("Transactional", marks=pytest.mark.nightly)])
def test_no_command_shows_user_or_password(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in FORMS:
        url = url_of(form)
        with app_with(policy, url, tmp_path, monkeypatch) as call:
            for command in ("explain", "doctor"):
                assert is_silent(call(command, "worker:app") + call(command, "worker:app", "--json")), (form, command)
            assert is_silent(call("--traceback", "run", "worker:app")), form
            for command in ("init", "check", "cleanup"):
                said = call("--traceback", "store", command, url) + call("--traceback", "store", command, "worker:app")
                assert is_silent(said), (form, command)


# Real servers


@pytest.mark.servers
async def test_a_real_server_that_does_not_let_us_in_is_told_of_without_user_and_password(
    redis: SharedServer, cluster: Sequence[SharedServer], postgres: SharedServer, mariadb: SharedServer
) -> None:
    for form, server in (("redis", redis), ("redis+cluster", cluster[0]), ("postgresql", postgres), ("mysql", mariadb)):
        refusals = await try_everything(url_of(form, at=f"127.0.0.1:{server.port}"))
        assert any(isinstance(refusal, ConfigurationError) for refusal in refusals), refusals


#: Names that would be something else if they were pasted into a statement, a key or a URL.
HOSTILE: Final = {
    "quote": "a'b",
    "double quote": 'a"b',
    "backquote": "a`b",
    "statement": "'; DROP TABLE canary; --",
    "quoted statement": '"; DROP TABLE canary; --',
    "backquoted statement": "`; DROP TABLE canary; -- ",
    "comment": "a/*b",
    "newline": "a\nb",
    "nul": "a\0b",
    "hash tag": "{}",
    "other hash tag": "{a}b",
    "half a hash tag": "a{b",
    "the other half": "a}b",
    "format": "%s%(a)s{0}$1",
    "pattern": "a*[b-z]?",
    "separator": "a:b/c.d",
    "space": " a b ",
    "letters beyond ASCII": "漢字é",
    "surrogate": "a\udc80b",
    "long": "x" * 300,
    "empty": "",
}


async def claim(url: str, key: ClaimKey, token: int) -> ClaimAnswer:
    store = open_store(url)
    await store.open()
    try:
        return (await store.exchange(Exchange([Claim(key, token)]))).claims[0]
    finally:
        await store.close()


def is_a_sentence(refusal: AckwiseError) -> bool:
    return str(refusal).count("\n") == 0 and len(str(refusal)) < 600


def quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


async def is_a_name_or_refused(url: str, option: str, name: str) -> bool:
    """Either there is one sentence, or it is its own place."""
    key = ClaimKey(os.urandom(16), None, 1)
    there = f"{url}?{option}={quoted(name)}"
    try:
        first = await claim(there, key, 1)
    except ConfigurationError as refusal:
        return is_a_sentence(refusal)
    own = not name or await claim(url, key, 3) == Acquired(1)
    if url.startswith(("postgres", "maria")):
        store = cast(MaintainedStore, open_store(there))
        assert (await store.check(), await store.cleanup()) == ([], 0), there
    return own and first == Acquired(1) and isinstance(await claim(there, key, 2), Busy)


async def finishes_or_is_refused(url: str) -> bool:
    """Either there is one sentence, or a key that is finished stays so."""
    key = ClaimKey(os.urandom(16), None, 1)
    answers = []
    for _ in range(2):
        try:
            inbox = open_inbox(url)
            await inbox.open()
        except ConfigurationError as refusal:
            return is_a_sentence(refusal)
        async with inbox.begin(retention=60.0) as transaction:
            answers += await transaction.claim([key])
            if answers == [Taken()]:
                await transaction.finish([Finish(key, ("orders", 0, 1), 7, Outcome.OK, 1)])
        await inbox.close()
    return answers == [Taken(), Finished(Outcome.OK, ("orders", 0, 1), 7)]


async def test_a_namespace_of_redis_is_a_name_or_refused(redis: SharedServer) -> None:
    import redis.asyncio as driver

    client = driver.Redis(port=redis.port, db=12)
    await client.flushdb()
    await client.set("canary", "sings")
    for kind, name in HOSTILE.items():
        assert await is_a_name_or_refused(f"redis://127.0.0.1:{redis.port}/12", "namespace", name), kind
    assert await client.get("canary") == b"sings"
    await client.aclose()


@pytest.mark.nightly
async def test_a_namespace_of_a_redis_cluster_is_a_name_or_refused(cluster: Sequence[SharedServer]) -> None:
    for kind, name in HOSTILE.items():
        assert await is_a_name_or_refused(f"redis+cluster://127.0.0.1:{cluster[0].port}", "namespace", name), kind


async def test_a_schema_or_prefix_of_postgresql_is_a_name_or_refused(on_postgres: PostgresDatabase) -> None:
    await on_postgres.execute("CREATE TABLE canary (x int)")
    for option, (kind, name) in product(("schema", "prefix"), HOSTILE.items()):
        assert await is_a_name_or_refused(on_postgres.url(), option, name), (option, kind)
        assert await finishes_or_is_refused(f"{on_postgres.url()}?{option}={quoted(name)}"), (option, kind)
    assert await on_postgres.execute("SELECT * FROM canary") == []


async def test_a_prefix_of_mysql_is_a_name_or_refused(on_mysql: MariaDBDatabase) -> None:
    await on_mysql.execute("CREATE TABLE canary (x int)")
    for kind, name in HOSTILE.items():
        assert await finishes_or_is_refused(f"{on_mysql.url()}?prefix={quoted(name)}"), kind
        assert await is_a_name_or_refused(on_mysql.url(), "prefix", name), kind
    assert await on_mysql.execute("SELECT * FROM canary") == []


async def test_a_path_of_sqlite_is_a_file_of_that_name_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (kind, name) in enumerate(HOSTILE.items()):
        if kind == "surrogate":
            continue
        folder = tmp_path / str(number)
        folder.mkdir()  # nothing else runs here
        monkeypatch.chdir(folder)
        asked = name.replace("/", "_")
        url, key = f"sqlite:///{quote(asked, safe='')}", ClaimKey(os.urandom(16), None, 1)
        refusals = []
        try:
            assert await claim(url, key, 1) == Acquired(1)
            assert isinstance(await claim(url, key, 2), Busy)
            assert await SQLiteStore(asked).check() == []
        except (ConfigurationError, StoreUnavailable) as refusal:
            refusals.append(refusal)
        assert all(map(is_a_sentence, refusals))
        assert os.listdir(folder) == ([] if refusals else [asked]), kind
