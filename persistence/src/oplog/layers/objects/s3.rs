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
        None => Err("it has no region: set the archive's region, or AWS_REGION; or an endpoint, if it is not Amazon's".into()),
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
