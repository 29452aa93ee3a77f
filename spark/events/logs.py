"""`Logs`: the state of the log files of writers, beyond the events in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ackwise.spark.events.reading import footer_of

__all__ = ["NO_LOGS", "Logs", "rolled_on"]


class Logs(NamedTuple):
    """The state of log files, by the id of their writer."""

    unreadable: frozenset[int] = frozenset()
    """Their log could not be read to its end."""
    still_written: frozenset[int] = frozenset()
    """A worker still writes it."""
    rolled_on: Mapping[int, str] = MappingProxyType({})
    """The boot id of the machine that rolled the last log of a writer that was gone: if it had the same one, nothing that it wrote is
    lost."""


NO_LOGS: Final = Logs()


def rolled_on(files: Iterable[Path]) -> dict[int, str]:
    """Return the boot ids in the last file of each writer; writers of whom it has none are left out. Raises `OSError`."""
    from ackwise.stores.journal.parquet import ROLLED_ON

    last: dict[int, list[tuple[int, Path]]] = defaultdict(list)
    for path in files:
        writer, _, seq = path.stem.split("-")[1:]
        last[int(writer, 16)].append((int(seq), path))
    found: dict[int, str] = {}
    for writer_id, each in last.items():
        end, _ = max(each)
        ids = {(footer_of(path).metadata or {}).get(ROLLED_ON, b"").decode() for seq, path in each if seq == end}
        if len(ids) == 1 and (boot_id := ids.pop()):
            found[writer_id] = boot_id
    return found
