"""The producer compared with other products: JetStream, Redis and RabbitMQ, if they are installed."""

from collections.abc import Callable, Sequence

from millrace_client import Event
from tests.bench.measuring import Contender, Scenario, of_fastest_peer
from tests.bench.payloads import BATCH_EVENTS, FILE_CHANNEL, append_columns, rows
from tests.bench.peers.jetstream import jetstream_contender
from tests.bench.peers.peer_server import MissingPeerError
from tests.bench.peers.rabbitmq import rabbitmq_contender
from tests.bench.peers.redis_streams import redis_contender
from tests.bench.scenarios.append_stream import IN_FLIGHT
from tests.bench.scenarios.producer import producer_contenders
from tests.bench.world import World

_OPERATIONS = 100

MakePeer = Callable[[World, Sequence[Event]], tuple[Contender, str]]
_PEERS: dict[str, MakePeer] = {
    "JetStream": jetstream_contender,
    "Redis": redis_contender,
    "RabbitMQ": rabbitmq_contender,
}


def file_peers_scenario(world: World) -> Scenario:
    """One process sends the same events through each client, and all of them must be on the disk."""
    world = world.on(FILE_CHANNEL)
    made = [Event(row.body, dict(row.headers)) for row in rows(BATCH_EVENTS)]
    peers: list[Contender] = []
    notes: list[str] = []
    for name, make in _PEERS.items():
        try:
            peer, remark = make(world, made)
        except MissingPeerError as error:
            notes.append(f"{name} is left out: {error}")
        else:
            peers.append(peer)
            notes.append(remark)
    many_at_once, one_by_one, _ = producer_contenders(world, made)
    return Scenario(
        name="file_peers",
        title="File: Producer beside others' clients and servers",
        events_per_operation=BATCH_EVENTS,
        operations=_OPERATIONS,
        # One by one, as the others do.
        ours=[one_by_one, many_at_once],
        echo=world.bare_stream("echo", append_columns(BATCH_EVENTS, world.channel), IN_FLIGHT),
        peers=peers,
        target=of_fastest_peer([peer.name for peer in peers]) if peers else None,
        notes=notes,
    )
