"""One good and one refused exchange for every API, in any version: asked, answered, and the answer understood.

Each function takes a client, a version and a `World` (names that exist), asks, and asserts what the answer
means, not only that it came. `EXCHANGES` is the table; it must hold every API that the broker advertises. The
wire fuzzer records what these functions send and mutates it.
"""

from anabranch.wire.api_keys import ApiKey
from support.exchanges import (
    branches,
    cluster,
    committed,
    coordinators,
    groups,
    not_served,
    objects,
    quorum,
    records,
    topics,
)
from support.exchanges.world import Exchange, World, make_world, only

__all__ = ["EXCHANGES", "World", "make_world", "only"]

EXCHANGES: dict[ApiKey, tuple[Exchange, Exchange]] = {
    ApiKey.PRODUCE: (records.produce, records.produce_refused),
    ApiKey.FETCH: (records.fetch, records.fetch_refused),
    ApiKey.LIST_OFFSETS: (records.list_offsets, records.list_offsets_refused),
    ApiKey.METADATA: (cluster.metadata, cluster.metadata_refused),
    ApiKey.OFFSET_COMMIT: (committed.offset_commit, committed.offset_commit_refused),
    ApiKey.OFFSET_FETCH: (committed.offset_fetch, committed.offset_fetch_refused),
    ApiKey.FIND_COORDINATOR: (coordinators.find_coordinator, coordinators.find_coordinator_refused),
    ApiKey.JOIN_GROUP: (groups.join_group, groups.join_group_refused),
    ApiKey.HEARTBEAT: (groups.heartbeat, groups.heartbeat_refused),
    ApiKey.LEAVE_GROUP: (groups.leave_group, groups.leave_group_refused),
    ApiKey.SYNC_GROUP: (groups.sync_group, groups.sync_group_refused),
    ApiKey.DESCRIBE_GROUPS: (groups.describe_groups, groups.describe_groups_refused),
    ApiKey.LIST_GROUPS: (groups.list_groups, groups.list_groups_refused),
    ApiKey.API_VERSIONS: (cluster.api_versions, cluster.api_versions_refused),
    ApiKey.CREATE_TOPICS: (topics.create_topics, topics.create_topics_refused),
    ApiKey.DELETE_TOPICS: (topics.delete_topics, topics.delete_topics_refused),
    ApiKey.DELETE_RECORDS: (records.delete_records, records.delete_records_refused),
    ApiKey.INIT_PRODUCER_ID: (coordinators.init_producer_id, coordinators.init_producer_id_refused),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        records.offset_for_leader_epoch,
        records.offset_for_leader_epoch_refused,
    ),
    ApiKey.DESCRIBE_CONFIGS: (topics.describe_configs, topics.describe_configs_refused),
    ApiKey.ALTER_CONFIGS: (topics.alter_configs, topics.alter_refused(ApiKey.ALTER_CONFIGS)),
    ApiKey.DESCRIBE_LOG_DIRS: (cluster.describe_log_dirs, cluster.describe_log_dirs_refused),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (cluster.alter_replica_log_dirs, cluster.alter_replica_log_dirs_refused),
    ApiKey.SASL_HANDSHAKE: (not_served.sasl_handshake, not_served.sasl_handshake),
    ApiKey.SASL_AUTHENTICATE: (not_served.sasl_authenticate, not_served.sasl_authenticate),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (not_served.consumer_heartbeat, not_served.consumer_heartbeat),
    ApiKey.SHARE_GROUP_HEARTBEAT: (not_served.share_heartbeat, not_served.share_heartbeat),
    ApiKey.CREATE_PARTITIONS: (topics.create_partitions, topics.create_partitions_refused),
    ApiKey.DELETE_GROUPS: (committed.delete_groups, committed.delete_groups_refused),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        topics.incremental_alter_configs,
        topics.alter_refused(ApiKey.INCREMENTAL_ALTER_CONFIGS),
    ),
    ApiKey.OFFSET_DELETE: (committed.offset_delete, committed.offset_delete_refused),
    ApiKey.ELECT_LEADERS: (quorum.elect_leaders, quorum.elect_leaders_refused),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        quorum.alter_reassignments,
        quorum.alter_reassignments_refused,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (quorum.list_reassignments, quorum.list_reassignments_refused),
    ApiKey.DESCRIBE_QUORUM: (quorum.describe_quorum, quorum.describe_quorum_refused),
    ApiKey.UNREGISTER_BROKER: (quorum.unregister_broker, quorum.unregister_broker_refused),
    ApiKey.DESCRIBE_CLUSTER: (cluster.describe_cluster, cluster.describe_cluster_refused),
    ApiKey.DESCRIBE_PRODUCERS: (cluster.describe_producers, cluster.describe_producers_refused),
    ApiKey.LIST_CONFIG_RESOURCES: (topics.list_config_resources, topics.list_config_resources_refused),
    ApiKey.DESCRIBE_OBJECTS: (objects.describe_objects, objects.describe_objects_refused),
    ApiKey.NAME_OBJECTS: (objects.name_objects, objects.name_objects_refused),
    ApiKey.REPLACE_OBJECTS: (objects.replace_objects, objects.replace_objects_refused),
    ApiKey.DESCRIBE_BRANCHES: (branches.describe_branches, branches.describe_branches_refused),
    ApiKey.DESCRIBE_MEMBER: (groups.describe_member, groups.describe_member_refused),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        cluster.describe_topic_partitions,
        cluster.describe_topic_partitions_refused,
    ),
}
