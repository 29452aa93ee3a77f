"""The accounts of produced records: the fate of each produced record, by partition. Plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ackwise.spark.fold.facts import Partition
from ackwise.spark.judge.accounts import UnbalancedAccounts
from ackwise.spark.vocabulary import Account, ProducedVerdict

__all__ = ["ALL_PRODUCED", "Orphans", "ProducedAccount", "Production", "Unpublished", "Unsent", "keep_produced"]

#: The name of the number of all records, beside that of each `Account`.
ALL_PRODUCED: Final = "all_produced"


class Unpublished(NamedTuple):
    """Records of a topic without coordinates; `late` of them should have had some by now."""

    topic: str
    rows: int
    late: int


class Unsent(NamedTuple):
    """Messages of the producer side to one topic that are not sent, by the events; `verdict` is None while they are under way."""

    topic: str
    verdict: ProducedVerdict | None
    messages: int


class Orphans(NamedTuple):
    """Offsets that a group consumed and nobody produced: `start` to before `end`."""

    group: str
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ProducedAccount:
    """One partition as one group reads it."""

    partition: Partition
    counts: Mapping[Account, int]
    """Every one but ORPHAN."""
    orphans: int

    @property
    def produced(self) -> int:
        """The number of records to account for."""
        return sum(self.counts.values())

    @property
    def lost(self) -> int:
        """The number of them that are LOST_PRODUCED."""
        return self.counts[Account.LOST_PRODUCED] + self.counts[Account.LOST_BEFORE_START]


@dataclass(frozen=True, slots=True)
class Production:
    """A table of produced records, compared with the events."""

    path: str
    """Of the table; empty if only events say what was produced."""
    accounts: Sequence[ProducedAccount]
    unpublished: Sequence[Unpublished]
    unread: int
    """Rows of partitions that no group has read."""
    orphans: Sequence[Orphans]
    """The first."""
    unsent: Sequence[Unsent] = ()

    @property
    def lost_before_start(self) -> int:
        """The number of LOST_PRODUCED below the first offset of a group, so outside its accounts."""
        return sum(account.counts[Account.LOST_BEFORE_START] for account in self.accounts)

    @property
    def not_published(self) -> int:
        """The number of records that are late to get coordinates."""
        return sum(each.late for each in self.unpublished) + self.number_of(ProducedVerdict.NOT_PUBLISHED)

    @property
    def under_way(self) -> int:
        """The number of records without coordinates that are not late."""
        return sum(each.rows - each.late for each in self.unpublished) + self.number_of(None)

    @property
    def numbers(self) -> Mapping[ProducedVerdict, int]:
        """The number of records of each verdict."""
        return {verdict: self.number_of(verdict) for verdict in ProducedVerdict} | {
            ProducedVerdict.NOT_PUBLISHED: self.not_published,
            ProducedVerdict.ORPHAN_CONSUMED: self.orphaned,
        }

    def number_of(self, verdict: ProducedVerdict | None) -> int:
        """Return the number of messages with this verdict, by the events of the producer side."""
        return sum(each.messages for each in self.unsent if each.verdict is verdict)

    @property
    def orphaned(self) -> int:
        """The number of records that were consumed and not produced."""
        return sum(account.orphans for account in self.accounts)


def keep_produced(
    partitions: Mapping[int, Partition], counted: Mapping[int, Mapping[str, int]], wanted: Iterable[int]
) -> list[ProducedAccount]:
    """Return the accounts of the partitions `wanted`, by `pk`. Raises `UnbalancedAccounts` if one does not add up."""
    accounts = []
    for pk in wanted:
        partition, all_counts = partitions[pk], counted.get(pk, {})
        counts: dict[Account, int] = {each: all_counts.get(each, 0) for each in Account if each is not Account.ORPHAN}
        account = ProducedAccount(partition, counts, all_counts.get(Account.ORPHAN, 0))
        produced = all_counts.get(ALL_PRODUCED, 0)
        if account.produced != produced:
            raise UnbalancedAccounts(
                f"{partition.topic}/{partition.partition} of group {partition.group[1]}: {produced} records were produced, and "
                f"{account.produced} are accounted for; do not rely on this run, and please report it with the events"
            )
        accounts.append(account)
    return sorted(
        accounts, key=lambda each: (each.partition.group, each.partition.topic, each.partition.topic_id, each.partition.partition)
    )
