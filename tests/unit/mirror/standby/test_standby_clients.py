"""What a client that follows a link is given."""

from __future__ import annotations

from typing import Any

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.standby.clients import KafkaConsumer, connection_to


def test_no_password_goes_to_a_cluster_for_which_it_was_not_given() -> None:
    to = connection_to({"bootstrap_servers": "b:9092", "security_protocol": "SSL"})
    assert to["security_protocol"] == "SSL" and to["sasl_plain_password"] is None and to["ssl_keyfile"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"standby": {"bootstrap_servers": "b:9092"}}, "standby and link belong together"),
        ({"link": "orders"}, "standby and link belong together"),
        ({"standby": {}, "link": "orders"}, "standby has no bootstrap_servers"),
        ({"standby": "b:9092", "link": "orders"}, "standby is 'b:9092': give a dict"),
        ({"standby": {"bootstrap_servers": "b:9092"}, "link": 5}, "link is 5: give the name"),
        ({"standby": {"bootstrap_servers": "b:9092"}, "link": ""}, "link is '': give the name"),
        (
            {"standby": {"bootstrap_servers": "b:9092", "group_id": "g"}, "link": "x"},
            "standby has group_id, which is no",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_connected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaConsumer(bootstrap_servers="127.0.0.1:1", **options)
