"""Runs what `make bench` promises: what a message costs beside others, on Faust, in each store, what the event journal costs, and what the
reconciliation.

By themselves run the long ones: `python -m benchmarks.two_workers`, `benchmarks.concurrency`, `benchmarks.delays`, `benchmarks.outbox`,
`benchmarks.beside`, `benchmarks.cdc` and `benchmarks.kills`.
"""

from __future__ import annotations

import argparse
import json

from benchmarks import consumers, journal, reconciliation, stores, streams
from rich.console import Console


def main() -> None:
    """All five, one after the other; each has more options when it is run alone: `python -m benchmarks.consumers --help`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no tables")
    as_json = parser.parse_args().json
    console = Console(stderr=as_json)
    messages = consumers.run(consumers.read_options([]), console)
    if not as_json:
        console.print(*messages.tables())
    agents = streams.run(streams.read_options([]), console)
    if not as_json:
        console.print(*agents.tables())
    claims = stores.run(stores.read_options([]), console)
    if not as_json:
        console.print(*claims.tables())
    events = journal.run(journal.read_options([]))
    if not as_json:
        console.print(*(rows.table() for rows in events))
    judged = reconciliation.run(reconciliation.read_options([]), Console(stderr=True))
    if as_json:
        found: dict[str, object] = {"consumers": messages.as_json(), "streams": agents.as_json(), "stores": claims.as_json()}
        found |= {"journal": {rows.title: rows.as_json() for rows in events}, "reconciliation": judged.as_json()}
        print(json.dumps(found, indent=2))
    else:
        console.print(*judged.tables())


main()
