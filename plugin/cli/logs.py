"""Log output of `ackwise run`: text for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from ackwise.plugin.cli.repeatedlines import Repeats

__all__ = ["JsonLines", "LogFormat", "LogLevel", "print_log"]

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class JsonLines(logging.Formatter):
    """Each record as `{"time", "level", "logger", "event", "fields"}`; `fields` is empty for loggers that are not ours."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, with `traceback` where the record has one."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
            "fields": getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def print_log(level: LogLevel, form: LogFormat) -> None:
    """Print what is logged from `level` on to stderr, and of the Kafka client warnings only unless debugging, each once in a while."""
    printing = logging.StreamHandler(sys.stderr)
    printing.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    printing.addFilter(Repeats())
    logging.basicConfig(level=level.upper(), handlers=[printing])
    # Never its own debug level: it logs requests, answers and records as a whole there, with payloads and SASL passwords.
    client = {"debug": logging.INFO, "error": logging.ERROR}.get(level, logging.WARNING)
    logging.getLogger("aiokafka").setLevel(client)
