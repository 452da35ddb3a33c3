"""No password goes into a Spark whose ports are open to everybody, and nobody must set what we can set ourselves."""

from __future__ import annotations

import pytest

from spark_integration.mirror.spark_traffic import holds_secret, traffic_settings
from tolerant_client.errors import OptionError

BOTH = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
LOGIN = "org.apache.kafka.common.security"


@pytest.mark.parametrize("master", ["local", "local[4]", "local[2,8]", "local[*]"])
def test_a_local_session_of_spark_submit_authenticates_and_encrypts(master: str) -> None:
    assert traffic_settings({"spark.master": master}, has_secret=True) == (BOTH, None)
    assert traffic_settings({"spark.master": master, "spark.network.crypto.enabled": "false"}, has_secret=True) == (
        {"spark.authenticate": "true"},
        None,
    )


@pytest.mark.parametrize("master", ["yarn", "k8s://https://k:6443", "spark://m:7077", "local-cluster[2,1,1024]"])
def test_a_cluster_that_answers_everybody_gets_no_password(master: str) -> None:
    with pytest.raises(
        OptionError, match="--conf spark.authenticate=true --conf spark.network.crypto.enabled=true"
    ) as caught:
        traffic_settings({"spark.master": master}, has_secret=True)
    is_told_to_give_a_secret = "spark.authenticate.secret in the spark-defaults.conf" in str(caught.value)
    assert is_told_to_give_a_secret == (master not in ("yarn", "k8s://https://k:6443"))


@pytest.mark.parametrize(
    "conf, reason",
    [
        ({}, "reaches the ports"),
        ({"spark.authenticate": "false"}, "reaches the ports"),
        ({"spark.authenticate": "true"}, "sees the traffic"),
    ],
)
def test_a_cluster_without_passwords_or_with_its_operators_word_is_warned_of(conf: dict[str, str], reason: str) -> None:
    settings, warning = traffic_settings({"spark.master": "yarn", **conf}, has_secret=bool(conf))
    assert settings == {} and warning is not None and reason in warning
    assert "spark.network.crypto.enabled=true" in warning


def test_a_secured_cluster_is_left_as_it_is() -> None:
    assert traffic_settings({"spark.master": "spark://m:7077", **BOTH}, has_secret=True) == ({}, None)


@pytest.mark.parametrize(
    "properties, holds",
    [
        ({"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.keystore.location": "/k.pem"}, False),
        ({"sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required username="u" password="p";'}, True),
        ({"sasl.jaas.config": f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required clientSecret = "s";'}, True),
        ({"sasl.jaas.config": 'com.sun.security.auth.module.Krb5LoginModule required keyTab="/secrets/k";'}, False),
        ({"ssl.key.password": "p"}, True),
        ({"ssl.keystore.key": "-----BEGIN"}, True),
        ({"sasl.oauthbearer.client.credentials.client.secret": "s"}, True),
    ],
)
def test_what_somebody_could_log_in_with_is_a_secret(properties: dict[str, str], holds: bool) -> None:
    assert holds_secret(properties) is holds
