"""Measurements of a node, next to Apache Kafka where its jars can be had: `make bench` and `make profile`.

`rows.py` is the table of everything that is measured and of the bars it is held against. `loads/` knows how one
round of a load is run, `brokers.py` how a broker is started, `runner.py` takes turns, `report.py` and `plot.py`
tell. docs/performance.md says how to read the figures.
"""
