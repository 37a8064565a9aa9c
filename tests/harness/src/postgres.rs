//! A PostgreSQL server of a test's own.

use crate::TlsFiles;
use crate::process::{Process, free_port, wait_until};
use rustix::process::{Signal, geteuid};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Debian's PostgreSQL 15.
const BIN: &str = "/usr/lib/postgresql/15/bin";
/// How long a server may take to start or to stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The superuser, the only role; and the database.
const ROLE: &str = "leasehold";
const DATABASE: &str = "leasehold";

/// A server that ends with this value. Its data is in a temporary folder, its port is its own and stays over restarts.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    port: u16,
    settings: Vec<(String, String)>,
    server: Option<Process>,
    /// Its data is on a small disk of its own.
    mounted: bool,
}

/// A command that runs as somebody whom PostgreSQL accepts: it refuses root.
fn unprivileged(program: &Path) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    // The test's own folder may be closed to that user.
    command.current_dir("/");
    command
}

fn bin(program: &str) -> PathBuf {
    Path::new(BIN).join(program)
}

fn checked(what: &str, output: std::io::Result<Output>) -> Output {
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A folder that the server's user owns.
fn own_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if geteuid().is_root() {
        let user = checked("id -u postgres", Command::new("id").args(["-u", "postgres"]).output());
        let user = String::from_utf8_lossy(&user.stdout).trim().parse().expect("a user id");
        chown(folder.path(), Some(user), None).expect("root may give a folder away");
    }
    // The socket in it is for the test, whoever runs it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    folder
}

/// A fresh cluster's data, made once per machine and kept: a copy takes a tenth of the time of `initdb`, and every test
/// may be a process of its own.
fn template() -> PathBuf {
    let place = std::env::temp_dir().join(format!("leasehold-postgres-15-template-{}", geteuid().as_raw()));
    if !place.exists() {
        let folder = own_folder();
        let mut initdb = unprivileged(&bin("initdb"));
        initdb.args(["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", ROLE, "-D"]);
        checked("initdb", initdb.arg(folder.path().join("data")).output());
        // Whole or not at all; another process may have been faster, whose template is as good.
        if fs::rename(folder.path(), &place).is_ok() {
            drop(folder.keep());
        }
    }
    place
}

impl Postgres {
    /// A server with default settings.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with these settings, as `postgres -c` takes them: `("max_connections", "10")`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut server = Self::prepare(settings);
        server.copy_template();
        server.begin()
    }

    /// A server with its data on a disk of `mib` MiB, which [`Postgres::fill_disk`] fills. Mounting it takes root.
    ///
    /// # Panics
    /// When the disk cannot be mounted, or the server be started.
    #[must_use]
    pub fn start_on_disk(mib: u32, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::prepare(settings);
        fs::create_dir(server.data()).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]).arg(server.data());
        checked("mount (as root)", mount.output());
        server.mounted = true;
        server.copy_template();
        server.begin()
    }

    /// A server that speaks TLS with these files, and admits whom `hba` admits: lines of `pg_hba.conf`. The role `leasehold` is needed over
    /// TLS for what the test itself asks.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_with_tls(tls: &TlsFiles, hba: &str) -> Self {
        let files = [("ca.pem", &tls.ca), ("cert.pem", &tls.cert), ("key.pem", &tls.key)];
        let settings =
            [("ssl", "on"), ("ssl_ca_file", "ca.pem"), ("ssl_cert_file", "cert.pem"), ("ssl_key_file", "key.pem")];
        let mut server = Self::prepare(&settings);
        server.copy_template();
        for (name, from) in files {
            // Written over a file of the server's user, which stays its owner; nobody else may read the key.
            let to = server.data().join(name);
            checked("touch", unprivileged(Path::new("/usr/bin/touch")).arg(&to).output());
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).expect("permissions");
            fs::write(&to, fs::read(from).expect("a certificate")).expect("a file");
        }
        fs::write(server.data().join("pg_hba.conf"), hba).expect("pg_hba.conf");
        server.begin()
    }

    fn prepare(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Self { folder: own_folder(), port: free_port(), settings, server: None, mounted: false }
    }

    fn copy_template(&mut self) {
        let mut copy = Command::new("/bin/cp");
        copy.args(["-a", "--reflink=auto"]).arg(template().join("data")).arg(self.folder.path());
        checked("cp", copy.output());
    }

    fn begin(mut self) -> Self {
        self.start_again();
        self.sql_in("postgres", &format!("CREATE DATABASE {DATABASE}"));
        self
    }

    /// Writes to the server's disk until nothing more fits.
    ///
    /// # Panics
    /// When the disk is not one of [`Postgres::start_on_disk`].
    pub fn fill_disk(&self) {
        self.fill_disk_but(0);
    }

    /// As [`Postgres::fill_disk`], and leaves `mib` MiB.
    ///
    /// # Panics
    /// As [`Postgres::fill_disk`].
    pub fn fill_disk_but(&self, mib: u64) {
        const MIB: usize = 1 << 20;
        assert!(self.mounted, "the disk is everybody's");
        let mut filling = fs::File::create(self.data().join("filling")).expect("a file on the small disk");
        let mut block = vec![0; MIB];
        while !block.is_empty() {
            if filling.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
        let length = filling.metadata().expect("a length").len();
        filling.set_len(length.saturating_sub(mib * MIB as u64)).expect("room is given back");
    }

    /// Takes back what [`Postgres::fill_disk`] wrote.
    ///
    /// # Panics
    /// When it had not.
    pub fn clear_disk(&self) {
        fs::remove_file(self.data().join("filling")).expect("a disk that was filled");
    }

    /// Starts it again after [`Postgres::stop`], on the same data and port.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_again(&mut self) {
        assert!(self.server.is_none(), "the server runs");
        let mut command = unprivileged(&bin("postgres"));
        command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        command.args([
            "-p",
            &self.port.to_string(),
            "-h",
            "127.0.0.1",
            "-c",
            "fsync=off",
            "-c",
            "full_page_writes=off",
        ]);
        for (key, value) in &self.settings {
            command.arg("-c").arg(format!("{key}={value}"));
        }
        let log = fs::File::options().create(true).append(true).open(self.log_path()).expect("a log file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.server = Some(Process::start("postgres", &mut command));
        // The line of the file that says so; `postmaster.pid` of a killed server is overwritten first.
        wait_until("PostgreSQL is ready", PATIENCE, || {
            let ended = self.server.as_mut().and_then(|server| server.ended().ok().flatten());
            assert!(ended.is_none(), "PostgreSQL ended: {}", self.log());
            let mut ready = Command::new(bin("pg_isready"));
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
            ready.status().is_ok_and(|status| status.success())
        });
    }

    /// Ends it at once, as `pg_ctl stop -m immediate` does: no checkpoint, the next start recovers.
    ///
    /// # Panics
    /// When it cannot be signalled.
    pub fn stop(&mut self) {
        self.signal_postmaster(Signal::QUIT);
        if let Some(mut server) = self.server.take() {
            wait_until("PostgreSQL has ended", PATIENCE, || server.ended().is_ok_and(|ended| ended.is_some()));
        }
    }

    /// Starts it again once it has ended by itself.
    ///
    /// # Panics
    /// When it does not end, or cannot be started.
    pub fn start_after_its_end(&mut self) {
        if let Some(mut server) = self.server.take() {
            wait_until("PostgreSQL has ended", PATIENCE, || server.ended().is_ok_and(|ended| ended.is_some()));
        }
        self.start_again();
    }

    /// Ends it and starts it again.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Changes settings that a reload applies: `("default_transaction_read_only", "on")`.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn set(&self, key: &str, value: &str) {
        let alter = format!("ALTER SYSTEM SET {key} = '{value}'");
        let mut psql = self.psql(DATABASE);
        // Each by itself: `ALTER SYSTEM` does not run inside a transaction.
        psql.args(["-c", "SET default_transaction_read_only = off", "-c", &alter, "-c", "SELECT pg_reload_conf()"]);
        checked(&alter, psql.output());
    }

    /// Its URL, without a password: it trusts everybody on the loopback.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same server as it is reached through `port` of the loopback: a proxy.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{port}/{DATABASE}")
    }

    /// Its port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with its socket, its data and its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Runs `sql` with `psql`, each `;` a statement; answers the rows, columns between `|`.
    ///
    /// # Panics
    /// When the server refuses it.
    pub fn sql(&self, sql: &str) -> String {
        self.sql_in(DATABASE, sql)
    }

    fn sql_in(&self, database: &str, sql: &str) -> String {
        let output = checked(sql, self.psql(database).args(["-c", sql]).output());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A `psql` that keeps a session until it is killed: `sql`, then waits.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn session(&self, sql: &str) -> Process {
        // Begun inside one transaction, so that its locks are kept.
        let mut psql = self.psql(DATABASE);
        psql.args(["-c", &format!("BEGIN; {sql}; SELECT pg_sleep(600)")]);
        psql.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Process::start("psql", &mut psql)
    }

    fn psql(&self, database: &str) -> Command {
        let mut command = Command::new(bin("psql"));
        command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", ROLE, "-d", database]);
        command.args(["-p", &self.port.to_string()]);
        command
    }

    /// The postmaster's process: `runuser` stands between it and this one.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn postmaster(&self) -> i32 {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).expect("a running server's pid file");
        file.lines().next().and_then(|line| line.trim().parse().ok()).expect("a process id")
    }

    /// Sends `signal` to the postmaster.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal_postmaster(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(self.postmaster()).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the postmaster can be signalled");
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A server that has ended has no pid file any more.
        if self.server.is_some() && self.data().join("postmaster.pid").exists() {
            self.stop();
        }
        if self.mounted {
            // Lazily: a process of the server may be a moment late.
            drop(Command::new("umount").arg("--lazy").arg(self.data()).status());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_data_over_a_restart_and_takes_settings() {
        let mut server = Postgres::start_with(&[("max_connections", "17")]);
        assert_eq!(server.sql("SHOW max_connections"), "17");
        server.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (7)");
        server.restart();
        assert_eq!(server.sql("SELECT a FROM t"), "7");
        server.set("default_transaction_read_only", "on");
        wait_until("the setting", PATIENCE, || server.sql("SHOW transaction_read_only") == "on");
    }
}
