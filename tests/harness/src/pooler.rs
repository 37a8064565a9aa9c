//! A connection pooler of a test's own.

use crate::Postgres;
use crate::process::{Process, free_port, wait_until};
use rustix::process::geteuid;
use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

const PGBOUNCER: &str = "/usr/sbin/pgbouncer";
const PATIENCE: Duration = Duration::from_secs(30);

/// pgbouncer before a [`Postgres`]; it ends with the value.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _process: Process,
}

impl Pooler {
    /// Starts it in `mode`: `session`, `transaction` or `statement`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(server: &Postgres, mode: &str) -> Self {
        let port = free_port();
        let config = server.folder().join(format!("pooler-{port}.ini"));
        let text = format!(
            "[databases]\nleasehold = host=127.0.0.1 port={} user=leasehold\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 5\nunix_socket_dir =\n",
            server.port()
        );
        fs::write(&config, text).expect("a file");
        let mut command = Command::new(PGBOUNCER);
        if geteuid().is_root() {
            // It refuses root, as PostgreSQL does. `setpriv` becomes the program, so that killing it kills the right one.
            command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", PGBOUNCER]);
        }
        command.arg("-q").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::start("pgbouncer", &mut command);
        wait_until("pgbouncer listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, _process: process }
    }

    /// Where it listens, on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}
