//! Certificates for servers of a test's own.

use crate::TlsFiles;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// An authority of its own, and one certificate that it signed, for a server on 127.0.0.1 and for a client. The files go with the value.
#[derive(Debug)]
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Makes them with `openssl`; `name` is the certificate's common name.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn make(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let usage = "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:127.0.0.1\n";
        fs::write(dir.path().join("ext"), usage).expect("a file");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for args in [
            format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca"),
            format!("req {key} -keyout key.pem -out request.pem -subj /CN={name}"),
            "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem"
                .into(),
        ] {
            openssl(dir.path(), &args);
        }
        Self { dir }
    }

    /// Where they are.
    #[must_use]
    pub fn files(&self) -> TlsFiles {
        let at = |name| self.dir.path().join(name);
        TlsFiles { ca: at("ca.pem"), cert: at("cert.pem"), key: at("key.pem") }
    }
}

fn openssl(dir: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split(' ')).current_dir(dir).output();
    let output = output.unwrap_or_else(|why| panic!("cannot run openssl: {why}"));
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}
