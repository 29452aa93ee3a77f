"""`Finding`: the result of one check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ackwise.middleware.errors import AckwiseError

__all__ = ["Finding", "refused"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and what to do unless it is well."""

    subject: str
    verdict: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""


def refused(subject: str, error: AckwiseError) -> Finding:
    """The problem that an error of ours speaks of; what to do stands after the last semicolon of its sentence."""
    found, _, advice = str(error).rpartition("; ")
    return Finding(subject, "problem", found, advice) if found else Finding(subject, "problem", str(error))
