"""The command `tolerant-kafka list`: which links a target has."""

from __future__ import annotations

from typing import Annotated

from kafka.errors import TopicAuthorizationFailedError

from spark_integration.cli.link import end_with, given_link
from spark_integration.cli.options import Json, WhichLink
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.life.listing import Listing
from tolerant_client.mirror.life.listing import list_links as links_of
from tolerant_client.ops.printing import echo, working
from tolerant_client.security.kafka_config import kafka_python_config


def list_links(
    which: Annotated[WhichLink, ("target", "config", "flow", "target_properties")],
    as_json: Json = False,
) -> None:
    """List the links that copy, or have copied, to a cluster: their sources and topics, and whether a mirror of each runs.

    With --config it lists all links of the target of the file's flow.
    Exit code 3: which links there are, or what one of them is, is unknown.
    """
    given = given_link(which, needs_link=False)
    try:
        # Without the file's options: what is advised is of links that the file does not name, too.
        with Cluster(kafka_python_config(given.target), name="target") as cluster:
            with working("checking for running mirrors"):
                found = cluster.run(links_of, cluster)
    except TopicAuthorizationFailedError as error:  # a right that is missing has the exit code that it has in `status`
        raise OptionError(text_of(error)) from error
    end_with(found, as_json, _show)


def _show(found: Listing) -> None:
    for link in found.links:
        source = "unknown" if link.control is None else link.control.source_cluster_id or "unknown"
        echo(f"link {link.link}: {link.state}")
        echo(f"  offsets: {link.offsets_words}; from cluster: {source}; topics: {link.topics}")
    if found.unknown is not None:
        echo(found.unknown)
    elif not found.links:
        echo("This cluster has no links")
