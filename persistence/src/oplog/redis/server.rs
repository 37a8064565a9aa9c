//! What the server is and how it is set: refused if the fence or an acknowledgement could not be kept there.

use crate::oplog::Warning;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult};
use std::collections::HashMap;

/// Errors inside scripts keep their codes from this version on.
const OLDEST: u32 = 7;

/// How the layout of keys is numbered: 1 had no archive layer, 2 kept records and entries apart. Builds that know another refuse it.
const SCHEMA: u32 = 3;

/// Why a server is not used.
pub(super) enum Unfit {
    /// Nothing was learnt of it.
    Failed(RedisError),
    /// It has to be changed.
    Never(String),
    /// It will get right by waiting.
    NotNow(String),
}

impl From<RedisError> for Unfit {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

/// The lines of `INFO`.
fn lines(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim())).collect()
}

/// Looks a server over; answers which run of it this is, and what its operator should know.
pub(super) async fn inspect(connection: &mut MultiplexedConnection) -> Result<(String, Vec<Warning>), Unfit> {
    let text: String = Cmd::new().arg("INFO").query_async(connection).await?;
    let info = lines(&text);
    fit(&info)?;
    let run = info.get("run_id").copied().unwrap_or_default().to_owned();
    let mut settings = HashMap::new();
    for name in ["appendonly", "appendfsync", "save", "maxmemory-policy"] {
        let asked: RedisResult<HashMap<String, String>> =
            Cmd::new().arg("CONFIG").arg("GET").arg(name).query_async(connection).await;
        match asked {
            Ok(found) => settings.extend(found),
            Err(error) if error.is_io_error() => return Err(error.into()),
            Err(error) => return Ok((run, vec![Warning::SettingsUnreadable(error.to_string())])),
        }
    }
    let get = |name: &str| settings.get(name).cloned().unwrap_or_default();
    Ok((run, judge(&get)?))
}

fn fit(info: &HashMap<&str, &str>) -> Result<(), Unfit> {
    let get = |name| info.get(name).copied().unwrap_or_default();
    if get("redis_mode") == "cluster" || get("cluster_enabled") == "1" {
        return Err(Unfit::Never(
            "it runs in Cluster mode, which this store does not use; name one Redis server that is not part of a Cluster".into(),
        ));
    }
    if get("redis_mode") == "sentinel" {
        return Err(Unfit::Never("it is a Sentinel, which keeps no data; name the Redis server itself".into()));
    }
    let version = get("redis_version");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST) {
        return Err(Unfit::Never(format!("it is Redis {version:?}; {OLDEST} or newer is needed")));
    }
    if get("loading") == "1" {
        return Err(Unfit::NotNow("it is loading its data".into()));
    }
    if get("role") == "slave" {
        return Err(Unfit::NotNow("it is a replica, which takes no writes; name the primary".into()));
    }
    Ok(())
}

fn judge(get: &dyn Fn(&str) -> String) -> Result<Vec<Warning>, Unfit> {
    let policy = get("maxmemory-policy");
    if policy.starts_with("allkeys") {
        return Err(Unfit::Never(format!(
            "maxmemory-policy is {policy}: when memory is short it would evict the records that keep a former owner from writing; \
             set maxmemory-policy noeviction"
        )));
    }
    let mut warnings = Vec::new();
    match (get("appendonly").as_str(), get("appendfsync")) {
        ("yes", fsync) if fsync == "always" => {}
        ("yes", fsync) => warnings.push(Warning::RedisFsync(fsync)),
        _ => warnings.push(Warning::RedisNoAppendOnly { save: get("save") }),
    }
    if policy.starts_with("volatile") {
        warnings.push(Warning::RedisEviction(policy));
    }
    Ok(warnings)
}

/// Notes the layout's version, or refuses another build's.
pub(super) async fn schema(connection: &mut MultiplexedConnection, key: &str) -> Result<(), Unfit> {
    let set = Cmd::new().arg("SET").arg(key).arg(SCHEMA).arg("NX").query_async::<()>(connection).await;
    let found: Option<String> = Cmd::new().arg("GET").arg(key).query_async(connection).await?;
    match found.map(|text| (text.parse::<u32>(), text)) {
        Some((Ok(SCHEMA), _)) => Ok(()),
        Some((Ok(newer), _)) if newer > SCHEMA => Err(Unfit::Never(format!(
            "key {key} says schema version {newer}, this build knows up to {SCHEMA}: use a newer build"
        ))),
        Some((Ok(older), _)) if older > 0 => Err(Unfit::Never(format!(
            "key {key} says schema version {older}, an older build's, and this build reads {SCHEMA}: use the older build, or name another database of the server"
        ))),
        Some((_, text)) => Err(Unfit::Never(format!("key {key} is {text:?}, which is no version of this store"))),
        // Full, or without a disk: it was not set, and says why.
        None => match set {
            Err(error) => Err(error.into()),
            Ok(()) => Err(Unfit::NotNow(format!("key {key} went away while the store was opened"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(result: Result<(), Unfit>) -> String {
        match result {
            Ok(()) => "fit".into(),
            Err(Unfit::Never(why)) => format!("never: {why}"),
            Err(Unfit::NotNow(why)) => format!("not now: {why}"),
            Err(Unfit::Failed(error)) => error.to_string(),
        }
    }

    #[test]
    fn a_server_that_cannot_keep_the_fence_is_refused_with_the_reason() {
        let good = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nloading:0\r\n";
        for (from, to, part) in [
            ("", "", "fit"),
            ("standalone", "cluster", "never: it runs in Cluster mode"),
            ("standalone", "sentinel", "never: it is a Sentinel"),
            ("7.0.15", "6.2.1", "never: it is Redis \"6.2.1\"; 7 or newer"),
            ("7.0.15", "", "never: it is Redis \"\""),
            ("7.0.15", "10.0.1", "fit"),
            ("master", "slave", "not now: it is a replica"),
            ("loading:0", "loading:1", "not now: it is loading"),
        ] {
            let info = if from.is_empty() { good.to_owned() } else { good.replace(from, to) };
            assert!(told(fit(&lines(&info))).starts_with(part), "{to}: {}", told(fit(&lines(&info))));
        }
    }

    #[test]
    fn settings_that_weaken_an_acknowledgement_are_warned_about_and_eviction_is_refused() {
        let ask = |appendonly: &str, fsync: &str, save: &str, policy: &str| {
            let settings =
                [("appendonly", appendonly), ("appendfsync", fsync), ("save", save), ("maxmemory-policy", policy)];
            let settings = settings.map(|(name, value)| (name, value.to_owned()));
            judge(&|name| settings.iter().find(|(known, _)| *known == name).unwrap().1.clone())
        };
        let warned =
            |warnings: Result<Vec<Warning>, Unfit>| warnings.unwrap_or_else(|why| panic!("{}", told(Err(why))));
        assert_eq!(warned(ask("yes", "always", "", "noeviction")), []);
        assert_eq!(warned(ask("yes", "everysec", "", "noeviction")), [Warning::RedisFsync("everysec".into())]);
        assert_eq!(warned(ask("no", "always", "", "noeviction")), [Warning::RedisNoAppendOnly { save: String::new() }]);
        let both = [Warning::RedisNoAppendOnly { save: "60 1".into() }, Warning::RedisEviction("volatile-lru".into())];
        assert_eq!(warned(ask("no", "always", "60 1", "volatile-lru")), both);
        let refused = told(ask("yes", "always", "", "allkeys-lru").map(drop));
        assert!(refused.starts_with("never") && refused.contains("set maxmemory-policy noeviction"), "{refused}");
    }
}
