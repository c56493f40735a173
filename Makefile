# Two commands matter: `make demo` and `make test`. Each installs what it lacks, then runs.
# The work is done by the scripts in scripts/; every one of them can be run on its own.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-all simulate test-chaos test-rdma test-door wheel test-python build setup fmt lint clean fuzz
.PHONY: bench-metrics bench-local bench-objects bench-remote bench-growth bench-mpi bench-heal bench-broadcast bench-python bench-rdma
.PHONY: bench-tier bench-files bench-scale bench-report bench-compare docs test-docs image test-slurm test-kubernetes

help: ## Show this list
	@awk -F ': ## ' '/^[a-z-]+: ## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## Two nodes, 336,776 flights put on one and queried in place on the other
	@scripts/build.sh >&2
	@.venv/bin/plasmon demo $(DEMO_ARGS)

test: ## Everything a change must pass: formatting, lints, types, all tests
	@scripts/test.sh

test-all: ## `make test`, all RDMA tests, the end-to-end tests on loopback too, all benchmarks in short, 10,000 seeds, five drawn seeds of chaos, loom models, documentation, demo
	@scripts/test.sh --all

docs: ## The site of the documentation in .cache/site, with all links checked
	@scripts/docs.sh

test-docs: ## The code of the documentation is run; PAGES="docs/guide.md" for some pages
	@scripts/test-docs.sh $(PAGES)

simulate: ## Clusters in one process: one seed, SEED=n, or drawn ones, SEEDS=n or for SECONDS=60; it prints how to replay
	@scripts/simulate.sh $(if $(SEED),seed $(SEED),$(if $(SEEDS),seeds $(SEEDS),seconds $(or $(SECONDS),60)))

test-chaos: ## Everything breaks, as SEED=n says (else drawn), for about MINUTES=5: what is promised holds; it prints how to replay
	@scripts/test-chaos.sh $(or $(SEED),random) $(or $(MINUTES),5)

test-python: ## Values of PyTorch, Polars, pandas, xarray, SciPy and others, stored and read without a copy
	@scripts/test-python.sh

test-rdma: ## All that needs RDMA: verbs in virtual machines with Soft-RoCE, of which `make test` has two hosts alone
	@scripts/test-rdma.sh || [ $$? = 77 ]

wheel: ## dist/plasmon-*.whl: the package, the programs and libfabric, for every Linux with Python 3.11
	@scripts/wheel.sh

image: ## dist/plasmon-*.oci.tar: a container image of the wheel; as root
	@scripts/image.sh || [ $$? = 77 ]

test-door: ## The wheel on Debian 11, 12 and 13 that have nothing but Python, then the next two; as root
	@wheel=$$(scripts/wheel.sh) || exit; export PLASMON_WHEEL=$$(realpath "$$wheel"); \
		for name in door slurm kubernetes; do scripts/test-$$name.sh || [ $$? = 77 ] || exit 1; done

test-slurm: ## The job script of deploy/ on a Slurm cluster of its own, with the wheel; as root
	@scripts/test-slurm.sh || [ $$? = 77 ]

test-kubernetes: ## The pods of deploy/ on hosts of their own, with the image; as root
	@scripts/test-kubernetes.sh || [ $$? = 77 ]

build: ## target/release/plasmon, and the Python package in .venv
	@scripts/build.sh

setup: ## Only install what building and testing needs
	@scripts/setup.sh

fmt: ## Format Rust and Python
	@scripts/lint.sh --fix

lint: ## Formatting, clippy, ruff and mypy, changing nothing
	@scripts/lint.sh

clean: ## Remove everything that was built or downloaded here
	@scripts/clean.sh

fuzz: ## Fuzzing of every decoder of untrusted bytes, for SECONDS=60
	@scripts/fuzz.sh $(or $(SECONDS),60)

bench-local: ## Plasmon beside Plasma, Redis, Ray and the bare machine; QUICK=1 only sees that it works
	@scripts/bench.sh local $(if $(QUICK),--quick)

bench-objects: ## Ten million small objects in one store; QUICK=1 as above
	@scripts/bench.sh objects $(if $(QUICK),--quick)

bench-remote: ## Gets of what is on another host, by every protocol, beside the bare network and other stores; MINUTES=15 for more rounds, ONLY=making or lanes for a part
	@scripts/bench.sh remote $(if $(QUICK),--quick) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY))

bench-growth: ## How the cost of such gets grows; MILLION=1 goes up to a million objects, QUICK=1 as above
	@scripts/bench.sh growth $(if $(QUICK),--quick) $(if $(MILLION),--million)

bench-mpi: ## Under mpirun: rank 0 gets what N-1 others have put; N=4, SIZES="1024 65536", BATCH=100, QUICK=1
	@scripts/bench.sh mpi --ranks $(or $(N),4) $(if $(SIZES),--sizes $(SIZES)) $(if $(BATCH),--batch $(BATCH)) $(if $(QUICK),--quick)

bench-heal: ## A node dies: how soon the others follow and the directory is healed, and gets meanwhile; QUICK=1
	@scripts/bench.sh heal $(if $(QUICK),--quick)

bench-broadcast: ## 256 MiB to 2 to 7 nodes of this host, by a broadcast and by as many gets; QUICK=1 as above
	@scripts/bench.sh broadcast $(if $(QUICK),--quick)

bench-python: ## Values of PyTorch, Polars, pandas, joblib and Dask, with Plasmon and without; QUICK=1 as above
	@scripts/bench.sh python $(if $(QUICK),--quick)

bench-tier: ## Regions, mapped and from another host, beside the machine, libfabric, TCP and Redis; QUICK=1 as above
	@scripts/bench.sh tier $(if $(QUICK),--quick)

bench-files: ## Files on volumes, beside MooseFS, JuiceFS, tmpfs and libfabric; as root; ONLY="far names" for parts, QUICK=1 as above
	@scripts/bench.sh files $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

bench-rdma: ## What registering memory costs an RDMA device, as ratios, in a virtual machine with Soft-RoCE
	@scripts/bench.sh rdma

bench-metrics: ## What metrics cost: gets of 1 KiB on a node that is scraped, and on one that is not
	@scripts/build.sh >&2
	@.venv/bin/python bench/metrics.py

bench-scale: ## What membership and directory of up to 10,000 nodes and 10^9 objects cost, by simulation; QUICK=1 as above
	@scripts/bench.sh scale $(if $(QUICK),--quick)

bench-compare: ## This build beside that of revision BASE, in turn: what a change costs; ONLY=local or remote, QUICK=1 as above
	@scripts/bench.sh compare $(or $(BASE),HEAD~1) $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

bench-report: ## docs/benchmarks.md and its plots again, from bench/results
	@scripts/bench.sh report
