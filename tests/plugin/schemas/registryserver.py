"""A Schema Registry for tests: the part of Confluent's REST interface that readers use, and faults on demand.

No registry is on the machines that tests run on; what is said here of its answers is from its documentation.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Fault = Callable[[], web.StreamResponse]


@dataclass
class RegistryServer:
    """Schemas by id, and versions by subject."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fault: Fault | None = None
    hangs: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    credentials: str | None = None

    def register(
        self, schema_id: int, schema: Any, kind: str = "AVRO", references: list[dict[str, Any]] | None = None, **more: Any
    ) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        answer = {"schema": text, **({} if kind == "AVRO" else {"schemaType": kind}), **more}
        self.schemas[schema_id] = answer if references is None else {**answer, "references": references}

    def register_version(self, subject: str, version: int, schema_id: int) -> None:
        self.versions[subject, version] = {"subject": subject, "version": version, "id": schema_id, **self.schemas[schema_id]}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        if self.hangs:
            self.arrived.set()
            await self.released.wait()
        if self.fault is not None:
            return self.fault()
        if self.credentials is not None and request.headers.get("Authorization") != self.credentials:
            return failed(401, 401, "Unauthorized")
        match request.path.strip("/").split("/"):
            case ["schemas", "ids", schema_id]:
                found = self.schemas.get(int(schema_id))
                return failed(404, 40403, "Schema not found") if found is None else web.json_response(found)
            case ["subjects", subject, "versions", version]:
                found = self.versions.get((subject, int(version)))
                return failed(404, 40402, "Version not found") if found is None else web.json_response(found)
        return failed(404, 404, "HTTP 404 Not Found")


def failed(status: int, code: int, text: str) -> web.Response:
    return web.json_response({"error_code": code, "message": text}, status=status)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@asynccontextmanager
async def running_registry() -> AsyncIterator[RegistryServer]:
    registry = RegistryServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", registry.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        registry.url = f"http://{host}:{port}"
        yield registry
    finally:
        registry.released.set()
        await runner.cleanup()
