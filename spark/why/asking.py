"""Asking for the life of one message: gathers the events and inquires, without Spark. What is in the way is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pyarrow import ArrowInvalid

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.sources import gathered, refuse_nothing
from ackwise.spark.why.answer import Answer, inquire

__all__ = ["ask"]


def ask(
    message: str,
    roots: Sequence[Path],
    config: ReconcileConfig,
    *,
    namespace: str | None = None,
    last_commits: Sequence[LastCommit] = (),
    progress: Callable[[str], None] = lambda step: None,
) -> Answer:
    """Return the answer about `message` from the events below `roots`.

    Raises `NoSuchRecord`, and `AckwiseError` for folders without events and files that can't be read.
    """
    try:
        with TemporaryDirectory(prefix="ackwise-") as scratch, gathered(roots, Path(scratch) / "live") as evidence:
            refuse_nothing(evidence)
            return inquire(message, evidence, config, namespace=namespace, last_commits=last_commits, progress=progress)
    except (ArrowInvalid, OSError) as error:
        # pyarrow names the file in the first of several lines, and raises either of the two.
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0].rstrip(".")
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        raise AckwiseError(f"the events can't be read: {where}{reason}; nothing was concluded") from error
