"""What stands beside a commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ackwise.middleware.commitmetadata import CommitMetadata, FinishedMap, InPlace, decode

FINISHED = FinishedMap("c1", 100, 5_000, 6_000, "a1b2", 0b1011)
IN_PLACE = (InPlace(100, 1, 20_000), InPlace(300, 2, 20_500))

MAP = '"f":{"c":"c1","b":100,"t":[5000,6000],"a":"a1b2","m":"Cw=="}'

#: Each with what it says.
GOLDEN = {
    'ackwise1:efbea03b:{"w":"00000073cd9c6c01","s":4711}': CommitMetadata(0x73CD9C6C01, 4711),
    f"ackwise1:9c68c029:{{{MAP}}}": CommitMetadata(finished=FINISHED),
    f'ackwise1:88b0ff39:{{"w":"0000000000000005","s":7,{MAP},"i":[100,20000,"AAEAyAEC9AM="]}}': CommitMetadata(5, 7, FINISHED, IN_PLACE),
}


@pytest.mark.parametrize(("text", "said"), GOLDEN.items())
def test_it_is_written_and_read_like_this(text: str, said: CommitMetadata) -> None:
    assert said.encode() == text
    assert decode(text) == said


def test_a_packed_map_is_read_whatever_packed_it() -> None:
    text = "ackwise1:b5a314f7:" + '{"f":{"c":"c1","b":100,"t":[5000,6000],"a":"a1b2","z":"eNr7/5/2AACnx2Od"}}'
    assert decode(text) == CommitMetadata(finished=replace(FINISHED, bits=(1 << 800) - 1))


@pytest.mark.parametrize("envelope", ["ackwise0:", "ackwise2:"])
def test_another_version_is_no_metadata_of_ours(envelope: str) -> None:
    assert decode(CommitMetadata(5, 7).encode().replace("ackwise1:", envelope)) is None
