"""What stands beside a commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, InPlace, Tried, decode, group_hash

FINISHED = FinishedMap(100, 5_000, 6_000, "a1b2", 0b1011)
IN_PLACE = (InPlace(100, 1, 20_000), InPlace(300, 2, 20_500))

MAP = '"f":{"b":100,"t":[5000,6000],"a":"a1b2","m":"Cw=="}'

#: Each with what it says.
GOLDEN = {
    'ackwise2:efbea03b:{"w":"00000073cd9c6c01","s":4711}': CommitMetadata(0x73CD9C6C01, 4711),
    f"ackwise2:ffd721d1:{{{MAP}}}": CommitMetadata(finished=FINISHED),
    f'ackwise2:92b7f147:{{"w":"0000000000000005","s":7,{MAP},"i":[100,20000,"AAEAyAEC9AM="]}}': CommitMetadata(5, 7, FINISHED, IN_PLACE),
    'ackwise2:29659f58:{"g":"24d41c2a46191011","c":"c1","t":"5L6g3nShT-eMCtK--X86sw","n":3,"o":1,"r":[100,32,0,""]}': CommitMetadata(
        group=group_hash("billing"), cluster="c1", topic_id="5L6g3nShT-eMCtK--X86sw", partitions=3, is_open=True, tried=Tried(100, 132, 0)
    ),
    'ackwise2:cca855e5:{"o":0,"r":[100,1,4,"0badcafe"]}': CommitMetadata(is_open=False, tried=Tried(100, 101, 4, "0badcafe")),
}


@pytest.mark.parametrize(("text", "said"), GOLDEN.items())
def test_it_is_written_and_read_like_this(text: str, said: CommitMetadata) -> None:
    assert said.encode() == text
    assert decode(text) == said


def test_a_packed_map_is_read_whatever_packed_it() -> None:
    text = "ackwise2:0b8a9daf:" + '{"f":{"b":100,"t":[5000,6000],"a":"a1b2","z":"eNr7/5/2AACnx2Od"}}'
    assert decode(text) == CommitMetadata(finished=replace(FINISHED, bits=(1 << 800) - 1))


@pytest.mark.parametrize("envelope", ["ackwise1:", "ackwise3:"])
def test_another_version_is_no_metadata_of_ours(envelope: str) -> None:
    assert decode(CommitMetadata(5, 7).encode().replace("ackwise2:", envelope)) is None
