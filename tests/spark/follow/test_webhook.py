"""A webhook gets each alarm as JSON, and nothing that it does hides that an alarm was not delivered."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.follow.webhook import Undelivered, Webhook, url_of


class Server:
    """Answers with these statuses, the last one for ever, and keeps what was posted."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.taken: list[dict[str, Any]] = []
        self.requests = 0
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = told.statuses.pop(0) if len(told.statuses) > 1 else told.statuses[0]
                if status < 300:
                    told.taken.append(json.loads(body))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # its name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/secret-path"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def hook(url: str) -> Webhook:
    return Webhook(url, wait=lambda seconds: None)


@pytest.fixture
def no_server() -> Iterator[str]:
    """The URL of a port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/secret-path"


def test_an_alarm_is_posted_as_json_again_after_an_error_and_taken_once() -> None:
    with Server(503, 429, 200) as server:
        hook(server.url).post({"text": "späť", "new": [1]})
    assert (server.requests, server.taken) == (3, [{"text": "späť", "new": [1]}])


def test_what_is_no_success_is_not_delivered() -> None:
    for status in (301, 302, 303, 307, 400, 404, 500):
        with Server(status) as server, pytest.raises(Undelivered, match=f"127.0.0.1: status {status}$"):
            hook(server.url).post({"text": "x"})
        assert server.taken == []


def test_where_nobody_listens_it_says_so_without_the_path(no_server: str) -> None:
    with pytest.raises(Undelivered, match="refused") as found:
        hook(no_server).post({"text": "x"})
    assert "secret" not in str(found.value)


def test_a_server_that_answers_nonsense_has_not_taken_it() -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for _ in range(3):
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"hello\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # what is left unread as it is closed resets the connection, and the answer is lost
                    pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with pytest.raises(Undelivered, match="BadStatusLine"):
            hook(f"http://127.0.0.1:{listening.getsockname()[1]}/").post({"text": "x"})
    finally:
        thread.join()
        listening.close()


def test_a_server_that_never_answers_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.spark.follow.webhook._LONGEST", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Undelivered, match=r"no answer within 0\.2 s"):
        hook(f"http://127.0.0.1:{silent.getsockname()[1]}/").post({"text": "x"})


def test_a_url_may_be_in_a_file_and_one_that_can_not_be_asked_is_refused_without_it(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text("https://hooks.example.com/T0/secret\n")
    assert (url_of(str(file)), url_of("http://h.example/x")) == ("https://hooks.example.com/T0/secret", "http://h.example/x")
    for url in (
        "https://", "https://user:secret@host/x", "http://host:0/secret", "https://host/secret x", "http://[::1/secret", "http://host:x/secret",
    ):  # fmt: skip
        file.write_text(url)
        for given in (url, str(file)):
            with pytest.raises(ConfigurationError, match="holds no URL that can be asked; write it as https://host/path") as found:
                url_of(given)
            assert "secret" not in str(found.value)
    with pytest.raises(ConfigurationError, match="neither a URL nor a readable file"):
        url_of(str(tmp_path / "none"))
