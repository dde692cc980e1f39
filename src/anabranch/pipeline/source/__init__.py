"""Topics as a Spark data source, `format("anabranch")`: options, planning on the driver, reading in tasks.

A task reads by Kafka's protocol, from sealed segment files, or from objects; the planner chooses.
"""
