"""Who may talk to Spark's own processes: these exchange the clusters' passwords, and run the code that they receive.

Laws:
- A session that we create authenticates and encrypts, and so does a local one of spark-submit.
- A cluster's session is its operator's: without authentication it gets no password, unless spark.authenticate=false
  states explicitly that nobody else can reach its ports.
- Spark alone handles the secret: we put it on no command line, in no file and in no setting.

Facts (Spark's SecurityManager.scala, initializeAuth): with spark.authenticate Spark makes the secret itself under local,
yarn and k8s; everywhere else spark.authenticate.secret has to be set for all processes of the cluster.

This module imports no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tolerant_client.errors import OptionError

AUTHENTICATE: Final = "spark.authenticate"
SETTINGS: Final = {AUTHENTICATE: "true", "spark.network.crypto.enabled": "true"}

_LOCAL: Final = re.compile(r"local(\[.*\])?")  # not local-cluster
_MAKES_SECRETS: Final = re.compile(r"yarn|k8s:.*")
_SECRET_NAME: Final = re.compile(r"password|secret|ssl\.keystore\.key", re.IGNORECASE)
_SECRET_OF_A_LOGIN: Final = re.compile(r"(password|secret)\s*=", re.IGNORECASE)  # a keytab's path is no secret


def holds_secret(properties: Mapping[str, str]) -> bool:
    """Whether somebody who reads these Java client properties could log in with them."""
    return any(
        _SECRET_NAME.search(name) or name == "sasl.jaas.config" and _SECRET_OF_A_LOGIN.search(value)
        for name, value in properties.items()
    )


def traffic_settings(conf: Mapping[str, str], *, has_secret: bool) -> tuple[dict[str, str], str | None]:
    """The settings to add to the settings `conf` of spark-submit, and a warning.

    Raises OptionError if anybody who reaches Spark's ports could read passwords.
    """
    master = conf.get("spark.master", "local[*]")
    if AUTHENTICATE not in conf and _LOCAL.fullmatch(master):
        return {name: value for name, value in SETTINGS.items() if name not in conf}, None
    missing = [name for name in SETTINGS if conf.get(name, "").lower() != "true"]
    if not missing:
        return {}, None
    remedy = f"give spark-submit {' '.join(f'--conf {name}=true' for name in missing)}"
    if AUTHENTICATE in missing and not _MAKES_SECRETS.fullmatch(master) and not _LOCAL.fullmatch(master):
        remedy += ", and spark.authenticate.secret in the spark-defaults.conf of all machines, never on a command line"
    if has_secret and AUTHENTICATE not in conf:
        raise OptionError(
            "Anybody who reaches the ports of Spark's processes could read the clusters' passwords:"
            f" {remedy}; or --conf {AUTHENTICATE}=false if nobody else can reach them"
        )
    if AUTHENTICATE in missing:
        return {}, f"anybody who reaches the ports of Spark's processes can talk to them: {remedy}"
    return {}, f"anybody who sees the traffic of Spark's processes can read it: {remedy}"
