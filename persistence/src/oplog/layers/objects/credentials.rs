//! Where credentials come from. None of them is ever shown.

use super::told::NoCredentials;
use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long keys of a file are used until it is read again.
const FRESH: Duration = Duration::from_secs(10);

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Keys in a file.
#[derive(Debug)]
pub(super) struct FromFile {
    path: PathBuf,
    read: Mutex<Option<(Instant, Arc<AwsCredential>)>>,
}

impl FromFile {
    /// Reads them, so that a file that is of no use is told of at once.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(path: PathBuf) -> Result<Self, String> {
        load(&path)?;
        Ok(Self { path, read: Mutex::new(None) })
    }
}

/// # Errors
/// What is wrong with the file, without what stands in it.
fn load(path: &Path) -> Result<AwsCredential, String> {
    let refused = |why: String| format!("the credentials in {} cannot be used: {why}", path.display());
    let mut text = String::new();
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(|error| refused(error.to_string()))?;
    keys(&text).map_err(refused)
}

/// The keys in `text`, in the section `default` or before any.
///
/// # Errors
/// Which is missing.
fn keys(text: &str) -> Result<AwsCredential, String> {
    let (mut id, mut secret, mut token, mut ours) = (None, None, None, true);
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            ours = section.trim_end_matches(']').trim() == "default";
        }
        let Some((name, value)) = line.split_once('=').filter(|_| ours && !line.starts_with(['#', ';', '['])) else {
            continue;
        };
        let value = value.trim();
        // What would make no header: it is not sent, and an error would show it.
        if value.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(format!("the value of {} has spaces in it", name.trim().to_lowercase()));
        }
        let value = Some(value.to_owned()).filter(|value| !value.is_empty());
        match name.trim().to_lowercase().as_str() {
            "aws_access_key_id" => id = value,
            "aws_secret_access_key" => secret = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    let missing = |name: &str| format!("there is no {name} in its section [default]");
    let key_id = id.ok_or_else(|| missing("aws_access_key_id"))?;
    let secret_key = secret.ok_or_else(|| missing("aws_secret_access_key"))?;
    Ok(AwsCredential { key_id, secret_key, token })
}

#[async_trait]
impl CredentialProvider for FromFile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut read = self.read.lock().await;
        if let Some((at, keys)) = read.as_ref()
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(keys));
        }
        let path = self.path.clone();
        let keys = tokio::task::spawn_blocking(move || load(&path)).await?;
        let keys =
            keys.map_err(|why| object_store::Error::Generic { store: "S3", source: NoCredentials(why).into() })?;
        let keys = Arc::new(keys);
        *read = Some((Instant::now(), Arc::clone(&keys)));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_aws_tools_write_them() {
        let found = |text: &str| keys(text).map(|keys| (keys.key_id, keys.secret_key, keys.token));
        let some =
            |id: &str, secret: &str, token: Option<&str>| Ok((id.into(), secret.into(), token.map(str::to_owned)));
        assert_eq!(found("aws_access_key_id=a\naws_secret_access_key=b=/+\n"), some("a", "b=/+", None));
        let sections = "# x = y\n[other]\naws_access_key_id = o\n[default]\n; aws_access_key_id = no\nAWS_ACCESS_KEY_ID = d\n\
             aws_secret_access_key = e\naws_session_token = f\nregion = x\n[last]\naws_secret_access_key = l\n";
        assert_eq!(found(sections), some("d", "e", Some("f")));
    }

    #[test]
    fn keys_that_are_of_no_use_are_refused_without_being_shown() {
        for (text, part) in [
            ("", "no aws_access_key_id"),
            ("aws_access_key_id = secret1\naws_secret_access_key =", "no aws_secret_access_key"),
            ("[other]\naws_access_key_id = secret1\naws_secret_access_key = secret1", "no aws_access_key_id"),
            ("aws_access_key_id = a\naws_secret_access_key = secret1 secret1", "aws_secret_access_key has spaces"),
        ] {
            let told = keys(text).unwrap_err();
            assert!(told.contains(part) && !told.contains("secret1"), "{told}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_changed_in_their_file_are_used_soon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let write = |id: &str| {
            std::fs::write(&path, format!("aws_access_key_id = {id}\naws_secret_access_key = s")).unwrap();
        };
        write("old");
        let file = FromFile::new(path.clone()).unwrap();
        let now = async || file.get_credential().await.map(|keys| keys.key_id.clone());
        assert_eq!(now().await.unwrap(), "old");
        write("new");
        tokio::time::advance(FRESH).await;
        assert_eq!(now().await.unwrap(), "new");
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(FRESH).await;
        assert!(now().await.unwrap_err().to_string().contains(&path.display().to_string()));
    }
}
