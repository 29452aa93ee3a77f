"""No store tells its password to anybody, and no name that it is given is taken for anything but a name."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from tests.databases.server import free_port
from tests.shared import SharedServer
from tests.stores.mysql.database import MySQLDatabase
from typer.testing import CliRunner

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.log import Log
from ackwise.middleware.policies import Dedup, Events, Transactional
from ackwise.middleware.store import Acquired, Busy, Claim, ClaimAnswer, ClaimKey, Exchange, Outcome
from ackwise.middleware.transaction import Finish, Finished, Taken
from ackwise.plugin.app import App
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.registry import has_inbox, open_inbox, open_store
from ackwise.plugin.settings.redaction import shown_url
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
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    async with asyncio.timeout(10):
        await asyncio.gather(*talks)


@pytest.mark.parametrize("form", FORMS)
async def test_a_server_that_is_away_is_told_of_without_user_and_password(form: str) -> None:
    refusals = await try_everything(FORMS[form].format(user=USER, password=SPELLINGS["encoded"], at=f"127.0.0.1:{free_port()}"))
    assert len(refusals) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
async def test_a_server_that_says_nothing_is_told_of_without_user_and_password(form: str) -> None:
    async with answering(None) as at:
        assert await try_everything(FORMS[form].format(user=USER, password=SPELLINGS["encoded"], at=at) + "?timeout=0.2")


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if form != "redis+unix"])
async def test_something_else_that_answers_is_told_of_without_user_and_password(form: str) -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as at:
        assert await try_everything(FORMS[form].format(user=USER, password=SPELLINGS["encoded"], at=at) + "?timeout=0.5")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelling", list(SPELLINGS)[1:])
async def test_a_password_that_was_not_encoded_is_not_told_either(form: str, spelling: str) -> None:
    url = FORMS[form].format(user=USER, password=SPELLINGS[spelling], at=f"127.0.0.1:{free_port()}")
    await try_everything(url + "?timeout=0.3")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("character", "?/#")
@pytest.mark.parametrize("before", ["4711", "47@4711"])
@pytest.mark.parametrize("options", ["", "?timeout=2", "?timeout=x"])
def test_no_part_of_a_password_that_ends_an_address_is_told(form: str, character: str, before: str, options: str) -> None:
    """What stands before the character looks like a port, what stands behind it like a path, an option or nothing at all."""
    url = FORMS[form].format(user="m0llie", password=f"{before}{character}90210", at="127.0.0.1:1") + options
    assert not {"m0llie", "4711", "90210"} & set(re.findall(r"\w+", shown_url(url)))
    for way in ways(url):
        with pytest.raises(ConfigurationError) as caught:
            way(url)
        assert not re.search("m0llie|4711|90210", said_by(caught.value).replace(url, ""))
        assert not re.search("m0llie|4711|90210", str(caught.value))


@pytest.mark.parametrize("url", ["redis://u:77?ret@h/0", "redis://:77?ret@h", "redis+cluster://u:77?ret@h", "redis://u:77#ret@h/0"])
def test_a_redis_store_of_its_own_class_tells_no_digits_of_a_password_either(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisStore(url)
    assert not re.search("77|ret@", str(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/db?application_name=me@host",
        "postgresql://u:p@h/db?sslrootcert=/a@b&timeout=2",
        "mysql://u:p@h/db?sslrootcert=/a@b",
        "rediss://u:p@h/0?ca=/a@b&timeout=2",
    ],
)
def test_an_at_sign_in_an_option_is_no_end_of_a_password(url: str) -> None:
    for way in ways(url):
        assert "//h" in repr(way(url))


@pytest.mark.parametrize("url", ["postgresql://h/db?application_name=me@host", "mysql://h/db?sslrootcert=/a@b", "rediss://h/0?ca=/a@b"])
def test_a_url_that_could_be_a_password_to_its_question_mark_is_refused_with_what_to_write(url: str) -> None:
    for way in ways(url):
        with pytest.raises(ConfigurationError, match="an @ in an option"):
            way(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
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
    ],
)
def test_what_is_shown_of_a_url_holds_no_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("password", ["a/b", "a?b", "a@b", "a#b", "a:b"])
def test_the_log_masks_a_password_whatever_it_holds(password: str, caplog: pytest.LogCaptureFixture) -> None:
    Log().warning("something happened", error=f"can't reach redis://u:{password}@h/0: refused")
    assert [record.fields for record in caplog.records] == [{"error": "can't reach redis://***@h/0: refused"}]  # type: ignore[attr-defined]  # is ours


@pytest.mark.parametrize("url", ["sqlite://[x", "sqlite://[", "memory://[x", "redis://[x", "postgresql://[x", "mysql://[x"])
def test_a_url_that_can_t_be_taken_apart_is_a_sentence(url: str) -> None:
    for way in ways(url):
        with pytest.raises(ConfigurationError) as caught:
            way(url)
        assert is_a_sentence(caught.value)


@pytest.mark.parametrize("timeout", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("url", ["sqlite:///claims.db", "redis://h", "postgresql://h/d", "mysql://h/d"])
def test_a_timeout_that_is_no_time_is_a_sentence(url: str, timeout: str) -> None:
    for way in ways(f"{url}?timeout={timeout}"):
        with pytest.raises(ConfigurationError, match="timeout is") as caught:
            way(f"{url}?timeout={timeout}")
        assert is_a_sentence(caught.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "option", [f"password={PASSWORD}", f"pasword={PASSWORD}", f"user={USER}", f"token={PASSWORD}", f"sslpassword={PASSWORD}"]
)
def test_the_value_of_an_option_that_there_is_not_is_not_told(form: str, option: str) -> None:
    url = f"{FORMS[form].format(user='a', password='b', at='127.0.0.1:1')}?{option}={PASSWORD}"
    for way in ways(url):
        with pytest.raises(ConfigurationError) as caught:
            way(url)
        assert is_silent(said_by(caught.value))


@pytest.mark.parametrize("form", FORMS)
def test_a_scheme_that_is_misspelt_is_told_without_the_rest(form: str) -> None:
    url = FORMS[form].format(user=USER, password=PASSWORD, at="127.0.0.1:1")
    for wrong in (f"x{url}", url.replace("://", ":/"), url.replace("://", "//")):
        for way in (open_store, open_inbox):
            with pytest.raises(ConfigurationError) as caught:
                way(wrong)
            assert is_silent(said_by(caught.value))


@pytest.mark.parametrize("form", FORMS)
def test_a_policy_does_not_show_the_url_that_it_was_given(form: str) -> None:
    url = FORMS[form].format(user=USER, password=PASSWORD, at="127.0.0.1:1")
    for policy in (Dedup(url), Transactional(url)):
        assert is_silent(f"{policy!r} {policy}")


@pytest.mark.parametrize("form", FORMS)
async def test_the_events_of_an_app_tell_nothing_of_its_store(form: str, tmp_path: Path) -> None:
    app = App("billing", brokers="127.0.0.1:1")
    app.use(Dedup(FORMS[form].format(user=USER, password=PASSWORD, at="127.0.0.1:1")), Events(str(tmp_path / "events")))
    sink = app._slots.open_sink("billing", ["orders"])
    assert sink is not None
    await sink.open()
    await sink.close()
    written = [file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file()]  # nothing else runs
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


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", ["Dedup", "Transactional"])
def test_no_command_shows_user_or_password(form: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = FORMS[form].format(user=USER, password=SPELLINGS["encoded"], at="127.0.0.1:1")
    with app_with(policy, url, tmp_path, monkeypatch) as call:
        for command in ("explain", "doctor"):
            assert is_silent(call(command, "worker:app"))
            assert is_silent(call(command, "worker:app", "--json"))
        assert is_silent(call("--traceback", "run", "worker:app"))
        for command in ("init", "check", "cleanup"):
            assert is_silent(call("--traceback", "store", command, url))
            assert is_silent(call("--traceback", "store", command, "worker:app"))


# Real servers


@pytest.mark.servers
@pytest.mark.parametrize("form", ["redis", "redis+cluster", "postgresql", "postgres", "mysql", "mariadb"])
async def test_a_real_server_that_does_not_let_us_in_is_told_of_without_user_and_password(
    form: str, request: pytest.FixtureRequest
) -> None:
    fixture = {"redis": "redis", "redis+cluster": "cluster", "mysql": "mariadb", "mariadb": "mariadb"}.get(form, "postgres")
    servers = request.getfixturevalue(fixture)
    port = (servers[0] if fixture == "cluster" else servers).port
    refusals = await try_everything(FORMS[form].format(user=USER, password=SPELLINGS["encoded"], at=f"127.0.0.1:{port}"))
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


async def is_a_name_or_refused(url: str, option: str, name: str) -> bool:
    """Either there is one sentence, or it is a place of its own."""
    key = ClaimKey(os.urandom(16), None, 1)
    there = f"{url}?{option}={quote(name, safe='', errors='surrogateescape')}"
    try:
        first = await claim(there, key, 1)
    except ConfigurationError as refusal:
        return is_a_sentence(refusal)
    own = not name or await claim(url, key, 3) == Acquired(1)
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


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_namespace_of_redis_is_a_name_or_refused(redis: SharedServer, name: str) -> None:
    import redis.asyncio as driver

    client = driver.Redis(port=redis.port, db=12)
    await client.flushdb()
    await client.set("canary", "sings")
    assert await is_a_name_or_refused(f"redis://127.0.0.1:{redis.port}/12", "namespace", HOSTILE[name])
    assert await client.get("canary") == b"sings"
    await client.aclose()


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_namespace_of_a_redis_cluster_is_a_name_or_refused(cluster: tuple[SharedServer, ...], name: str) -> None:
    assert await is_a_name_or_refused(f"redis+cluster://127.0.0.1:{cluster[0].port}", "namespace", HOSTILE[name])


@pytest.mark.parametrize("option", ["schema", "prefix"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_schema_or_prefix_of_postgresql_is_a_name_or_refused(
    postgres_url: str, postgres_database: Any, option: str, name: str
) -> None:
    await postgres_database.execute("CREATE TABLE canary (x int)")
    assert await is_a_name_or_refused(postgres_url, option, HOSTILE[name])
    assert await postgres_database.fetchval("SELECT to_regclass('public.canary') IS NOT NULL")


@pytest.mark.parametrize("option", ["schema", "prefix"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_schema_or_prefix_of_an_inbox_is_a_name_or_refused(
    postgres_url: str, postgres_database: Any, option: str, name: str
) -> None:
    await postgres_database.execute("CREATE TABLE canary (x int)")
    assert await finishes_or_is_refused(f"{postgres_url}?{option}={quote(HOSTILE[name], safe='', errors='surrogateescape')}")
    assert await postgres_database.fetchval("SELECT to_regclass('public.canary') IS NOT NULL")


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_prefix_of_mysql_is_a_name_or_refused(mysql: MySQLDatabase, name: str) -> None:
    await mysql.fetch("CREATE TABLE canary (x int)")
    assert await finishes_or_is_refused(f"{mysql.url}?prefix={quote(HOSTILE[name], safe='', errors='surrogateescape')}")
    assert await is_a_name_or_refused(mysql.url, "prefix", HOSTILE[name])
    assert len(await mysql.fetch("SHOW TABLES LIKE 'canary'")) == 1


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "surrogate"])
async def test_a_path_of_sqlite_is_a_file_of_that_name_or_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = HOSTILE[name].replace("/", "_")
    url = f"sqlite:///{quote(asked, safe='')}"
    key = ClaimKey(os.urandom(16), None, 1)
    refusals = []
    try:
        assert await claim(url, key, 1) == Acquired(1)
        assert isinstance(await claim(url, key, 2), Busy)
        assert await SQLiteStore(asked).check() == []
    except (ConfigurationError, StoreUnavailable) as refusal:
        refusals.append(refusal)
    assert all(map(is_a_sentence, refusals))
    assert os.listdir(tmp_path) == ([] if refusals else [asked])
