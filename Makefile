# `make` alone lists the targets. Everything works inside .venv, which `setup` makes and keeps up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
COMPILED := $(wildcard src/anabranch/record/_*.pyx src/anabranch/record/_*.pxi src/anabranch/record/_*.h)

.DEFAULT_GOAL := help
.PHONY: help setup run up check test coverage sim sim-restore sim-node fuzz hostile bench bench-large profile compat dist chaos chaos-objects chaos-branches failover elasticity flips chaos-pipeline bench-pipeline

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything in it

$(STAMP): pyproject.toml setup.py $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anabranch needs Python 3.11 or later: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@rm -f src/anabranch/record/_fast.*.so # If it cannot be built any more, an old one must not stay.
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/anabranch version # Without a C compiler the pure form runs, and it says so here.
	@touch $(STAMP)

run: $(STAMP) ## the whole thing on real data: node, topics, Spark, Iceberg tables; ONCE=1 ends after the report
	@$(BIN)/python -m examples.demo $(if $(ONCE),--once)

up: $(STAMP) ## start a node and nothing else
	$(BIN)/anabranch up

check: $(STAMP) ## format, lint, types, import directions
	$(BIN)/ruff format --check src tests tools bench examples setup.py
	$(BIN)/ruff check src tests tools bench examples setup.py
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests of what has a compiled twin. The oracles of the tables behind the other APIs need not run twice.
BOTH_FORMS := tests/unit/record tests/unit/wire tests/wire tests/unit/broker/write/test_intake.py tests/unit/broker/write/test_produce.py
# The tests of columns choose a form themselves; compiled columns over the pure rest are a pair that nobody runs.
BY_THEMSELVES := test_columns and compiled
test: $(STAMP) ## every test, and those of the hot loops once more in their pure form
	$(BIN)/pytest -n 3 # One more than CI has cores, as many tests wait; who gets what: tests/support/sharing_out.py.
	ANABRANCH_PURE=1 FUZZ_SECONDS=3 $(BIN)/pytest -q -n 2 $(BOTH_FORMS) \
		--ignore tests/wire/test_codec_oracles.py --ignore tests/wire/test_cluster_bad_input.py -k 'not ($(BY_THEMSELVES))'

PURE := record wire cluster modes coordination
coverage: $(STAMP) ## branch coverage of the pure rooms by their unit tests; fails below 95 %
	ANABRANCH_PURE=1 $(BIN)/pytest -q $(PURE:%=tests/unit/%) $(PURE:%=--cov=anabranch.%) --cov-branch --cov-fail-under=95 \
		--cov-report=term-missing:skip-covered

sim: $(STAMP) ## whole clusters in one thread, by seed: SEED=7 repeats one with its trace, SEEDS=1000 or 50..99, MINUTES=10, OBJECTS=1, BRANCHES=1, MODES=1
	$(BIN)/python -m anabranch.testing.simulation.cluster_runs $(if $(OBJECTS),--objects) $(if $(BRANCHES),--branches) $(if $(MODES),--modes) $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(MINUTES),--minutes $(MINUTES))

sim-restore: $(STAMP) ## clusters that lose all disks and come back from their bucket: SEEDS=200 or 50..99, SEED=7 repeats one
	PYTHONPATH=tests $(BIN)/python tools/sim_restore.py $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS))

sim-node: $(STAMP) ## the same of one node without peers: make sim-node SEED=7
	$(BIN)/python -m anabranch.testing.simulation.simulator $(or $(SEED),0)

fuzz: $(STAMP) ## spoiled requests against a node, and nonsense against its gateway: FUZZ_SECONDS=60, FUZZ_SEED repeats a run
	FUZZ_SECONDS=$${FUZZ_SECONDS:-60} FUZZ_SEED=$${FUZZ_SEED:-$$(date +%s)} $(BIN)/pytest -s tests/wire/test_fuzz.py tests/gateway/test_gateway_fuzz.py

hostile: $(STAMP) ## the worst requests of every API and route against a node and a busy cluster of three: ONLY=FETCH,WS BROKERS=3 REPORT=file
	status=0; for brokers in $(or $(BROKERS),1 3); do PYTHONPATH=tests $(BIN)/python tools/hostile_requests.py \
		--brokers $$brokers $(if $(ONLY),--only $(ONLY)) $(if $(REPORT),--report $(REPORT).$$brokers) || status=1; done; exit $$status

chaos: $(STAMP) ## faults in a cluster of real processes under load: MINUTES=10 BROKERS=3 SEED=7 repeats
	PYTHONPATH=tests $(BIN)/python tools/chaos_cluster.py --minutes $(or $(MINUTES),10) --brokers $(or $(BROKERS),3) \
		$(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

failover: $(STAMP) ## how long writes and new topics wait when a leader is killed: ROUNDS=5
	PYTHONPATH=tests $(BIN)/python tools/failover.py --rounds $(or $(ROUNDS),5)

elasticity: $(STAMP) ## add, restart, drain, remove brokers and lose disks under load: ROUNDS=10 TOPICS=320 SEED=7 repeats
	PYTHONPATH=tests $(BIN)/python tools/elasticity.py --rounds $(or $(ROUNDS),10) --topics $(or $(TOPICS),320) \
		$(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

chaos-objects: $(STAMP) ## an object store that fails, and brokers that die, under load: MINUTES=5 BROKERS=3 SEED=7 repeats
	PYTHONPATH=tests $(BIN)/python tools/chaos_objects.py --minutes $(or $(MINUTES),5) --brokers $(or $(BROKERS),3) \
		$(if $(SEED),--seed $(SEED))

chaos-branches: $(STAMP) ## split a network of five brokers under load from both sides: CYCLES=5 SECONDS=20 SEED=7 repeats (root)
	PYTHONPATH=tests $(BIN)/python tools/chaos_branches.py --cycles $(or $(CYCLES),5) --seconds $(or $(SECONDS),20) \
		$(if $(SEED),--seed $(SEED)) $(if $(GROUPS),--groups) $(if $(REPORT),--report $(REPORT))

chaos-pipeline: $(STAMP) ## kill -9 a pipeline ten times into Iceberg and ten into Delta: KILLS=10, SEED=1 repeats
	PYTHONPATH=tests $(BIN)/python tools/chaos_pipeline.py --kills $(or $(KILLS),10) $(if $(SEED),--seed $(SEED))

flips: $(STAMP) ## flip bytes under running nodes and read them in every way: FLIPS=200 SEED=7 repeats
	PYTHONPATH=tests $(BIN)/python tools/flips.py --flips $(or $(FLIPS),200) --seed $(or $(SEED),7)

compat: $(STAMP) ## franz-go's own test suite against a node, scored by class
	PYTHONPATH=tests $(BIN)/python tools/franz_go_suite.py $(CLASSES)

dist: $(STAMP) ## wheel and source distribution into dist/, the wheel built from the source distribution
	rm -rf dist
	$(BIN)/python -m build

# What only measuring needs: installed once, when it is first asked for.
BENCH_STAMP := $(VENV)/.bench-ready
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $(BENCH_STAMP)

BENCH := PYTHONPATH=.:tests $(BIN)/python -m bench --rounds $(or $(ROUNDS),5) $(if $(FRESH),--fresh) \
	$(if $(DOCS),--document docs/performance.md)

bench: $(BENCH_STAMP) ## a node next to Apache Kafka: ROWS=small-1,fetch-1mb, ROUNDS=5, FRESH=1
	$(BENCH) --rows $(or $(ROWS),quick)

bench-large: $(BENCH_STAMP) ## the same with logs of 1, 5 and 10 GB; looks for room on the disk first
	$(BENCH) --rows large

bench-pipeline: $(BENCH_STAMP) ## topics read next to Spark's own Kafka connector; ROUNDS=5, DOCS=1
	PYTHONPATH=.:tests $(BIN)/python -m bench.pipeline --rounds $(or $(ROUNDS),5) \
		$(if $(DOCS),--document docs/performance.md)

profile: $(BENCH_STAMP) ## where a node's time goes, as a flame graph: make profile LOAD=small-1
	PYTHONPATH=.:tests $(BIN)/python -m bench.profile $(or $(LOAD),small-1)
