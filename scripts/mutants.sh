#!/bin/sh
# Breaks the deciding code one expression at a time and runs the tests that judge it: `scripts/mutants.sh [PACKAGE]`, one of model,
# actors and persistence, or all of them. The audit's tests start servers of their own; no
# others do. What survives stands in docs/mutants.md, or is a missing test.
set -euf
cargo=${CARGO:-cargo}

mutate() { # PACKAGE FILES -- TESTS
  package=$1
  shift
  files=
  while [ "$1" != -- ]; do
    files="$files --file $package/src/$1"
    shift
  done
  # shellcheck disable=SC2086 # files are words without blanks
  "$cargo" mutants --package "leasehold-$package" $files --test-tool nextest --timeout 90 --build-timeout 600 \
    --output "target/mutants/$package" "$@"
}

model() {
  mutate model '**/*.rs' --
}

actors() {
  mutate actors manager/gate.rs manager/persistence.rs executor/agent_phase.rs executor/agent_outcome.rs executor/agent_recent.rs \
    executor/agent_core.rs 'executor/agent_core/*.rs' executor/recovery.rs -- --lib --test manager --test lease_holder --fail-fast
}

persistence() {
  servers='postgres|redis|etcd|s3'
  mutate persistence cluster/rows.rs cluster/etcd/plan.rs cluster/etcd/wire.rs oplog/memory.rs oplog/audit/check.rs \
    oplog/audit/walk.rs oplog/layers/layered.rs oplog/layers/reading.rs oplog/layers/sweep.rs -- --lib --test cluster_conformance \
    --test oplog_conformance --test oplog_memory --test oplog_audit --test oplog_audit_layers --fail-fast -E "not test(/$servers/)"
}

case ${1:-all} in
  all) model && actors && persistence ;;
  model | actors | persistence) "$1" ;;
  *) echo "no such package: $1; one of model, actors, persistence" >&2 && exit 64 ;;
esac
