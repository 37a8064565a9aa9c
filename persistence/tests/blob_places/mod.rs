//! Real places for objects: a folder, and S3-compatible storage.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use async_trait::async_trait;
use leasehold_harness::S3;
use leasehold_model::ClusterName;
use leasehold_model::archive::{ArchiveUrl, Endpoint};
use leasehold_persistence::conformance::blobs::BlobsFixture;
use leasehold_persistence::oplog::layers::blobs::Blobs;
use leasehold_persistence::oplog::layers::objects::{Credentials, ObjectBlobs, Settings};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// How long a call of these tests may take.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A folder of its own.
pub struct Folder(pub TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("archive")
    }

    pub async fn blobs(&self, cluster: &str) -> ObjectBlobs {
        let settings = Settings { request_timeout: PATIENCE, ..Settings::default() };
        let cluster = ClusterName::new(cluster).unwrap();
        ObjectBlobs::open(&ArchiveUrl::Files(self.path()), &cluster, &settings).await.unwrap()
    }
}

#[async_trait]
impl BlobsFixture for Folder {
    async fn open(&self, cluster: &str) -> Arc<dyn Blobs> {
        Arc::new(self.blobs(cluster).await)
    }

    /// As when its file system is not mounted: an empty folder is in its place.
    async fn set_away(&self, away: bool) {
        let aside = self.0.path().join("aside");
        if away {
            fs::rename(self.path(), aside).unwrap();
            fs::create_dir(self.path()).unwrap();
        } else {
            fs::remove_dir(self.path()).expect("nothing was put into the wrong folder");
            fs::rename(aside, self.path()).unwrap();
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

/// A server of its own.
pub struct Bucket(pub Mutex<S3>);

impl Bucket {
    pub fn new() -> Self {
        Self(Mutex::new(S3::start()))
    }

    pub fn settings(endpoint: &str) -> Settings {
        let credentials = Credentials::Keys { id: S3::KEY.into(), secret: S3::SECRET.into(), token: None };
        let endpoint = Some(Endpoint::parse(endpoint).unwrap());
        Settings { endpoint, credentials, request_timeout: PATIENCE, ..Settings::default() }
    }

    pub fn url() -> ArchiveUrl {
        ArchiveUrl::parse(&format!("s3://{}/pre/fix", S3::BUCKET)).unwrap()
    }

    pub async fn blobs(&self, cluster: &str) -> ObjectBlobs {
        let settings = Self::settings(&self.0.lock().unwrap().endpoint());
        ObjectBlobs::open(&Self::url(), &ClusterName::new(cluster).unwrap(), &settings).await.unwrap()
    }
}

#[async_trait]
impl BlobsFixture for Bucket {
    async fn open(&self, cluster: &str) -> Arc<dyn Blobs> {
        Arc::new(self.blobs(cluster).await)
    }

    async fn set_away(&self, away: bool) {
        let mut server = self.0.lock().unwrap();
        if away {
            server.stop();
        } else {
            server.start_again();
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}
