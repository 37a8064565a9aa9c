use crate::kind::{Kind, show_duration};
use crate::layers::Layers;
use crate::*;
use leasehold_model::{Address, ExecutorName};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn flags(list: &[&str]) -> Sources {
    Sources { overrides: list.iter().map(ToString::to_string).collect(), ..Sources::default() }
}

fn env(list: &[(&str, &str)]) -> Sources {
    let env = list.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
    Sources { env, ..Sources::default() }
}

/// Loads `text` as if it stood in `file.toml`.
fn from_text<T: Configuration>(text: &str) -> Result<Loaded<T>, ConfigError> {
    let mut layers = Layers::defaults(T::BINARY, T::keys());
    layers.add_file(Path::new("file.toml"), text);
    finish(layers)
}

fn refusal<T: Configuration + std::fmt::Debug>(sources: &Sources) -> String {
    load::<T>(sources).unwrap_err().to_string()
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn shows_every_key_once<T: Configuration>() {
    let loaded = load::<T>(&Sources::default()).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let shown: Vec<_> =
        loaded.render_show().into_iter().filter(|shown| !shown.derived).map(|shown| shown.key).collect();
    let keys: Vec<_> = T::keys().iter().map(|key| key.path).collect();
    assert_eq!(shown, keys, "a key that is listed is read, and the other way round");
}

#[test]
fn every_listed_key_is_read_and_shown_once() {
    shows_every_key_once::<ManagerConfig>();
    shows_every_key_once::<ExecutorConfig>();
    shows_every_key_once::<GatewayConfig>();
}

fn sample_changes_nothing<T: Configuration + PartialEq + std::fmt::Debug>(file: &str) {
    let sample = render_default::<T>();
    let loaded = from_text::<T>(&sample).unwrap();
    assert_eq!(loaded.config, load::<T>(&Sources::default()).unwrap().config);
    let uncommented: Vec<_> =
        sample.lines().map(|line| if line.contains(" = ") { line.trim_start_matches('#') } else { line }).collect();
    from_text::<T>(&uncommented.join("\n")).unwrap();
    let stored = fs::read_to_string(in_repository("config/samples").join(file)).unwrap();
    assert_eq!(stored, sample, "`make fix` rewrites the samples");
}

#[test]
fn the_sample_files_change_nothing_and_are_as_the_code_writes_them() {
    sample_changes_nothing::<ManagerConfig>("shard-manager.toml");
    sample_changes_nothing::<ExecutorConfig>("shard-executor.toml");
    sample_changes_nothing::<GatewayConfig>("shard-executor-route.toml");
}

#[test]
fn the_reference_lists_every_key_as_the_code_knows_it() {
    let page = fs::read_to_string(in_repository("docs/configuration.md")).unwrap();
    assert!(page.ends_with(&render_reference()), "`make fix` rewrites docs/configuration.md");
    for key in ManagerConfig::keys().iter().chain(ExecutorConfig::keys()).chain(GatewayConfig::keys()) {
        assert!(page.contains(&format!("| `{}` |", key.path)), "{}", key.path);
    }
}

#[test]
fn flags_are_stronger_than_the_environment_and_that_than_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manager.toml");
    fs::write(&path, "# one\n[rebalance]\nsettle = \"1s\"\nmax_moves_per_pass = 7\n[cluster]\nname = \"file\"\n")
        .unwrap();
    let mut sources =
        env(&[("LEASEHOLD__REBALANCE__SETTLE", "2s"), ("LEASEHOLD__CLUSTER__NAME", "env"), ("HOME", "/")]);
    sources.file = Some(path.clone());
    sources.overrides = vec!["cluster.name=overridden".into(), "cluster.name=flag".into()];
    let loaded = load::<ManagerConfig>(&sources).unwrap();
    assert_eq!(loaded.config.rebalance.max_moves_per_pass, 7);
    assert_eq!(loaded.config.rebalance.settle, Duration::from_secs(2));
    assert_eq!(loaded.config.cluster.as_str(), "flag");
    let origin = |key: &str| loaded.render_show().into_iter().find(|shown| shown.key == key).unwrap().source;
    assert_eq!(origin("rebalance.max_moves_per_pass"), format!("{}:4", path.display()));
    assert_eq!(origin("rebalance.settle"), "LEASEHOLD__REBALANCE__SETTLE");
    assert_eq!(origin("cluster.name"), "flag");
    assert_eq!(origin("lease.duration"), "profile wan");
    assert_eq!(origin("store.url"), "default");
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_nearest_known_one() {
    let text = "[lease]\nduraton = \"60s\"\n[leese]\n[store.url]\npath = 1\n";
    let refused = from_text::<ManagerConfig>(text).unwrap_err().to_string();
    let lines: Vec<_> = refused.lines().collect();
    let of_lease = "section lease has lease.profile, lease.duration";
    assert!(lines[0].starts_with(&format!("leese: unknown key (file.toml:3); {of_lease}")), "{}", lines[0]);
    assert_eq!(lines[1], "lease.duraton: unknown key (file.toml:2); did you mean lease.duration?");
    assert_eq!(lines[2], "store.url.path: unknown key (file.toml:5); did you mean store.url?");
    let refused = refusal::<ExecutorConfig>(&env(&[("LEASEHOLD__EXECUTOR__HANDOF_GRACE", "1s")]));
    assert_eq!(
        refused,
        "executor.handof_grace: unknown key (LEASEHOLD__EXECUTOR__HANDOF_GRACE); did you mean executor.handoff_grace?"
    );
    let refused = refusal::<ExecutorConfig>(&flags(&["weight=5"]));
    assert_eq!(refused, "weight: unknown key (flag); did you mean executor.weight?");
}

#[test]
fn nothing_is_suggested_for_a_key_that_is_like_no_known_one() {
    let said = "foo.bar: unknown key (flag); nothing is called like that; shard-manager config default shows every key";
    assert_eq!(refusal::<ManagerConfig>(&flags(&["foo.bar=1"])), said);
    let gateway = refusal::<GatewayConfig>(&flags(&["foo.bar=1"]));
    assert!(gateway.ends_with("shard-executor config --route default shows every key"), "{gateway}");
    let known_section = refusal::<ManagerConfig>(&flags(&["log.colour=never"]));
    assert_eq!(known_section, "log.colour: unknown key (flag); section log has log.format, log.level");
}

#[test]
fn a_key_of_another_command_is_a_mistake_in_a_file_and_a_warning_in_the_environment() {
    let refused = from_text::<ManagerConfig>("[oplog]\nurl = \"memory:\"").unwrap_err().to_string();
    assert_eq!(
        refused,
        "oplog.url: unknown key (file.toml:2); it is a setting of shard-executor, not of shard-manager"
    );
    let loaded = load::<ManagerConfig>(&env(&[("LEASEHOLD__OPLOG__URL", "memory:")])).unwrap();
    assert_eq!(loaded.warnings, ["LEASEHOLD__OPLOG__URL is a setting of shard-executor: not used by shard-manager"]);
}

fn names_field_value_and_range<T: Configuration + std::fmt::Debug>() {
    for key in T::keys() {
        let refused = refusal::<T>(&flags(&[&format!("{}=no\tsense", key.path)]));
        let expected = format!("{}: \"no\\tsense\" (flag) is not accepted; expected {}", key.path, key.kind.accepted());
        assert_eq!(refused, expected);
    }
}

#[test]
fn a_refused_value_is_named_with_its_field_and_the_accepted_range() {
    names_field_value_and_range::<ManagerConfig>();
    names_field_value_and_range::<ExecutorConfig>();
    names_field_value_and_range::<GatewayConfig>();
}

/// Case 19.
#[test]
fn giant_zero_and_negative_times_are_refused() {
    for value in
        ["18446744073709551615ms", "18446744073709551615s", "99999999999999999999h", "-1s", "60", "1e9s", "25h"]
    {
        for key in ["lease.duration", "lease.call_deadline_floor", "rebalance.settle"] {
            let refused = refusal::<ManagerConfig>(&flags(&[&format!("{key}={value}")]));
            assert!(refused.starts_with(&format!("{key}: {value:?} (flag) is not accepted")), "{refused}");
        }
    }
    let refused = refusal::<ManagerConfig>(&flags(&["lease.duration=0s"]));
    assert!(refused.contains("1ms to 86400s"), "{refused}");
}

/// R14
#[test]
fn a_lease_of_less_than_three_call_deadlines_is_refused_with_the_arithmetic() {
    let refused = refusal::<ManagerConfig>(&flags(&["lease.duration=5s"]));
    assert_eq!(
        refused,
        "lease.duration: 5s (flag) is below 3 × lease.call_deadline_floor = 3 × 10s (profile wan) = 30s, so that three \
         attempts to renew would not fit into a lease; set lease.duration to 30s or more, or lease.call_deadline_floor to \
         1.666666666s or less, or another lease.profile than wan (lan: 12s and 2s, fast: 3s and 500ms)"
    );
    let refused = refusal::<ExecutorConfig>(&flags(&["lease.profile=fast", "lease.call_deadline_floor=2s"]));
    assert!(
        refused.contains("3s (profile fast) is below 3 × lease.call_deadline_floor = 3 × 2s (flag) = 6s"),
        "{refused}"
    );
}

/// R14
#[test]
fn a_lease_of_less_than_six_call_deadlines_is_warned_about() {
    for (duration, refused, warnings) in
        [("29999ms", true, 0), ("30s", false, 1), ("59999ms", false, 1), ("60s", false, 0)]
    {
        match load::<ManagerConfig>(&flags(&[&format!("lease.duration={duration}")])) {
            Ok(loaded) => assert_eq!((refused, loaded.warnings.len()), (false, warnings), "{duration}"),
            Err(error) => assert!(refused, "{duration}: {error}"),
        }
    }
}

/// R14, R13, R2, R30, L1, R46
#[test]
fn every_profile_sets_both_times_and_what_follows_is_shown_with_its_formula() {
    let rows = [
        ("wan", "60s", "10s", ["59.94s", "19.98s", "10s", "20s", "61s", "140s"]),
        ("lan", "12s", "2s", ["11.988s", "3.996s", "2s", "4s", "13s", "28s"]),
        ("fast", "3s", "500ms", ["2.997s", "999ms", "500ms", "1s", "4s", "7s"]),
    ];
    for (profile, duration, floor, derived) in rows {
        let loaded = load::<ManagerConfig>(&flags(&[&format!("lease.profile={profile}")])).unwrap();
        let shown = loaded.render_show();
        let value = |key: &str| shown.iter().find(|shown| shown.key == key).unwrap().value.clone();
        assert_eq!((value("lease.duration"), value("lease.call_deadline_floor")), (duration.into(), floor.into()));
        let found: Vec<_> = shown.iter().filter(|shown| shown.derived).map(|shown| shown.value.as_str()).collect();
        assert_eq!(found, derived);
        assert!(
            shown.iter().filter(|shown| shown.derived).all(|shown| !shown.source.is_empty() && !shown.note.is_empty())
        );
    }
    let loaded = load::<ManagerConfig>(&flags(&["lease.duration=90s", "lease.allowance=10%"])).unwrap();
    let shown = loaded.render_show();
    let holder = shown.iter().find(|shown| shown.key == "lease.holder_lease").unwrap();
    assert_eq!(holder.value, "81s");
}

/// R38
#[test]
fn patience_shorter_than_one_attempt_is_refused_with_the_arithmetic() {
    let refused = refusal::<ExecutorConfig>(&flags(&["executor.registration_patience=9s"]));
    assert!(
        refused.contains("9s is below one attempt's deadline") && refused.contains("max(10s, 10s) = 10s"),
        "{refused}"
    );
    load::<ExecutorConfig>(&flags(&["executor.registration_patience=10s"])).unwrap();
}

/// R33
#[test]
fn a_settling_time_above_ten_seconds_is_refused() {
    load::<ManagerConfig>(&flags(&["rebalance.settle=10s"])).unwrap();
    let refused = refusal::<ManagerConfig>(&flags(&["rebalance.settle=10001ms"]));
    assert!(refused.contains("0s to 10s"), "{refused}");
}

#[test]
fn two_listeners_on_one_port_are_refused() {
    for listen in ["listen.http=127.0.0.1:7490", "listen.http=0.0.0.0:7490"] {
        let refused = refusal::<GatewayConfig>(&flags(&[listen]));
        assert!(refused.contains("are one port"), "{refused}");
    }
    load::<GatewayConfig>(&flags(&["listen.http=127.0.0.1:0", "listen.grpc=127.0.0.1:0"])).unwrap();
    load::<GatewayConfig>(&flags(&["listen.http=127.0.0.2:7490"])).unwrap();
}

#[test]
fn a_frozen_writer_is_stepped_around_sooner_in_profile_fast() {
    for (profile, expected) in [("wan", 1000), ("lan", 1000), ("fast", 500)] {
        let loaded = load::<ExecutorConfig>(&flags(&[&format!("lease.profile={profile}")])).unwrap();
        assert_eq!(loaded.config.oplog.step_around_after, Duration::from_millis(expected));
    }
    let loaded = load::<ExecutorConfig>(&flags(&["lease.profile=fast", "oplog.step_around_after=70ms"])).unwrap();
    assert_eq!(loaded.config.oplog.step_around_after, Duration::from_millis(70));
}

#[test]
fn a_grace_longer_than_a_lease_and_a_store_in_memory_are_warned_about() {
    let loaded = load::<ExecutorConfig>(&flags(&["executor.handoff_grace=61s", "oplog.url=memory:"])).unwrap();
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("executor.handoff_grace of 61s is above lease.duration of 60s"));
    let loaded = load::<ManagerConfig>(&flags(&["store.url=memory:"])).unwrap();
    assert_eq!((loaded.warnings.len(), loaded.config.store), (1, StorageUrl::Memory));
}

#[test]
fn a_manager_takes_a_postgresql_server_and_its_password_is_never_shown() {
    let url = "postgres://me:secret@db:5432/leasehold?sslmode=require";
    let loaded = load::<ManagerConfig>(&flags(&[&format!("store.url={url}")])).unwrap();
    assert_eq!(loaded.config.store, StorageUrl::Postgres(url.into()));
    assert!(!loaded.config.store.to_string().contains("secret"));
    let shown = loaded.render_show().into_iter().find(|shown| shown.key == "store.url").unwrap();
    assert_eq!(shown.value, "postgres://me:***@db:5432/leasehold?sslmode=require");
    for refused in ["store.url=postgres://", "store.url=mysql://me:secret@db/x"] {
        let told = format!("{:?}", load::<ManagerConfig>(&flags(&[refused])).unwrap_err());
        assert!(told.contains("postgres://USER@HOST") && !told.contains("secret"), "{told}");
    }
}

#[test]
fn oplogs_are_kept_where_several_executors_can_share_them_and_passwords_are_never_shown() {
    let postgres = "postgres://me:secret@db:5432/leasehold";
    let redis = "redis://:secret@cache:6379/1";
    for (url, expected, shown) in [
        (postgres, StorageUrl::Postgres(postgres.into()), "postgres://me:***@db:5432/leasehold"),
        (redis, StorageUrl::Redis(redis.into()), "redis://:***@cache:6379/1"),
    ] {
        let loaded = load::<ExecutorConfig>(&flags(&[&format!("oplog.url={url}")])).unwrap();
        assert_eq!(loaded.config.oplog.url, expected);
        let value = loaded.render_show().into_iter().find(|shown| shown.key == "oplog.url").unwrap().value;
        assert_eq!(value, shown);
        assert_eq!(loaded.config.oplog.url.to_string(), shown);
        let url = format!("oplog.url={url}");
        let loaded = load::<ExecutorConfig>(&flags(&[&url, "oplog.step_around_after=1s"])).unwrap();
        assert!(
            loaded.warnings.iter().any(|it| it.contains("step_around_after has no effect")),
            "{:?}",
            loaded.warnings
        );
    }
    for refused in ["etcd:http://db:2379", "redis://", "rediss://me:secret@cache", "redis-sentinel://cache"] {
        let told = load::<ExecutorConfig>(&flags(&[&format!("oplog.url={refused}")])).unwrap_err().to_string();
        assert!(told.contains("sqlite:DIR, postgres://") && !told.contains("secret"), "{told}");
    }
    let told = load::<ManagerConfig>(&flags(&["store.url=redis://cache"])).unwrap_err().to_string();
    assert!(told.contains("expected sqlite:PATH, postgres://"), "{told}");
}

#[test]
fn an_archive_is_read_whole_and_by_default_nothing_moves() {
    let archive = |text: &str| from_text::<ExecutorConfig>(text).unwrap().config.oplog.archive;
    let unset = archive("[oplog.archive]\n");
    assert_eq!((unset.to, unset.blobs, unset.after_entries), (ArchiveTo::None, None, 1000));
    let set = archive(
        "[oplog.archive]\nto = \"blobs\"\nurl = \"s3://my-bucket/pre/\"\nendpoint = \"https://s3.example/\"\nregion = \"r-1\"\n\
         credentials_file = \"/c\"\nca_file = \"/d\"\nrequest_timeout = \"3s\"\nafter_entries = 7\nafter_age = \"2h\"\n",
    );
    let storage = set.blobs.unwrap();
    assert_eq!((set.to, set.after_entries, set.after_age), (ArchiveTo::Blobs, 7, Duration::from_secs(7200)));
    assert_eq!(storage.url.to_string(), "s3://my-bucket/pre");
    assert_eq!(storage.endpoint.unwrap().as_str(), "https://s3.example");
    assert_eq!((storage.region.as_deref(), storage.allow_http), (Some("r-1"), false));
    assert_eq!(storage.credentials_file.unwrap(), PathBuf::from("/c"));
    assert_eq!((storage.ca_file.unwrap(), storage.request_timeout), (PathBuf::from("/d"), Duration::from_secs(3)));
}

#[test]
fn an_archive_that_cannot_work_is_refused_with_what_to_do() {
    let s3 = "oplog.archive.url=s3://my-bucket";
    let blobs = "oplog.archive.to=blobs";
    for (set, begin, part) in [
        (vec![blobs], "oplog.archive.url: not set", "file:///FOLDER or s3://BUCKET/PREFIX"),
        (vec![blobs, s3, "oplog.url=memory:"], "oplog.archive.to: blobs", "set oplog.archive.to to list or none"),
        (
            vec![blobs, s3, "oplog.archive.endpoint=http://10.0.0.1:9"],
            "oplog.archive.endpoint: http://10",
            "use https://",
        ),
        (vec!["oplog.archive.to=s3"], "oplog.archive.to: \"s3\"", "one of none, list, blobs"),
        (vec!["oplog.archive.url=data/archive"], "oplog.archive.url: \"data/archive\"", "file:///FOLDER"),
        (vec!["oplog.archive.url=s3://k:secret@b"], "oplog.archive.url: \"s3://k:***@b\"", "s3://BUCKET/PREFIX"),
        (
            vec!["oplog.archive.endpoint=https://k:secret@b"],
            "oplog.archive.endpoint: \"https://k:***@b\"",
            "https://HOST",
        ),
        (vec!["oplog.archive.region=eu west"], "oplog.archive.region", "letters"),
        (vec!["oplog.archive.request_timeout=6m"], "oplog.archive.request_timeout", "100ms to 300s"),
        (vec!["oplog.archive.after_entries=0"], "oplog.archive.after_entries", "1 to 1000000"),
        (vec!["oplog.archiv.url=s3://my-bucket"], "oplog.archiv.url: unknown key", "oplog.archive.url"),
    ] {
        let told = refusal::<ExecutorConfig>(&flags(&set));
        assert!(told.starts_with(begin) && told.contains(part) && !told.contains("secret"), "{begin}, {part}: {told}");
    }
}

#[test]
fn an_archive_that_may_surprise_is_warned_about() {
    let file = "oplog.archive.url=file:///archive";
    let s3 = "oplog.archive.url=s3://my-bucket";
    let blobs = "oplog.archive.to=blobs";
    for (set, parts) in [
        (vec![blobs, file], vec![]),
        (vec![blobs, file, "oplog.url=postgres://me@db/x"], vec!["must be the same one on each of them"]),
        (vec![blobs, file, "oplog.archive.region=r"], vec!["oplog.archive.region has no effect"]),
        (vec![blobs, s3, "oplog.archive.endpoint=http://127.0.0.1:9"], vec![]),
        (
            vec![blobs, s3, "oplog.archive.endpoint=http://10.0.0.1:9", "oplog.archive.allow_http=yes"],
            vec!["entries travel to http://10.0.0.1:9 unencrypted"],
        ),
        (vec![s3, "oplog.archive.to=list"], vec!["oplog.archive.url is only read"]),
        (vec!["oplog.archive.after_age=2h"], vec!["oplog.archive.after_age has no effect"]),
        (vec!["oplog.archive.to=list", "oplog.url=memory:"], vec!["oplog.url is memory"]),
    ] {
        let warnings = load::<ExecutorConfig>(&flags(&set)).unwrap().warnings;
        let told = warnings.iter().zip(&parts).all(|(warning, part)| warning.contains(part));
        assert!(told && warnings.len() == parts.len(), "{set:?}: {warnings:?}");
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let refused = refusal::<ManagerConfig>(&flags(&[
        "nonsense",
        "leas=1",
        "log.level=loud",
        "lease.duration=5s",
        "cluster.shard_count=0",
    ]));
    let lines: Vec<_> = refused.lines().collect();
    assert_eq!(lines.len(), 4, "the contradiction waits until every value is accepted: {refused}");
    assert!(lines[0].starts_with("flag \"nonsense\" is not accepted; expected key=value"));
    assert!(lines[1].starts_with("leas: unknown key"));
    assert!(lines[2].starts_with("cluster.shard_count: \"0\""));
    assert!(lines[3].starts_with("log.level: \"loud\""));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let table = [
        (folder.path().join("absent.toml"), "cannot be read: No such file"),
        (folder.path().to_owned(), "cannot be read: Is a directory"),
        (write("large.toml", &vec![b'#'; (1 << 20) + 1]), "is larger than 1048576 bytes"),
        (write("binary.toml", &[0xff, 0xfe]), "is not UTF-8"),
        (write("broken.toml", b"[lease]\nduration = = 1\n"), "broken.toml:2: "),
        (write("twice.toml", b"[lease]\nduration = '60s'\nduration = '60s'\n"), "twice.toml:3: duplicate key"),
    ];
    for (path, expected) in table {
        let refused = refusal::<ManagerConfig>(&Sources { file: Some(path.clone()), ..Sources::default() });
        assert!(refused.starts_with(&path.display().to_string()) && refused.contains(expected), "{refused}");
    }
}

#[cfg(unix)]
#[test]
fn an_environment_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let env = vec![(OsString::from("LEASEHOLD__STORE__URL"), OsString::from_vec(b"sqlite:\xff".to_vec()))];
    let refused = refusal::<ManagerConfig>(&Sources { env, ..Sources::default() });
    assert_eq!(refused, "LEASEHOLD__STORE__URL: the value is not UTF-8");
}

#[test]
fn name_and_address_follow_from_what_is_bound_unless_they_are_given() {
    let identity = |list: &[&str]| load::<ExecutorConfig>(&flags(list)).unwrap().config.executor;
    let bound = "127.0.0.1:40001".parse().unwrap();
    let expect = |name: &str, address: &str| (ExecutorName::new(name).unwrap(), Address::new(address).unwrap());
    assert_eq!(identity(&[]).resolve(bound), Ok(expect("127.0.0.1-40001", "127.0.0.1:40001")));
    let v6 = "[::1]:5".parse().unwrap();
    assert_eq!(identity(&[]).resolve(v6), Ok(expect("---1--5", "[::1]:5")));
    assert_eq!(identity(&["executor.name=a"]).resolve(bound), Ok(expect("a", "127.0.0.1:40001")));
    let behind = ["executor.address=host.example:1", "listen.grpc=0.0.0.0:7480"];
    assert_eq!(
        identity(&behind).resolve("0.0.0.0:7480".parse().unwrap()),
        Ok(expect("host.example-1", "host.example:1"))
    );
    let refused = identity(&[]).resolve("0.0.0.0:7480".parse().unwrap()).unwrap_err();
    assert_eq!(refused.field, "executor.address");
}

#[test]
fn a_wildcard_to_listen_on_demands_an_address_to_advertise() {
    for listen in ["listen.grpc=0.0.0.0:7480", "listen.grpc=[::]:0"] {
        let refused = refusal::<ExecutorConfig>(&flags(&[listen]));
        assert!(refused.starts_with("executor.address: not set, and listen.grpc = "), "{refused}");
    }
    let long = format!("executor.address={}:1", "a".repeat(200));
    let refused = refusal::<ExecutorConfig>(&flags(&[&long]));
    assert!(refused.starts_with("executor.name: not set, and executor.address makes no name"), "{refused}");
    let loaded = load::<ExecutorConfig>(&flags(&["listen.grpc=127.0.0.1:0"])).unwrap();
    let shown = loaded.render_show().into_iter().find(|shown| shown.key == "executor.name").unwrap();
    assert_eq!((shown.value.as_str(), shown.source.as_str()), ("", "from executor.address, once it is known"));
}

#[test]
fn an_empty_value_unsets_a_key_that_may_be_unset_and_is_refused_elsewhere() {
    let mut sources = env(&[("LEASEHOLD__EXECUTOR__ZONE", "")]);
    assert_eq!(load::<ExecutorConfig>(&sources).unwrap().config.executor.zone, None);
    sources.overrides = vec!["executor.zone=z1".into()];
    assert_eq!(load::<ExecutorConfig>(&sources).unwrap().config.executor.zone.as_deref(), Some("z1"));
    assert!(refusal::<ExecutorConfig>(&flags(&["store.url="])).starts_with("store.url"));
    assert!(refusal::<ManagerConfig>(&flags(&["store.url="])).starts_with("store.url: \"\" (flag) is not accepted"));
}

/// A text that a kind accepts, drawn from its whole range.
fn accepted_text(kind: Kind, g: &mut Gen) -> String {
    let within = |min: u64, max: u64, g: &mut Gen| match u64::arbitrary(g) % 4 {
        0 => min,
        1 => max,
        _ => min + u64::arbitrary(g) % (max - min + 1),
    };
    match kind {
        Kind::Duration { min, max } => {
            let [min, max] = [min, max].map(|span| u64::try_from(span.as_millis()).unwrap());
            format!("{}ms", within(min, max, g))
        }
        Kind::Whole { min, max } => within(min, max, g).to_string(),
        Kind::OneOf(words) => (*g.choose(words).unwrap()).to_owned(),
        Kind::Name => format!("n{}.x-{}", u64::arbitrary(g), u8::arbitrary(g)),
        Kind::Address | Kind::Listen => format!("127.0.0.1:{}", within(1, 65_535, g)),
        Kind::Addresses => (0..within(1, 16, g)).map(|host| format!("h{host}:1")).collect::<Vec<_>>().join(","),
        Kind::Allowance => format!("{}ppm", within(0, 100_000, g)),
        Kind::Storage(_) => {
            (*g.choose(&["memory:", "sqlite:a b/\"ü", "sqlite:/x", "postgres://me@db/x", "redis://h/1"]).unwrap())
                .to_owned()
        }
        Kind::SharedStorage(_) => (*g.choose(&["memory:", "sqlite:/x", "postgres://me@db/x"]).unwrap()).to_owned(),
        Kind::File => format!("/etc/{}", u8::arbitrary(g)),
        Kind::Archive => (*g.choose(&["file:///a b/\"ü", "s3://my-bucket", "s3://b.2-c/a/b=c"]).unwrap()).to_owned(),
        Kind::Endpoint => (*g.choose(&["https://s3.example", "http://127.0.0.1:9000"]).unwrap()).to_owned(),
        Kind::Region => format!("eu-west-{}", u8::arbitrary(g)),
        Kind::Apps => format!("t{}=http://127.0.0.1:{}", u8::arbitrary(g), 1 + u16::arbitrary(g) % 60_000),
    }
}

/// One key of a command with an accepted text, and how it is set.
#[derive(Debug, Clone)]
struct Setting {
    key: &'static Key,
    text: String,
    way: u8,
}

fn setting(keys: &[&'static Key], g: &mut Gen) -> Setting {
    let key = *g.choose(keys).unwrap();
    Setting { key, text: accepted_text(key.kind, g), way: u8::arbitrary(g) % 3 }
}

/// Set by any way, the same text is shown again; two accepted values may still contradict each other.
fn comes_back<T: Configuration>(Setting { key, text, way }: &Setting) {
    let loaded = match way {
        0 => from_text::<T>(&format!("[{}]\n{} = {}\n", key.section(), key.name(), key.kind.toml(text))),
        1 => load::<T>(&env(&[(&key.variable(), text)])),
        _ => load::<T>(&flags(&[&format!("{}={text}", key.path)])),
    };
    match loaded {
        Ok(loaded) => {
            let shown = loaded.render_show().into_iter().find(|shown| shown.key == key.path).unwrap();
            assert_eq!(&shown.value, text, "{}", key.path);
        }
        Err(error) => {
            let contradictions = error.problems.iter().all(|problem| matches!(problem, Problem::Contradiction { .. }));
            assert!(contradictions, "{}={text}: {error}", key.path);
        }
    }
}

#[derive(Debug, Clone)]
struct Settings(Setting, Setting, Setting);

impl Arbitrary for Settings {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(setting(ManagerConfig::keys(), g), setting(ExecutorConfig::keys(), g), setting(GatewayConfig::keys(), g))
    }
}

#[test]
fn every_accepted_value_comes_back_as_it_was_set() {
    fn holds(Settings(manager, executor, gateway): Settings) -> bool {
        comes_back::<ManagerConfig>(&manager);
        comes_back::<ExecutorConfig>(&executor);
        comes_back::<GatewayConfig>(&gateway);
        true
    }
    QuickCheck::new().tests(400).quickcheck(holds as fn(Settings) -> bool);
}

#[test]
fn no_text_whatever_makes_loading_panic() {
    fn text_holds(text: String, key: usize, value: String) -> bool {
        let keys = ExecutorConfig::keys();
        let key = keys[key % keys.len()];
        let _ = from_text::<ExecutorConfig>(&text);
        let _ = from_text::<ExecutorConfig>(&format!("[{}]\n{} = {value}", key.section(), key.name()));
        let _ = from_text::<ExecutorConfig>(&format!("{value:?} = {text:?}"));
        let variable = key.variable();
        let sources = env(&[(&variable, &value), (&format!("{ENV_PREFIX}{text}"), &value)]);
        let problems = load::<ExecutorConfig>(&sources).map_err(|error| error.to_string());
        let flagged =
            load::<ExecutorConfig>(&flags(&[&text, &format!("{}={value}", key.path), &format!("{text}={value}")]));
        let shown = [problems.err(), flagged.err().map(|error| error.to_string())];
        shown.into_iter().flatten().all(|shown| !shown.chars().any(|c| c.is_control() && c != '\n'))
    }
    QuickCheck::new().tests(200).quickcheck(text_holds as fn(String, usize, String) -> bool);
}

#[test]
fn durations_are_shown_so_that_a_whole_number_of_units_can_be_read_back() {
    for text in ["60s", "1s", "500ms", "1ms", "0s"] {
        assert_eq!(show_duration(humantime::parse_duration(text).unwrap()), text);
    }
}

fn etcd(settings: &[(&str, &str)]) -> Result<Loaded<ManagerConfig>, ConfigError> {
    let all = [("store.url", "etcd:http://a:2379, https://b:2379")].iter().chain(settings);
    let overrides = all.map(|(key, value)| format!("{key}={value}")).collect();
    load(&Sources { overrides, ..Sources::default() })
}

#[test]
fn etcd_is_reached_at_several_endpoints_and_brings_a_leadership() {
    let loaded = etcd(&[("leadership.standby_grpc", "redirect"), ("leadership.leader_lease_ttl", "6s")]).unwrap();
    let leadership = loaded.config.leadership.unwrap();
    assert_eq!(leadership.etcd.endpoints, ["http://a:2379", "https://b:2379"]);
    assert_eq!((leadership.lease_ttl, leadership.standby_grpc), (Duration::from_secs(6), StandbyGrpc::Redirect));
    assert_eq!(leadership.etcd.compaction_retention_revisions, 1000);
    assert_eq!(load::<ManagerConfig>(&Sources::default()).unwrap().config.leadership, None);
}

#[test]
fn a_request_timeout_above_half_of_the_leaders_ttl_is_refused_with_the_arithmetic() {
    etcd(&[("store.request_timeout", "2500ms"), ("leadership.leader_lease_ttl", "5s")]).unwrap();
    let refused = etcd(&[("store.request_timeout", "2501ms"), ("leadership.leader_lease_ttl", "5s")]).unwrap_err();
    assert!(refused.to_string().contains("2 × store.request_timeout = 2 × 2.501s = 5.002s"), "{refused}");
}

#[test]
fn half_of_a_pair_of_credentials_is_refused_by_the_name_of_the_other_half() {
    let pairs = [("store.user", "store.password_file"), ("store.cert_file", "store.key_file")];
    for (one, other) in pairs {
        for (set, missing) in [(one, other), (other, one)] {
            let refused = etcd(&[(set, "x")]).unwrap_err().to_string();
            assert!(refused.contains(&format!("{missing}: unset, but {set} is set")), "{refused}");
        }
        etcd(&[(one, "x"), (other, "x"), ("store.ca_file", "x")]).unwrap();
    }
    let refused = etcd(&[("store.cert_file", "x"), ("store.key_file", "x")]).unwrap_err().to_string();
    assert!(refused.contains("store.ca_file: unset, but store.cert_file is set"), "{refused}");
}

#[test]
fn a_wildcard_is_proclaimed_by_nobody() {
    let refused = etcd(&[("listen.grpc", "0.0.0.0:7470")]).unwrap_err().to_string();
    assert!(refused.contains("leadership.address: unset"), "{refused}");
    etcd(&[("listen.grpc", "0.0.0.0:7470"), ("leadership.address", "m1:7470")]).unwrap();
}

#[test]
fn what_only_etcd_has_is_warned_about_elsewhere() {
    let loaded = load::<ManagerConfig>(&flags(&["leadership.leader_lease_ttl=5s"])).unwrap();
    let warned =
        |warning: &String| warning.contains("leadership.leader_lease_ttl does nothing while store.url is sqlite:");
    assert!(loaded.warnings.iter().any(warned), "{:?}", loaded.warnings);
}

#[test]
fn a_leaders_ttl_that_executors_cannot_bridge_is_warned_about() {
    let warned = |settings: &[(&str, &str)]| {
        etcd(settings).unwrap().warnings.iter().any(|text| text.contains("callers may notice"))
    };
    assert!(warned(&[("lease.profile", "lan")]), "12 s of lease, 10 s of ttl");
    assert!(!warned(&[("lease.profile", "lan"), ("leadership.leader_lease_ttl", "7s")]));
    assert!(!warned(&[("lease.profile", "wan")]));
}
