"""Entry point of the command line. Heavy imports come after the handling of interrupts."""

from __future__ import annotations

import logging
import sys

#: As shells count it: 128 + SIGINT.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line. An `AckwiseError` prints one sentence to stderr and exits with 2."""
    # Python prints log records without a handler; the Kafka client's are in our sentence, or in the log of `run`.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        from ackwise.plugin.cli.root import new_app

        new_app()(prog_name="ackwise")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
