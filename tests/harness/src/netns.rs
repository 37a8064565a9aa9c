//! Hosts in network namespaces of the test's own, on a switch of their own: what is cut there is cut by dropped packets, with
//! every socket left open. Nothing is set up outside of them. Needs root, `ip` and `iptables`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};

/// Several hosts that reach each other, and nothing else.
#[derive(Debug)]
pub struct Network {
    switch: String,
    hosts: Vec<Host>,
}

/// One of them: processes that are started by [`Host::command`] see its interfaces only.
#[derive(Debug)]
pub struct Host {
    namespace: String,
    /// Where its processes are reached: in 198.18.0.0/15, which is kept for tests (RFC 2544).
    pub address: Ipv4Addr,
}

/// How many networks this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);
const PREFIX: &str = "leasehold";

impl Network {
    /// Makes a switch with `count` hosts on it.
    ///
    /// # Panics
    /// When it cannot: without root or without `ip`, which is a failure, never a skip.
    #[must_use]
    pub fn new(count: u8) -> Self {
        sweep();
        let name = format!("{PREFIX}-{}-{}", id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mut network = Self { switch: format!("{name}-switch"), hosts: Vec::new() };
        let switch = network.switch.clone();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "name", "switch", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "switch", "up"]);
        for number in 1..=count {
            let host = Host { namespace: format!("{name}-{number}"), address: Ipv4Addr::new(198, 18, 0, number) };
            let (inside, port) = (host.namespace.clone(), format!("port{number}"));
            ip(&["netns", "add", &inside]);
            network.hosts.push(host);
            ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "net0", "netns", &inside]);
            ip(&["-n", &switch, "link", "set", &port, "master", "switch", "up"]);
            ip(&["-n", &inside, "address", "add", &format!("198.18.0.{number}/15"), "dev", "net0"]);
            ip(&["-n", &inside, "link", "set", "net0", "up"]);
            ip(&["-n", &inside, "link", "set", "lo", "up"]);
        }
        network
    }

    /// All hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What lives in a namespace keeps it; processes are ended by their own owners.
        for namespace in self.hosts.iter().map(|host| &host.namespace).chain([&self.switch]) {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).output();
        }
    }
}

impl Host {
    /// `program`, to be run on this host. The process is the program itself, with the id that starting it returns.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program.as_ref());
        command
    }

    /// From now on, drops what arrives from `peer`.
    pub fn drop_from(&self, peer: &Self) {
        self.filter(&["-A", "INPUT", "-s", &peer.address.to_string(), "-j", "DROP"]);
    }

    /// From now on, drops what this host sends to `peer`.
    pub fn drop_to(&self, peer: &Self) {
        self.filter(&["-A", "OUTPUT", "-d", &peer.address.to_string(), "-j", "DROP"]);
    }

    /// Cuts this host off from `peers`, both ways.
    pub fn cut_off_from<'a>(&self, peers: impl IntoIterator<Item = &'a Self>) {
        for peer in peers {
            self.drop_from(peer);
            self.drop_to(peer);
        }
    }

    /// Drops nothing any more.
    pub fn heal(&self) {
        self.filter(&["-F"]);
    }

    fn filter(&self, rule: &[&str]) {
        let mut command = self.command("iptables");
        run(command.arg("-w").args(rule));
    }
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

fn run(command: &mut Command) {
    let ended = command.output().unwrap_or_else(|why| panic!("{}: {why}", command.get_program().display()));
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// Removes namespaces that a killed test left behind: those named after a process that is gone.
fn sweep() {
    // Without the directory there is none.
    let Ok(entries) = fs::read_dir("/run/netns") else { return };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('-')?.split_once('-'));
        if owner.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
            // Another test may be faster.
            let _ = Command::new("ip").args(["netns", "delete", &name]).output();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Whether `to` answers a TCP connection from `from`: refused is an answer.
    fn answers(from: &Host, to: &Host) -> bool {
        let script = format!("exec 3<>/dev/tcp/{}/1", to.address);
        let tried = from.command("timeout").args(["0.5", "bash", "-c", &script]).output().unwrap();
        String::from_utf8_lossy(&tried.stderr).contains("refused")
    }

    #[test]
    fn a_cut_works_in_the_direction_it_is_made_in_until_it_is_healed() {
        let network = Network::new(3);
        let [a, b, c] = network.hosts() else { panic!("three hosts") };
        assert!(answers(a, b) && answers(b, a) && answers(a, c));
        a.drop_from(b);
        assert!(!answers(b, a), "b's packets are dropped");
        assert!(!answers(a, b), "b's answers are dropped");
        assert!(answers(a, c) && answers(b, c), "others are not concerned");
        a.heal();
        crate::wait_until("a to be healed", Duration::from_secs(5), || answers(a, b));
        a.cut_off_from([b, c]);
        assert!(!answers(c, a) && answers(b, c));
    }

    #[test]
    fn a_network_is_gone_when_its_owner_is() {
        let network = Network::new(1);
        let namespace = Path::new("/run/netns").join(&network.hosts()[0].namespace);
        assert!(namespace.exists());
        drop(network);
        assert!(!namespace.exists());
    }
}
