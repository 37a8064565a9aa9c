//! How etcd is reached.

use crate::cluster::Error;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use std::fmt;
use std::time::Duration;

/// etcd takes offence at a client that pings more often than every 5 s, or while nothing is in flight.
const PING_EVERY: Duration = Duration::from_secs(6);

/// How etcd is reached. Shown without its secrets.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT`, at least one. The first that answers is used until it fails.
    pub endpoints: Vec<String>,
    /// The user, if etcd wants one.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// Needed by, and only allowed with, `https` endpoints.
    pub tls: Option<EtcdTls>,
    /// Bounds every single call. 3 s by default; at most half of the leader's lease.
    pub request_timeout: Duration,
    /// How many of etcd's revisions before the last write a compaction leaves; 0 = never compact, for an etcd
    /// shared with others. 1000 by default.
    pub compaction_retention_revisions: u64,
}

/// Certificates, PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// Whoever signed the servers' certificates.
    pub ca: String,
    /// This client's certificate and key, where the server wants one.
    pub identity: Option<(String, String)>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            user: None,
            password: None,
            tls: None,
            request_timeout: Duration::from_secs(3),
            compaction_retention_revisions: 1000,
        }
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("tls", &self.tls)
            .field("request_timeout", &self.request_timeout)
            .field("compaction_retention_revisions", &self.compaction_retention_revisions)
            .finish()
    }
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").field("identity", &self.identity.as_ref().map(|_| "***")).finish_non_exhaustive()
    }
}

impl EtcdOptions {
    /// # Errors
    /// [`Error::Incompatible`] names what cannot be.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |why: String| Err(Error::Incompatible(format!("etcd: {why}")));
        if self.endpoints.is_empty() {
            return refuse("no endpoint is given".into());
        }
        for endpoint in &self.endpoints {
            match (endpoint.starts_with("https://"), endpoint.starts_with("http://"), self.tls.is_some()) {
                (true, _, true) | (_, true, false) => {}
                (true, _, false) => return refuse(format!("{endpoint} needs TLS, and no certificates are configured")),
                (_, true, true) => {
                    return refuse(format!("{endpoint} would be spoken to in the clear, though TLS is configured"));
                }
                (false, false, _) => return refuse(format!("{endpoint} is neither http:// nor https://")),
            }
        }
        if let Some(tls) = &self.tls {
            check_pem("store.ca_file", &tls.ca, "-----BEGIN CERTIFICATE-----")?;
            if let Some((cert, key)) = &tls.identity {
                check_pem("store.cert_file", cert, "-----BEGIN CERTIFICATE-----")?;
                check_pem("store.key_file", key, "PRIVATE KEY-----")?;
            }
        }
        if self.request_timeout.is_zero() {
            return refuse("request_timeout is zero".into());
        }
        match (&self.user, &self.password) {
            (Some(_), Some(_)) | (None, None) => Ok(()),
            (Some(user), None) => refuse(format!("user {user:?} has no password")),
            (None, Some(_)) => refuse("a password is given without a user".into()),
        }
    }

    /// Without a bound on calls: a campaign waits for as long as it takes. Calls are bounded one by one.
    pub(super) fn to_connect(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.request_timeout)
            .with_keep_alive(PING_EVERY, self.request_timeout)
            .with_keep_alive_while_idle(false)
            // A member without a leader says so at once instead of letting the call run out of time.
            .with_require_leader(true);
        if let (Some(user), Some(password)) = (&self.user, &self.password) {
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        if let Some(tls) = &self.tls {
            let mut config = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((cert, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(cert, key));
            }
            options = options.with_tls(config);
        }
        options
    }
}

/// A file that was mistaken for another is found here; what a certificate is worth, only etcd says.
fn check_pem(field: &str, text: &str, mark: &str) -> Result<(), Error> {
    if text.contains(mark) {
        return Ok(());
    }
    let what = if mark.contains("CERTIFICATE") { "certificate" } else { "private key" };
    Err(Error::Incompatible(format!("{field} holds no {what} in PEM form (a line with {mark})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoints: &[&str]) -> EtcdOptions {
        EtcdOptions { endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(), ..EtcdOptions::default() }
    }

    #[test]
    fn options_are_shown_without_their_secrets() {
        let tls = EtcdTls { ca: "CA-PEM".into(), identity: Some(("CERT-PEM".into(), "KEY-PEM".into())) };
        let (user, password) = (Some("root".into()), Some("hunter2".into()));
        let text = format!("{:?}", EtcdOptions { user, password, tls: Some(tls), ..options(&["https://a:1"]) });
        assert!(text.contains("root") && text.contains("https://a:1"), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("PEM"), "{text}");
    }

    #[test]
    fn options_that_cannot_be_are_refused_with_the_reason() {
        const CERT: &str = "-----BEGIN CERTIFICATE-----";
        let with = |ca: &str, identity: Option<(&str, &str)>| {
            let identity = identity.map(|(cert, key)| (cert.to_owned(), key.to_owned()));
            Some(EtcdTls { ca: ca.to_owned(), identity })
        };
        let tls = || with(CERT, None);
        let cases = [
            (options(&[]), "no endpoint"),
            (options(&["https://a:1"]), "no certificates"),
            (EtcdOptions { tls: tls(), ..options(&["https://a:1", "http://b:1"]) }, "http://b:1 would be spoken to"),
            (
                EtcdOptions { tls: with("root:x:0:0", None), ..options(&["https://a:1"]) },
                "store.ca_file holds no certificate",
            ),
            (EtcdOptions { tls: with(CERT, Some(("", ""))), ..options(&["https://a:1"]) }, "store.cert_file"),
            (
                EtcdOptions { tls: with(CERT, Some((CERT, CERT))), ..options(&["https://a:1"]) },
                "store.key_file holds no private key",
            ),
            (options(&["a:1"]), "neither http:// nor https://"),
            (EtcdOptions { user: Some("u".into()), ..options(&["http://a:1"]) }, "has no password"),
            (EtcdOptions { password: Some("p".into()), ..options(&["http://a:1"]) }, "without a user"),
            (EtcdOptions { request_timeout: Duration::ZERO, ..options(&["http://a:1"]) }, "request_timeout"),
        ];
        for (options, why) in cases {
            let refusal = options.check().unwrap_err().to_string();
            assert!(refusal.contains(why), "{options:?}: {refusal}");
        }
        assert_eq!(options(&["http://a:1", "http://b:1"]).check(), Ok(()));
        assert_eq!(EtcdOptions { tls: tls(), ..options(&["https://a:1"]) }.check(), Ok(()));
    }
}
