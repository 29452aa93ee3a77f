"""The page about Sentry: its app runs in its own process, with the SDK's transport in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import snippets

#: What the page leaves to the reader: where events go, and a message.
AROUND = """
import asyncio, json
import sentry_sdk
from sentry_sdk.transport import Transport
from ackwise.testing import TestApp

sent = []

class InMemory(Transport):
    def capture_envelope(self, envelope):
        sent.append(envelope)

real = sentry_sdk.init
sentry_sdk.init = lambda **options: real(dsn="https://key@sentry.invalid/1", transport=InMemory, **options)
exec(compile(open("page.py").read(), "page.py", "exec"))

async def main():
    async with TestApp(app) as test:
        fate = await test.deliver("orders", {"customer": "ann", "card": "hu" "sh"}, key="hu" "sh")
    logger = __import__("logging").getLogger("ackwise")
    for retry in (1, 2):
        logger.error("the store is down: %s", f"retry_in={retry}")
    sentry_sdk.flush()
    events = [item.payload.json for envelope in sent for item in envelope.items if item.type == "event"]
    print(json.dumps({"kind": fate.kind, "events": events}))

asyncio.run(main())
"""


def told(folder: Path) -> Any:
    (block,) = (each for each in snippets("docs/how-to/sentry.md") if each.language == "python")
    (folder / "page.py").write_text(block.code)
    (folder / "around.py").write_text(AROUND)
    done = subprocess.run([sys.executable, "around.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_a_handler_raises_is_an_event_and_the_message_comes_back(tmp_path: Path) -> None:
    found = told(tmp_path)
    assert found["kind"] == "later"
    raised, *logged = found["events"]
    (exception,) = raised["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("KeyError", "'no vat for ann'")
    assert raised["tags"]["message"] == "orders/0/0"
    assert raised["tags"]["attempt"] in (1, "1")
    assert raised["transaction"] == "process orders"
    # It is spelled in two parts above: Sentry shows lines of source.
    assert "hush" not in json.dumps(found)
    # Two lines of one event are one issue: the template is the same.
    assert {event["logentry"]["message"] for event in logged} == {"the store is down: %s"}
