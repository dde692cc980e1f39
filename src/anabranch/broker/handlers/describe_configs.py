"""DescribeConfigs, versions 1 to 4: topics and this broker, with synonyms, types and documentation.

Our own resource type 100, named by a broker's id, is what that broker says of its object store.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers import config_resources
from anabranch.broker.handlers.answers import AnswerRoom, accepted, refused
from anabranch.broker.handlers.config_resources import check_broker, no_such_type, topic_of, with_mode
from anabranch.broker.requests.call import Call
from anabranch.broker.requests.turns import Rows
from anabranch.broker.topics.placing import usual_factor
from anabranch.cluster.metadata.residence import form_in
from anabranch.config import ConfigEntry, host_and_port
from anabranch.config.setting import ConfigSource, Kind
from anabranch.errors import AnabranchError, InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.metadata.rows import Topic

CHANGING = "anabranch.mode.changing"

CONFIG_BYTES = 500
"""What one of them takes in memory until it is sent."""


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    room = AnswerRoom(broker)
    # Once each, or a small request that repeats itself would be answered at great length.
    distinct = {(each["resource_type"], each["resource_name"]): each for each in request["resources"]}
    rows = []
    for resource in distinct.values():
        rows.append(_row(broker, call, resource, request, room))
        yield
    return {"results": rows}


def _row(
    broker: "Broker", call: Call, resource: dict[str, Any], request: dict[str, Any], room: AnswerRoom
) -> dict[str, Any]:
    row = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
    try:
        entries = _entries(broker, call, resource)
        if resource["configuration_keys"]:
            keys = set(resource["configuration_keys"])
            entries = [entry for entry in entries if entry.name in keys]
        room.take(len(entries) * CONFIG_BYTES)
    except AnabranchError as error:
        return {**row, **refused(error), "configs": []}
    return {**row, **accepted(), "configs": [_config(entry, request) for entry in entries]}


def _entries(broker: "Broker", call: Call, resource: dict[str, Any]) -> list[ConfigEntry]:
    match resource["resource_type"]:
        case 2:
            name = resource["resource_name"]
            state = broker.topics.find_view(name) or topic_of(broker, name)
            placements = broker.metadata.table.placements(state.topic)
            entries = with_mode(state.settings.describe(broker.settings), placements)
            return [*entries, *_change_under_way(state.topic)]
        case 4:
            check_broker(broker, resource["resource_name"])
            # Without a name, the defaults of all brokers are meant, which only a running cluster can change.
            return (
                [*broker.settings.describe(), *_kafka_names(broker, call)]
                if resource["resource_name"]
                else []
            )
        case config_resources.OBJECTS:
            check_broker(broker, resource["resource_name"])
            return _object_facts(broker)
        case other:
            raise no_such_type(other)


def _kafka_names(broker: "Broker", call: Call) -> list[ConfigEntry]:
    """What tools for Kafka look for under Kafka's names, where ours are other ones."""
    listen_host, listen_port = host_and_port(broker.settings.listen)
    host, port = broker.address_for(call.client)
    values = {
        "node.id": str(broker.id),
        "process.roles": "broker,controller",
        "listeners": _endpoint(listen_host, listen_port or call.client.local_address[1]),
        "advertised.listeners": _endpoint(host, port),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dir": broker.data_dir,
        "log.dirs": broker.data_dir,
        "offsets.topic.replication.factor": str(usual_factor(broker)),
        "unclean.leader.election.enable": "false",
    }
    return [
        ConfigEntry(name, value, ConfigSource.NODE, Kind.STRING, "As this node has it.", True, ())
        for name, value in values.items()
    ]


def _endpoint(host: str, port: int) -> str:
    return f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}"


def _change_under_way(topic: "Topic") -> list[ConfigEntry]:
    """While a topic changes its mode: how many of its partitions have not gone over yet."""
    if not topic.forms:
        return []
    waiting = sum(form != form_in(topic.mode) for form in topic.forms)
    value = f"{waiting} of {topic.partition_count} partitions have not gone over yet"
    doc = "Which partitions do not have the form yet that anabranch.mode asks for."
    return [ConfigEntry(CHANGING, value, ConfigSource.NODE, Kind.STRING, doc, True, ())]


def _object_facts(broker: "Broker") -> list[ConfigEntry]:
    if broker.objects is None:
        raise InvalidRequestError(f"Broker {broker.id} has no object store: start it with --object-store.")
    from anabranch.broker.object.report import report

    facts = report(broker, broker.objects)
    return [
        ConfigEntry(name, value, ConfigSource.NODE, Kind.STRING, "", True, ())
        for name, value in facts.items()
    ]


def _config(entry: ConfigEntry, request: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": False,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
            for synonym in entry.synonyms
        ]
        if request["include_synonyms"]
        else [],
        "config_type": entry.kind,
        "documentation": entry.doc if request["include_documentation"] else None,
    }
