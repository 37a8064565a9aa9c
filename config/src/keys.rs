//! Every key of every binary: the one list that loading, the sample files and the reference are made from.

use crate::key::{Default, Key};
use crate::kind::Kind;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

macro_rules! key {
    ($name:ident, $path:literal, $kind:expr, $default:literal, $meaning:literal) => {
        pub(crate) static $name: Key =
            Key { path: $path, kind: $kind, default: Default::Text($default), meaning: $meaning };
    };
    ($name:ident, $path:literal, $kind:expr, unset $then:literal e.g. $example:literal, $meaning:literal) => {
        pub(crate) static $name: Key = Key {
            path: $path,
            kind: $kind,
            default: Default::Unset { then: $then, example: $example },
            meaning: $meaning,
        };
    };
}

key!(
    CLUSTER_NAME,
    "cluster.name",
    Kind::Name,
    "leasehold",
    "The cluster's name. A manager and an executor that name different clusters never talk to each other."
);
key!(
    SHARD_COUNT,
    "cluster.shard_count",
    Kind::Whole { min: 1, max: 65_536 },
    "1024",
    "How many shards there are. Fixed when the store is first written; another value then refuses to start."
);
key!(
    EXPECTED_SHARD_COUNT,
    "cluster.shard_count",
    Kind::Whole { min: 1, max: 65_536 },
    unset "whatever the manager says is accepted" e.g. "1024",
    "How many shards this executor expects; a manager with another count refuses it."
);
key!(
    PROFILE,
    "lease.profile",
    Kind::OneOf(&["wan", "lan", "fast"]),
    "wan",
    "Sets duration and call_deadline_floor together: wan 60s and 10s, lan 12s and 2s, fast 3s and 500ms."
);
key!(
    LEASE_DURATION,
    "lease.duration",
    Kind::Duration { min: MS, max: DAY },
    unset "as lease.profile says" e.g. "60s",
    "How long a lease lasts. At least 3 x call_deadline_floor; below 6 x there is a warning. An executor follows the \
     lease it was granted, and uses its own setting only until then."
);
key!(
    CALL_DEADLINE_FLOOR,
    "lease.call_deadline_floor",
    Kind::Duration { min: MS, max: HOUR },
    unset "as lease.profile says" e.g. "10s",
    "The least time that one attempt to register or to renew is given to be answered."
);
key!(
    ALLOWANCE,
    "lease.allowance",
    Kind::Allowance,
    "0.1%",
    "By how much clocks may differ in rate: an executor ends its copy of a lease earlier by this part. Covers what ntp \
     and chrony do to a clock in normal operation, not a large slew under way."
);
key!(
    SETTLE,
    "rebalance.settle",
    Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(10) },
    "3s",
    "How long a cold cluster waits after its first registration, so that the first executor is not given everything."
);
key!(
    MAX_MOVES,
    "rebalance.max_moves_per_pass",
    Kind::Whole { min: 1, max: 65_536 },
    "128",
    "How many shards may be on the move at once for balance. Shards without an owner are not counted: \
     they go out in one commit."
);
key!(
    STORE_URL,
    "store.url",
    Kind::SharedStorage("PATH"),
    "sqlite:leasehold-data/manager.db",
    "Where the manager keeps its state: a file of this machine, or a PostgreSQL server (?sslmode=verify-full&sslrootcert=FILE \
     for TLS; its password rather in a passfile or PGPASSWORD than here; docs/operations.md). memory: forgets everything when the process ends."
);
key!(
    REQUEST_TIMEOUT,
    "store.request_timeout",
    Kind::Duration { min: MS, max: HOUR },
    "3s",
    "With etcd: how long one call may take. At most half of leadership.leader_lease_ttl."
);
key!(
    COMPACTION_RETENTION,
    "store.compaction_retention_revisions",
    Kind::Whole { min: 0, max: 1_000_000_000 },
    "1000",
    "With etcd: how many revisions of history are kept behind each pass's compaction. 0: nothing is compacted, for an \
     etcd that others use, too."
);
key!(
    STORE_USER,
    "store.user",
    Kind::Name,
    unset "no user" e.g. "leasehold",
    "With etcd: the user, if it wants one. Together with password_file."
);
key!(
    STORE_PASSWORD_FILE,
    "store.password_file",
    Kind::File,
    unset "no password" e.g. "/etc/leasehold/etcd-password",
    "With etcd: the file whose first line is the user's password."
);
key!(
    STORE_CA_FILE,
    "store.ca_file",
    Kind::File,
    unset "no certificate is trusted: https endpoints need it" e.g. "/etc/leasehold/etcd-ca.pem",
    "With etcd over https: who signs its certificates, in PEM."
);
key!(
    STORE_CERT_FILE,
    "store.cert_file",
    Kind::File,
    unset "no certificate of its own" e.g. "/etc/leasehold/etcd-client.pem",
    "With etcd over https: this process's certificate, in PEM. Together with key_file."
);
key!(
    STORE_KEY_FILE,
    "store.key_file",
    Kind::File,
    unset "no certificate of its own" e.g. "/etc/leasehold/etcd-client.key",
    "With etcd over https: the key of cert_file, in PEM."
);
key!(
    LEADER_LEASE_TTL,
    "leadership.leader_lease_ttl",
    Kind::Duration { min: Duration::from_secs(2), max: HOUR },
    "10s",
    "With etcd: how long the leader's lease lasts, and so how long a leader that was killed is not replaced at most. etcd \
     counts in whole seconds and may grant more; what it grants counts."
);
key!(
    STANDBY_GRPC,
    "leadership.standby_grpc",
    Kind::OneOf(&["closed", "redirect"]),
    "closed",
    "With etcd: what a manager does with its gRPC port while another one leads. closed: an open port is the leader's. \
     redirect: it answers NOT_LEADER with the leader's address, and every replica is ready."
);
key!(
    LEADERSHIP_ADDRESS,
    "leadership.address",
    Kind::Address,
    unset "the address that listen.grpc was bound to" e.g. "10.0.0.1:7470",
    "With etcd: where this manager is reached while it leads. Needed when listen.grpc is a wildcard such as 0.0.0.0."
);
key!(
    MANAGER_GRPC,
    "listen.grpc",
    Kind::Listen,
    "127.0.0.1:7470",
    "Where gRPC is served: executors, routers, the command line."
);
key!(
    MANAGER_HTTP,
    "listen.http",
    Kind::Listen,
    "127.0.0.1:7471",
    "Where HTTP is served: /livez, /readyz, /metrics; with etcd also /leaderz."
);
key!(
    EXECUTOR_GRPC,
    "listen.grpc",
    Kind::Listen,
    "127.0.0.1:7480",
    "Where gRPC is served: the manager's pushes, and invocations."
);
key!(EXECUTOR_HTTP, "listen.http", Kind::Listen, "127.0.0.1:7481", "Where HTTP is served: /livez, /readyz, /metrics.");
key!(GATEWAY_GRPC, "listen.grpc", Kind::Listen, "127.0.0.1:7490", "Where gRPC is served: invocations of any agent.");
key!(
    GATEWAY_HTTP,
    "listen.http",
    Kind::Listen,
    "127.0.0.1:7491",
    "Where HTTP is served: POST /v1/agents/{type}/{id}/{method}, /livez, /readyz, /metrics."
);
key!(
    EXECUTOR_NAME,
    "executor.name",
    Kind::Name,
    unset "the advertised address, with '-' for every other character" e.g. "executor-1",
    "This executor's name: stable across restarts, unique in the cluster."
);
key!(
    EXECUTOR_ADDRESS,
    "executor.address",
    Kind::Address,
    unset "the address that listen.grpc was bound to" e.g. "10.0.0.5:7480",
    "Where managers and routers dial this executor. Needed when listen.grpc is a wildcard such as 0.0.0.0."
);
key!(
    EXECUTOR_MANAGERS,
    "executor.managers",
    Kind::Addresses,
    "127.0.0.1:7470",
    "The managers to register with, tried in turn."
);
key!(
    ZONE,
    "executor.zone",
    Kind::Name,
    unset "no zone" e.g. "zone-a",
    "The failure domain that this executor stands in."
);
key!(
    WEIGHT,
    "executor.weight",
    Kind::Whole { min: 1, max: 1000 },
    "100",
    "This executor's share of the shards relative to the others'."
);
key!(
    HANDOFF_GRACE,
    "executor.handoff_grace",
    Kind::Duration { min: Duration::ZERO, max: HOUR },
    unset "10s, in lease.profile fast 3s" e.g. "10s",
    "How long running invocations may take to finish when their shard is given up or the process is asked \
     to stop; 0s stops them at once."
);
key!(
    REGISTRATION_PATIENCE,
    "executor.registration_patience",
    Kind::Duration { min: MS, max: DAY },
    "60s",
    "How long an executor that starts while no manager answers keeps trying before it exits. At least \
     one attempt's deadline."
);
key!(
    AGENTS_IN_MEMORY,
    "agents.max_in_memory",
    Kind::Whole { min: 1, max: 10_000_000 },
    "10000",
    "How many agents may be in memory. Beyond it invocations of further agents are refused with OVERLOADED."
);
key!(
    AGENTS_QUEUE,
    "agents.queue",
    Kind::Whole { min: 1, max: 65_536 },
    "256",
    "How many invocations may wait for one agent. Beyond it they are refused with OVERLOADED."
);
key!(
    AGENTS_IDLE_AFTER,
    "agents.idle_after",
    Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(30 * 24 * 3600) },
    "10m",
    "After how long without work an agent is suspended: it leaves memory, and its shard's next owner does not recover it. Its next \
     call brings it back. 0s: only when memory is short."
);
key!(
    BRIDGE_APPS,
    "bridge.apps",
    Kind::Apps,
    unset "no application decides for any agent type" e.g. "cart=http://127.0.0.1:9000",
    "Agent types whose behaviour is an application beside the executor, called over HTTP (docs/agents.md, \"The bridge\")."
);
key!(
    BRIDGE_TIMEOUT,
    "bridge.timeout",
    Kind::Duration { min: MS, max: Duration::from_secs(300) },
    "10s",
    "How long one attempt to ask an application may take. Attempts are repeated while the caller waits."
);
key!(
    BRIDGE_CALLS,
    "bridge.calls",
    Kind::Whole { min: 1, max: 65_536 },
    "64",
    "How many calls of one application may be under way at once. Further ones wait, within bridge.timeout."
);
key!(
    OPLOG_URL,
    "oplog.url",
    Kind::Storage("DIR"),
    "sqlite:leasehold-data/oplogs",
    "Where oplogs are kept. sqlite: a directory that every executor of this cluster shares, on one machine. postgres: or redis: a \
     server that they share from anywhere. memory: forgets everything when the process ends, and only executors of one process \
     can share it."
);
key!(
    SNAPSHOT_EVERY,
    "oplog.snapshot_every",
    Kind::Whole { min: 1, max: 1_000_000 },
    "100",
    "After how many entries an agent's whole state is written, so that recovery replays no more than these."
);
key!(
    STEP_AROUND_AFTER,
    "oplog.step_around_after",
    Kind::Duration { min: Duration::from_millis(50), max: Duration::from_secs(5) },
    unset "1s, in lease.profile fast 500ms" e.g. "1s",
    "With oplogs in sqlite: how long their lock may be held without a commit by anybody before its holder counts as frozen and is stepped \
     around."
);
key!(
    ARCHIVE_TO,
    "oplog.archive.to",
    Kind::OneOf(&["none", "list", "blobs"]),
    "none",
    "Where older entries of an agent are moved, in compressed chunks: none, they stay; list, into the store of the oplogs itself; blobs, \
     into the folder or the S3-compatible storage that oplog.archive.url names. What was moved is read whatever this says."
);
key!(
    ARCHIVE_AFTER_ENTRIES,
    "oplog.archive.after_entries",
    Kind::Whole { min: 1, max: 1_000_000 },
    "1000",
    "How many entries of an agent stay where they were written; older ones move."
);
key!(
    ARCHIVE_AFTER_AGE,
    "oplog.archive.after_age",
    Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(365 * 24 * 3600) },
    "1h",
    "After how long fewer entries move too, counted from when their executor wrote or found them."
);
key!(
    ARCHIVE_URL,
    "oplog.archive.url",
    Kind::Archive,
    unset "there is none" e.g. "s3://my-bucket/leasehold",
    "Where blobs are: a folder of this machine or of a network file system, or a bucket. Objects are below CLUSTER/ there: one store of oplogs \
     and one cluster's name for each. Every executor of the cluster must name the same place."
);
key!(
    ARCHIVE_ENDPOINT,
    "oplog.archive.endpoint",
    Kind::Endpoint,
    unset "Amazon's" e.g. "https://s3.example:9000",
    "With s3: where the storage is served, if it is not Amazon's. http:// only on this machine, unless allow_http says otherwise."
);
key!(
    ARCHIVE_REGION,
    "oplog.archive.region",
    Kind::Region,
    unset "of AWS_REGION or AWS_DEFAULT_REGION; with an endpoint us-east-1 if there is none" e.g. "eu-central-1",
    "With s3: the bucket's region."
);
key!(
    ARCHIVE_CREDENTIALS_FILE,
    "oplog.archive.credentials_file",
    Kind::File,
    unset "from the environment, as AWS's own tools take them: AWS_ACCESS_KEY_ID and so on" e.g. "/etc/leasehold/s3-credentials",
    "With s3: a file with aws_access_key_id and aws_secret_access_key in its section [default], as AWS's tools write it. It may be changed \
     while the executor runs."
);
key!(
    ARCHIVE_CA_FILE,
    "oplog.archive.ca_file",
    Kind::File,
    unset "the system's certificates alone" e.g. "/etc/leasehold/s3-ca.pem",
    "With s3 over https: who signs the endpoint's certificate, in PEM."
);
key!(
    ARCHIVE_ALLOW_HTTP,
    "oplog.archive.allow_http",
    Kind::OneOf(&["no", "yes"]),
    "no",
    "With s3: whether an endpoint on another machine may be http://. Entries can then be read on the way."
);
key!(
    ARCHIVE_REQUEST_TIMEOUT,
    "oplog.archive.request_timeout",
    Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(300) },
    "10s",
    "How long one call to blob storage may take, its repetitions included. Nothing waits for it but moves, and reads of what was moved."
);
key!(
    CONNECTIONS,
    "limits.connections",
    Kind::Whole { min: 1, max: 1_000_000 },
    "4096",
    "How many connections may be open at a listener. Beyond it a new one is closed."
);
key!(
    CALLS,
    "limits.calls",
    Kind::Whole { min: 16, max: 1_000_000 },
    "4096",
    "How many calls may be under way at once. Beyond it they are refused with OVERLOADED. Renewals are not counted."
);
key!(
    ROUTE_MANAGERS,
    "route.managers",
    Kind::Addresses,
    "127.0.0.1:7470",
    "The managers to read the routing table from, tried in turn."
);
key!(
    ROUTE_DEADLINE,
    "route.call_deadline",
    Kind::Duration { min: MS, max: HOUR },
    "30s",
    "The deadline of a call whose caller gives none: retries through a move end here."
);
key!(
    LOG_FORMAT,
    "log.format",
    Kind::OneOf(&["text", "json"]),
    "text",
    "How log lines look: for people, or for programs."
);
key!(
    LOG_LEVEL,
    "log.level",
    Kind::OneOf(&["error", "warn", "info", "debug", "trace"]),
    "info",
    "The least severe lines that are written."
);

/// Keys of `shard-manager`, in the order of its sample file.
pub(crate) static MANAGER: &[&Key] = &[
    &CLUSTER_NAME,
    &SHARD_COUNT,
    &PROFILE,
    &LEASE_DURATION,
    &CALL_DEADLINE_FLOOR,
    &ALLOWANCE,
    &SETTLE,
    &MAX_MOVES,
    &STORE_URL,
    &REQUEST_TIMEOUT,
    &COMPACTION_RETENTION,
    &STORE_USER,
    &STORE_PASSWORD_FILE,
    &STORE_CA_FILE,
    &STORE_CERT_FILE,
    &STORE_KEY_FILE,
    &LEADER_LEASE_TTL,
    &STANDBY_GRPC,
    &LEADERSHIP_ADDRESS,
    &MANAGER_GRPC,
    &MANAGER_HTTP,
    &CONNECTIONS,
    &CALLS,
    &LOG_FORMAT,
    &LOG_LEVEL,
];

/// Keys of `shard-executor`, in the order of its sample file.
pub(crate) static EXECUTOR: &[&Key] = &[
    &CLUSTER_NAME,
    &EXPECTED_SHARD_COUNT,
    &EXECUTOR_NAME,
    &EXECUTOR_ADDRESS,
    &EXECUTOR_MANAGERS,
    &ZONE,
    &WEIGHT,
    &HANDOFF_GRACE,
    &REGISTRATION_PATIENCE,
    &PROFILE,
    &LEASE_DURATION,
    &CALL_DEADLINE_FLOOR,
    &ALLOWANCE,
    &EXECUTOR_GRPC,
    &EXECUTOR_HTTP,
    &AGENTS_IN_MEMORY,
    &AGENTS_QUEUE,
    &AGENTS_IDLE_AFTER,
    &BRIDGE_APPS,
    &BRIDGE_TIMEOUT,
    &BRIDGE_CALLS,
    &OPLOG_URL,
    &SNAPSHOT_EVERY,
    &STEP_AROUND_AFTER,
    &ARCHIVE_TO,
    &ARCHIVE_AFTER_ENTRIES,
    &ARCHIVE_AFTER_AGE,
    &ARCHIVE_URL,
    &ARCHIVE_ENDPOINT,
    &ARCHIVE_REGION,
    &ARCHIVE_CREDENTIALS_FILE,
    &ARCHIVE_CA_FILE,
    &ARCHIVE_ALLOW_HTTP,
    &ARCHIVE_REQUEST_TIMEOUT,
    &CONNECTIONS,
    &CALLS,
    &LOG_FORMAT,
    &LOG_LEVEL,
];

/// Keys of `shard-executor route`, in the order of its sample file.
pub(crate) static GATEWAY: &[&Key] =
    &[&ROUTE_MANAGERS, &ROUTE_DEADLINE, &GATEWAY_GRPC, &GATEWAY_HTTP, &CONNECTIONS, &CALLS, &LOG_FORMAT, &LOG_LEVEL];

/// Every binary's command and its keys.
pub(crate) static BINARIES: &[(&str, &[&Key])] =
    &[("shard-manager", MANAGER), ("shard-executor", EXECUTOR), ("shard-executor route", GATEWAY)];
