"""What a cluster offers a sweep, before one is submitted."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.config import PoolConfig
from cluster.jobs import connect_raw
from cluster.resources import trainers_of


def check(address: str | None) -> Iterator[str]:
    """Lines on the cluster's nodes and the trainers they have room for.

    Raises:
        UserError: no cluster answers.
    """
    server = connect_raw(address).get_address()  # first: Ray reads once, when it is loaded, whether to send a token
    import ray
    from ray.util.state import list_nodes

    nodes = [node for node in list_nodes(address=server, detail=True) if node.state == "ALIVE"]
    gpus = any(node.resources_total.get("GPU", 0.0) > 0 for node in nodes)
    rooms = [trainers_of(node.resources_total, PoolConfig(), gpus=gpus) for node in nodes]
    yield f"{server}: nodes {len(nodes)}, room for trainers {sum(rooms)} (ray {ray.__version__} here)"
    for node, room in zip(nodes, rooms, strict=True):
        total = node.resources_total
        memory = total.get("memory", 0.0) / 2**30
        yield (
            f"  {node.node_ip}: {total.get('CPU', 0.0):g} CPUs, {total.get('GPU', 0.0):g} GPUs, {memory:,.0f} GiB, "
            f"room for trainers {room}"
        )
