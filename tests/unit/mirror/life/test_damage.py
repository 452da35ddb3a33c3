"""What a target shows of copies that it has lost, where the source is gone (damage.py)."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.life.damage import SeenLog, damage_of
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds

P = TopicPartition("orders", 0)
IDS = TopicIds("", "target-id")
CONTROL = LinkControl(producer_ids=(7,), begun={P: TopicIds("source-id", "target-id")}, copied={P: 200})
STARTS = LinkControl(producer_ids=(7,), begun=CONTROL.begun, log_starts={P: 500})


@pytest.mark.parametrize(
    ("control", "now", "log", "text", "copied_until"),
    [
        (CONTROL, TopicIds("", "another"), SeenLog(0, 0, 0), "made anew on the target", 0),
        (CONTROL, TopicIds("", "another"), SeenLog(0, 300, 0, foreign=-1), "up to offset 200", 0),
        (CONTROL, IDS, SeenLog(0, 150, 150), "ends at offset 150, and link dr had copied it up to 200", 150),
        (CONTROL, IDS, SeenLog(0, 230, 200, foreign=-1), "others have written to orders-0", 200),
        (STARTS, IDS, SeenLog(0, 100, 100, is_filler=True), "to begin at offset 500, and ends at 100", 0),
        (STARTS, IDS, SeenLog(100, 100, 100), "nothing of orders-0 was copied", 0),
        (STARTS, IDS, SeenLog(0, 500, 500, is_filler=True), "nothing of orders-0 was copied", 0),
    ],
)
def test_what_is_no_copy_is_named_and_no_record_of_others_counts(
    control: LinkControl, now: TopicIds, log: SeenLog, text: str, copied_until: int
) -> None:
    found = damage_of("dr", control, P, now, log)
    assert found is not None and text in found.text and found.copied_until == copied_until


@pytest.mark.parametrize(
    ("control", "now", "log"),
    [
        (CONTROL, IDS, SeenLog(0, 200, 200)),
        (CONTROL, IDS, SeenLog(50, 400, 400)),
        (CONTROL, TopicIds("", ""), SeenLog(0, 200, 200)),
        (STARTS, IDS, SeenLog(0, 0, 0)),
        (STARTS, IDS, SeenLog(500, 500, 500)),
        (STARTS, IDS, SeenLog(500, 600, 600)),
        (STARTS, IDS, SeenLog(0, 500, 500)),  # where nothing is deleted the filler stays
        (LinkControl(producer_ids=(7,)), IDS, SeenLog(0, 20, 20)),
    ],
)
def test_a_copy_has_no_damage(control: LinkControl, now: TopicIds, log: SeenLog) -> None:
    assert damage_of("dr", control, P, now, log) is None


def test_a_topic_of_the_targets_own_is_no_damage_and_nothing_of_it_is_copied() -> None:
    local = TopicPartition("local", 0)
    found = damage_of("dr", CONTROL, local, IDS, SeenLog(0, 30, 0, foreign=-1))
    assert found is not None and (found.text, found.copied_until) == ("", 0)
    found = damage_of("dr", CONTROL, local, IDS, SeenLog(0, 30, 10, foreign=-1))  # a link that remembers no beginnings
    assert found is not None and "from offset 10 on" in found.text
