"""Joins the rooms: partitions (a log and a mode each), the append queue, groups, and one handler per Kafka API.

Runs on one asyncio loop whose thread is the only writer; worker threads sync, verify and clean. Knows wire,
log, cluster, coordination and modes; knows nothing of sockets: a reply leaves through the callable it was handed.
"""
