# Everything a newcomer or CI runs. `make` alone lists it.
.DEFAULT_GOAL := help
CARGO ?= cargo
# Empty: every figure. `make bench ONLY="renewal_vs_bare_tonic admission_ns"` runs some.
ONLY ?=
# Executors that `make zombie` freezes on each store.
ROUNDS ?= 200
# Which seed `make sim` shows, and how many `make sim-many` runs.
SEED ?= 0
N ?= 200
SECONDS ?= 600

.PHONY: help dev demo demo-ha faults faults-some test protoc tools verify fix bench fuzz mutants model model-deep model-bugs sim sim-many sim-bugs zombie

help: ## list what can be run
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: protoc ## build and run a whole cluster in this terminal, until Ctrl-C
	$(CARGO) run --locked --bin shard-manager -- dev

demo: protoc ## real processes killed, frozen and restarted under load; every word counted exactly
	scripts/demo.sh demo

demo-ha: tools ## three managers on three etcd members, killed and restarted under load; every word counted exactly
	scripts/demo.sh demo_ha

faults: tools ## break each part of a cluster in each way, with hosts, clocks and disks of its own; writes docs/faults.md (root, 10 minutes)
	scripts/demo.sh faults --write

# What CI has a minute for; FAULTS="row row/column …" runs others.
FAULTS ?= crash/leader freeze/executor cut-in/executor clock-rate/executor
comma := ,
empty :=
faults-some: tools ## a few cells of it, in a minute; FAULTS="ROW/COLUMN …" says which
	scripts/demo.sh faults --only $(subst $(empty) ,$(comma),$(strip $(FAULTS)))

# etcd's client is generated when it is built.
protoc:
	@scripts/install.sh protobuf-compiler:protoc libprotobuf-dev:/usr/include/google/protobuf/empty.proto

test: tools verify ## install what the checks need, then run every check

# Only what is missing is installed. apt and cargo are asked for nothing else.
tools: protoc
	@scripts/install.sh curl:curl ca-certificates:/etc/ssl/certs/ca-certificates.crt etcd-server:etcd etcd-client:etcdctl \
	  postgresql-15:/usr/lib/postgresql/15/bin/initdb pgbouncer:/usr/sbin/pgbouncer \
	  redis-server:redis-server redis-tools:redis-cli iproute2:ip iptables:iptables \
	  systemd:systemd-analyze docker-compose:docker-compose
	@$(CARGO) nextest --version >/dev/null 2>&1 || $(CARGO) install cargo-nextest --locked
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install cargo-deny --locked

# nextest comes last, so that its summary closes the output.
verify: ## every check there is; writes nothing to the tree
	$(CARGO) fmt --all --check
	@missing=$$(grep -vxFf model/clippy.toml clippy.toml); [ -z "$$missing" ] || \
	  { echo "model/clippy.toml must repeat the root's: $$missing" >&2; exit 1; }
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) build --locked --workspace
	$(CARGO) deny --locked --workspace check licenses bans sources
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	$(CARGO) test --locked --workspace --doc --quiet
	$(CARGO) nextest run --locked --workspace

fix: ## format, apply clippy's suggestions, rewrite samples and the configuration reference
	$(CARGO) fmt --all
	$(CARGO) clippy --fix --allow-dirty --allow-staged --workspace --all-targets
	$(CARGO) run -p leasehold-config --example write_samples

bench: tools ## one JSON line per figure, each against a baseline of the same run; ONLY="NAME …" runs some
	$(CARGO) build --locked --release --example bench --bin shard-manager
	$${CARGO_TARGET_DIR:-target}/release/examples/bench $(ONLY)

# Each target for SECONDS; new inputs are kept in target/corpus, those worth keeping are copied to fuzz/corpus by hand, where `make test` plays them.
fuzz: protoc ## feed every decoder, the configuration and the agent types with bytes for SECONDS each (600)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install cargo-fuzz --locked
	@for target in $$(ls fuzz/corpus); do \
	  mkdir -p target/corpus/$$target; echo "$$target: $(SECONDS) s"; \
	  $(CARGO) fuzz run --sanitizer none --target-dir target/fuzz $$target target/corpus/$$target fuzz/corpus/$$target -- \
	    -max_total_time=$(SECONDS) -max_len=4096 -timeout=10 -print_final_stats=1 -verbosity=0 || exit 1; \
	done

zombie: tools ## freeze executors in mid-append, 200 times on each store, and check what callers saw; ROUNDS=20 for fewer
	$(CARGO) build --locked --bins --example zombie
	target/debug/examples/zombie --rounds $(ROUNDS)

mutants: tools ## break the deciding code one expression at a time; every survivor is a missing test; PACKAGE=model, actors or persistence for one
	@$(CARGO) mutants --version >/dev/null 2>&1 || $(CARGO) install cargo-mutants --locked
	scripts/mutants.sh $(PACKAGE)

MODEL = $(CARGO) run --locked --quiet --profile model --package leasehold-model-check

model: ## explore the protocol with a model checker: over a million states; fails if an invariant breaks or if not everything was reached
	@$(MODEL) -- bound

model-deep: ## the same, over ten million states (a quarter of an hour on two processors, 3 GB)
	@$(MODEL) -- deep

model-bugs: ## plant known bugs in the protocol one by one and see each found by the invariant that it breaks
	@$(MODEL) --features planted -- bugs

SIMULATE = $(CARGO) run --locked --quiet --profile sim --package leasehold-simulation

sim: protoc ## simulate one seed and print its trace; SEED=N says which
	@$(SIMULATE) -- seed $(SEED)

sim-many: protoc ## simulate N seeds (200), two at a time on two processors; fails if an invariant does or if not everything was reached
	@$(SIMULATE) -- many $(N)

sim-bugs: protoc ## plant known bugs one by one and see each found; fails if one survives
	@$(SIMULATE) --features planted -- bugs
