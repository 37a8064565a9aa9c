//! The archive of an executor's oplogs, as it is configured.

use crate::cli::{Exit, Failure};
use leasehold_actors::executor::agent_event::ArchivePolicy;
use leasehold_actors::executor::archiver::Archiver;
use leasehold_config::{Archive, ArchiveTo, BlobStorage, ExecutorConfig};
use leasehold_model::ClusterName;
use leasehold_persistence::oplog::layers::objects::{Credentials, ObjectBlobs, Settings};
use leasehold_persistence::oplog::layers::{ChunkStore, Layered};
use leasehold_persistence::oplog::{Error, OplogStore};
use std::sync::Arc;

/// What agents read and write, and what moves their entries if anything does.
pub(crate) struct Layers {
    pub store: Arc<dyn OplogStore>,
    pub archiver: Option<Archiver>,
}

/// `store` with the archive that `config` names before it. Whatever was moved is read, wherever entries go now.
///
/// # Errors
/// 78 when the archive can never be used as it is configured. One that is away is waited for while the executor serves.
pub(crate) async fn layered(config: &ExecutorConfig, store: Arc<dyn ChunkStore>) -> Result<Layers, Failure> {
    let archive = &config.oplog.archive;
    let blobs = match &archive.blobs {
        Some(storage) => Some((open_blobs(&config.cluster, storage).await?, storage)),
        None => None,
    };
    let layered = match (archive.to, blobs) {
        (ArchiveTo::Blobs, Some((blobs, storage))) => {
            check(&blobs, storage).await?;
            Layered::in_blobs(store, Arc::new(blobs))
        }
        // Blobs without a place are refused when the configuration is read.
        (ArchiveTo::None | ArchiveTo::List | ArchiveTo::Blobs, blobs) => match blobs {
            Some((blobs, _)) => Layered::in_list(store).reading(Arc::new(blobs)),
            None => Layered::in_list(store),
        },
    };
    let layered = Arc::new(layered);
    let archiver = (archive.to != ArchiveTo::None).then(|| Archiver::new(Arc::clone(&layered) as _));
    Ok(Layers { store: layered, archiver })
}

/// When entries move, if they do.
pub(crate) fn policy(config: &ExecutorConfig) -> Option<ArchivePolicy> {
    let Archive { to, after_entries, after_age, .. } = config.oplog.archive;
    (to != ArchiveTo::None).then_some(ArchivePolicy { after_entries, after_age })
}

/// The blob storage of `cluster`. S3 is not called yet.
///
/// # Errors
/// 78 when it can never be used as it is configured, 75 when its folder may be usable later.
pub(crate) async fn open_blobs(cluster: &ClusterName, storage: &BlobStorage) -> Result<ObjectBlobs, Failure> {
    let credentials = storage.credentials_file.clone().map_or(Credentials::Environment, Credentials::File);
    let settings = Settings {
        endpoint: storage.endpoint.clone(),
        region: storage.region.clone(),
        credentials,
        ca_file: storage.ca_file.clone(),
        allow_http: storage.allow_http,
        request_timeout: storage.request_timeout,
    };
    ObjectBlobs::open(&storage.url, cluster, &settings).await.map_err(|error| refused(storage, &error))
}

fn refused(storage: &BlobStorage, error: &Error) -> Failure {
    let exit = match error {
        Error::Invalid(_) => Exit::BadConfiguration,
        Error::Corrupt { .. } => Exit::Failed,
        Error::Fenced { .. } | Error::IndexConflict { .. } | Error::Unavailable(_) | Error::Unknown(_) => {
            Exit::TryAgain
        }
    };
    Failure::new(exit, format!("oplog.archive.url = {}: {error}", storage.url))
}

/// Tries it out, so that a wrong key or bucket is told at the start and not with the first move.
async fn check(blobs: &ObjectBlobs, storage: &BlobStorage) -> Result<(), Failure> {
    match blobs.check().await {
        Ok(()) => {
            tracing::info!(url = %storage.url, "entries are archived there");
            Ok(())
        }
        Err(error @ (Error::Invalid(_) | Error::Corrupt { .. })) => Err(refused(storage, &error)),
        Err(
            error @ (Error::Unavailable(_) | Error::Unknown(_) | Error::Fenced { .. } | Error::IndexConflict { .. }),
        ) => {
            let url = &storage.url;
            tracing::warn!(%url, %error, "the archive cannot be used now: entries stay where they are until it can be");
            Ok(())
        }
    }
}
