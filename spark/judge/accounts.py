"""The accounts: in each source partition, every offset up to the last commit has exactly one verdict.

Offsets with events are counted from the messages' states, offsets without from the words, and how many there must be
from the commits. The three ways are independent, so a wrong sum is a fault in the job or in the events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import AckwiseError
from ackwise.spark.fold.facts import Committed, Facts, Partition
from ackwise.spark.vocabulary import Verdict

__all__ = ["GAP", "PartitionAccount", "UnbalancedAccounts", "check", "domains", "keep"]

#: The name of offsets that are empty on the broker: transaction markers, compacted records.
GAP: Final = "GAP"


class UnbalancedAccounts(AckwiseError):
    """The verdicts of a partition do not add up to its offsets: a fault in the job or in the events."""


@dataclass(frozen=True, slots=True)
class PartitionAccount:
    """One partition: offsets `start` to before `committed`, by verdict, and those that the broker does not have."""

    partition: Partition
    start: int
    committed: int
    rewound: bool
    """A commit went back behind an earlier one; what lies between is delivered again."""
    messages: Mapping[Verdict, int]
    absent: Mapping[Verdict, int]
    """Offsets that no event is about."""
    gaps: int

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """The number of offsets by verdict, worst first."""
        return {verdict: self.messages.get(verdict, 0) + self.absent.get(verdict, 0) for verdict in sorted({*self.messages, *self.absent})}

    @property
    def expected(self) -> int:
        """The number of offsets to account for."""
        return self.committed - self.start

    @property
    def balance(self) -> int:
        """The number of offsets without an account; negative if some are counted twice."""
        return self.expected - sum(self.verdicts.values()) - self.gaps


def domains(facts: Facts, commits: Mapping[int, Committed]) -> dict[int, tuple[int, int]]:
    """Return the offsets to account for in each source partition, by `pk`: from the first to before the second."""
    found = {}
    for pk, partition in facts.partitions.items():
        commit = commits.get(pk)
        if partition.is_source and partition.start is not None and commit is not None and commit.highest is not None:
            start = max(partition.start, partition.start if commit.resumed is None else commit.resumed)
            found[pk] = (start, max(start, commit.highest))
    return found


def keep(
    facts: Facts,
    commits: Mapping[int, Committed],
    with_events: Iterable[tuple[int, Verdict, int]],
    without: Mapping[int, Mapping[str, int]],
) -> list[PartitionAccount]:
    """Return the accounts. `with_events` has `pk`, verdict and number of offsets; `without` the classes of the others by `pk`."""
    messages: dict[int, Counter[Verdict]] = defaultdict(Counter)
    for pk, verdict, number in with_events:
        messages[pk][verdict] += number
    accounts = []
    for pk, (start, end) in domains(facts, commits).items():
        classes = without.get(pk, {})
        absent = {Verdict[name]: number for name, number in classes.items() if name != GAP and number}
        accounts.append(
            PartitionAccount(facts.partitions[pk], start, end, bool(commits[pk].rewound), messages[pk], absent, classes.get(GAP, 0))
        )
    return sorted(
        accounts,
        key=lambda account: (account.partition.group, account.partition.topic, account.partition.topic_id, account.partition.partition),
    )


def check(accounts: Sequence[PartitionAccount]) -> None:
    """Raise `UnbalancedAccounts` unless every offset has been accounted for once."""
    wrong = [account for account in accounts if account.balance]
    if wrong:
        account, place = wrong[0], wrong[0].partition
        raise UnbalancedAccounts(
            f"{place.topic}/{place.partition} of group {place.group[1]}: {account.expected} offsets from {account.start} to "
            f"{account.committed}, and {account.balance:+d} of them unaccounted for, as in {len(wrong)} partitions; "
            "do not rely on this run, and please report it with the events"
        )
