//! S3-compatible storage.

use super::credentials::FromFile;
use super::http::Connector;
use super::told::Kind;
use super::{Credentials, MAX_RETRIES, Settings};
use leasehold_model::archive::Endpoint;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// What the environment may say of who calls.
const WHO: &[(&str, Key)] = &[
    ("AWS_ACCESS_KEY_ID", Key::AccessKeyId),
    ("AWS_SECRET_ACCESS_KEY", Key::SecretAccessKey),
    ("AWS_SESSION_TOKEN", Key::Token),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", Key::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", Key::RoleArn),
    ("AWS_ROLE_SESSION_NAME", Key::RoleSessionName),
    ("AWS_ENDPOINT_URL_STS", Key::StsEndpoint),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", Key::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Key::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Key::ContainerAuthorizationTokenFile),
];

/// Where the environment may name a region.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// # Errors
/// What about the settings makes no sense, and what to do.
pub(super) fn open(bucket: &str, settings: &Settings) -> Result<(Arc<dyn ObjectStore>, Kind), String> {
    open_in(bucket, settings, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// The same, in an environment that is given.
fn open_in(
    bucket: &str,
    settings: &Settings,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(Arc<dyn ObjectStore>, Kind), String> {
    let region = region(settings, environment)?;
    let endpoint = match &settings.endpoint {
        Some(endpoint) => endpoint.clone(),
        None => Endpoint::parse(&format!("https://s3.{region}.amazonaws.com")).map_err(|error| error.to_string())?,
    };
    if !endpoint.is_encrypted() && !endpoint.is_local() && !settings.allow_http {
        return Err(format!(
            "{endpoint} is on another machine and not encrypted, so that whoever reads along has the entries: use https://, or allow http"
        ));
    }
    let attempt = settings.request_timeout / 2;
    let ca_file = settings.ca_file.as_deref();
    let connector = Connector::new(endpoint.host().to_owned(), endpoint.is_encrypted(), ca_file, attempt)?;
    let builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(region)
        .with_endpoint(endpoint.as_str())
        // Bulk deletion is not known everywhere.
        .with_disable_bulk_delete(true)
        .with_retry(retry(settings.request_timeout))
        .with_http_connector(connector);
    let (builder, from) = with_credentials(builder, settings, environment)?;
    let store = builder.build().map_err(|error| format!("the settings make no sense: {error}"))?;
    let kind = Kind::S3 { bucket: bucket.to_owned(), endpoint: endpoint.to_string(), credentials: from };
    Ok((Arc::new(store), kind))
}

fn retry(within: Duration) -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(50), max_backoff: Duration::from_secs(1), base: 2.0 };
    RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: within }
}

fn region(settings: &Settings, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let named = settings.region.clone().or_else(|| REGIONS.iter().find_map(|name| environment(name)));
    match named {
        Some(region) if region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => Ok(region),
        Some(region) => Err(format!("{region:?} is no region: letters, digits and '-' make one")),
        // Storage that is not Amazon's seldom has more than one.
        None if settings.endpoint.is_some() => Ok("us-east-1".to_owned()),
        None => {
            Err("it has no region: set the archive's region, or AWS_REGION; or an endpoint, if it is not Amazon's"
                .into())
        }
    }
}

/// The builder with them, and where they are from.
fn with_credentials(
    builder: AmazonS3Builder,
    settings: &Settings,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(AmazonS3Builder, String), String> {
    match &settings.credentials {
        Credentials::Keys { id, secret, token } => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            let builder = match token {
                Some(token) => builder.with_token(token),
                None => builder,
            };
            Ok((builder, format!("the settings: access key {id}")))
        }
        Credentials::File(path) => {
            let file = FromFile::new(path.clone())?;
            Ok((builder.with_credentials(Arc::new(file)), path.display().to_string()))
        }
        Credentials::Environment => {
            let found: Vec<_> = WHO.iter().filter_map(|(name, key)| Some((name, key, environment(name)?))).collect();
            // Elsewhere there is nobody to ask for the machine's role.
            if found.is_empty() && settings.endpoint.is_some() {
                return Err("it has no credentials: name a file with them, or set AWS_ACCESS_KEY_ID and \
                     AWS_SECRET_ACCESS_KEY"
                    .into());
            }
            let from = match found.first() {
                Some((name, ..)) => format!("the environment: {name}"),
                None => "the machine's role, as the environment names none".to_owned(),
            };
            let builder = found.into_iter().fold(builder, |builder, (_, key, value)| builder.with_config(*key, value));
            Ok((builder, from))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(settings: &Settings, environment: &[(&str, &str)]) -> Result<(String, String), String> {
        let lookup = |name: &str| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let (_, kind) = open_in("bucket", settings, &lookup)?;
        match kind {
            Kind::S3 { endpoint, credentials, .. } => Ok((endpoint, credentials)),
            #[cfg(feature = "files")]
            Kind::Files => panic!("no folder was opened"),
        }
    }

    fn at(endpoint: &str) -> Settings {
        Settings { endpoint: Some(Endpoint::parse(endpoint).unwrap()), ..Settings::default() }
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret1")];

    #[test]
    fn credentials_and_region_come_from_the_settings_or_the_environment() {
        let environment = [KEYS.as_slice(), &[("AWS_DEFAULT_REGION", "eu-central-1")]].concat();
        let amazon = opened(&Settings::default(), &environment).unwrap();
        assert_eq!(amazon.0, "https://s3.eu-central-1.amazonaws.com");
        assert_eq!(amazon.1, "the environment: AWS_ACCESS_KEY_ID");
        let role = opened(&Settings { region: Some("us-west-2".into()), ..Settings::default() }, &[]).unwrap();
        assert_eq!(role.0, "https://s3.us-west-2.amazonaws.com");
        assert!(role.1.contains("machine's role"), "{role:?}");
        let keys = Credentials::Keys { id: "given".into(), secret: "secret1".into(), token: Some("secret1".into()) };
        let settings = Settings { credentials: keys, ..at("http://127.0.0.1:1") };
        assert_eq!(opened(&settings, &KEYS).unwrap().1, "the settings: access key given");
        assert!(!format!("{settings:?}").contains("secret1"), "{settings:?}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_what_to_do() {
        let absent = Credentials::File("/absent/keys".into());
        let region = Some("eu west".to_owned());
        for (settings, environment, part) in [
            (at("http://10.0.0.1:9000"), KEYS.as_slice(), "use https://, or allow http"),
            (at("https://10.0.0.1:9000"), &[], "no credentials: name a file"),
            (at("https://10.0.0.1:9000"), &KEYS[1..], "make no sense"),
            (Settings::default(), &KEYS, "no region"),
            (Settings { region, ..Settings::default() }, &KEYS, "\"eu west\" is no region"),
            (Settings { credentials: absent, ..at("http://[::1]:1") }, &KEYS, "/absent/keys"),
            (Settings { ca_file: Some("/absent/ca".into()), ..at("https://a") }, &KEYS, "/absent/ca"),
        ] {
            let told = opened(&settings, environment).unwrap_err();
            assert!(told.contains(part) && !told.contains("secret1"), "{part}: {told}");
        }
        let allowed = Settings { allow_http: true, ..at("http://10.0.0.1:9000") };
        assert_eq!(opened(&allowed, &KEYS).unwrap().0, "http://10.0.0.1:9000");
    }
}
