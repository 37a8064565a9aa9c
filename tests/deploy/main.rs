//! What `deploy/` holds, read by the tools that will read it: systemd, docker-compose, and our own binaries.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MANAGER: &str = env!("CARGO_BIN_EXE_shard-manager");
const EXECUTOR: &str = env!("CARGO_BIN_EXE_shard-executor");

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|why| panic!("{}: {why}", command.get_program().display()))
}

/// Standard output and standard error, for failures.
fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A root file system with systemd's own units, our units as `change` leaves them, and something to execute.
fn systemd_says(change: impl Fn(String) -> String) -> String {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("etc/systemd/system");
    for folder in ["etc/systemd/system", "usr/bin", "lib/systemd"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    let copied = output(Command::new("cp").arg("-r").arg("/lib/systemd/system").arg(root.path().join("lib/systemd")));
    assert!(copied.status.success(), "{}", said(&copied));
    for binary in ["shard-manager", "shard-executor"] {
        fs::copy("/bin/true", root.path().join("usr/bin").join(binary)).unwrap();
    }
    for entry in fs::read_dir(deploy("systemd")).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_some_and(|extension| extension == "service") {
            fs::write(units.join(entry.file_name()), change(fs::read_to_string(entry.path()).unwrap())).unwrap();
        }
    }
    let ours = ["leasehold-manager.service", "leasehold-executor@1.service", "leasehold-gateway.service"];
    let verified = output(
        Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(format!("--root={}", root.path().display()))
            .args(ours),
    );
    let about_ours: Vec<_> =
        said(&verified).lines().filter(|line| line.contains("leasehold-")).map(String::from).collect();
    assert!(verified.status.success() || !about_ours.is_empty(), "{}", said(&verified));
    about_ours.join("\n")
}

#[test]
fn systemd_accepts_the_units() {
    assert_eq!(systemd_says(|unit| unit), "");
    let refused = systemd_says(|unit| unit.replace("Restart=always", "Restart=sometimes"));
    assert!(refused.contains("sometimes"), "the check would not have noticed: {refused}");
}

/// The environment of every service of the compose file, as docker-compose resolves it: aliases, merges and all.
fn services() -> BTreeMap<String, BTreeMap<String, String>> {
    let resolved = output(Command::new("docker-compose").arg("-f").arg(deploy("compose/compose.yaml")).arg("config"));
    assert!(resolved.status.success(), "{}", said(&resolved));
    let text = format!("\n{}", String::from_utf8(resolved.stdout).unwrap());
    let (_, listed) = text.split_once("\nservices:\n").unwrap();
    let mut services: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut service = String::new();
    for line in listed.lines().take_while(|line| line.is_empty() || line.starts_with(' ')) {
        let depth = line.len() - line.trim_start().len();
        match line.trim().split_once(':') {
            Some((name, "")) if depth == 2 => service = name.to_owned(),
            Some((key, value)) if depth == 6 && key.starts_with("LEASEHOLD__") => {
                let value = value.trim().trim_matches(['"', '\'']).to_owned();
                services.entry(service.clone()).or_default().insert(key.to_owned(), value);
            }
            _ => {}
        }
    }
    services
}

/// `config check` by the binary that a service of this name runs.
fn config_check(service: &str) -> Command {
    let kinds = [("manager", MANAGER, None), ("executor", EXECUTOR, None), ("gateway", EXECUTOR, Some("--route"))];
    let (_, binary, route) = kinds.into_iter().find(|(kind, ..)| service.starts_with(kind)).unwrap();
    let mut command = Command::new(binary);
    command.env_clear().arg("config").args(route).arg("check");
    command
}

#[test]
fn docker_compose_accepts_the_compose_file_and_the_binaries_accept_its_services() {
    let services = services();
    let managers = services.keys().filter(|name| name.starts_with("manager")).count();
    assert_eq!((services.len(), managers), (8, 3), "{services:?}");
    for (service, environment) in &services {
        let checked = output(config_check(service).envs(environment));
        assert!(checked.status.success(), "{service}: {}", said(&checked));
    }
}

#[test]
fn a_misspelt_variable_in_the_compose_file_would_be_refused() {
    let mut environment = services().remove("manager-1").unwrap();
    environment.insert("LEASEHOLD__STORE__URI".to_owned(), "memory:".to_owned());
    let checked = output(config_check("manager-1").envs(&environment));
    assert_eq!(checked.status.code(), Some(78), "{}", said(&checked));
}

#[test]
fn the_binaries_accept_the_configuration_files_beside_the_units() {
    for (service, file) in [("manager", "manager.toml"), ("executor", "executor-1.toml"), ("gateway", "gateway.toml")] {
        let checked = output(config_check(service).arg("--config").arg(deploy("systemd").join(file)));
        assert!(checked.status.success(), "{file}: {}", said(&checked));
    }
}
