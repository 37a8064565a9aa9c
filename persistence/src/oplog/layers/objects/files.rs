//! A folder as blob storage. `object_store` writes a file beside the place (`NAME#1`), syncs it, links it into place, and syncs the folder. Here
//! the folders above are synced too, which another put may have made and not synced yet; and an object that was there before, of which nobody
//! may know whether its sync came to its end.

use super::Outcome;
use crate::oplog::Error;
use leasehold_model::ClusterName;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A file that tells the archive's folder from the empty place where its file system is mounted, or from one that somebody made anew.
const MARK: &str = "leasehold-archive";

/// The folder that the archive's URL names.
#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// # Errors
    /// The folder is not the one that was opened.
    pub async fn present(&self) -> Outcome<()> {
        let mark = self.0.join(MARK);
        let there = tokio::task::spawn_blocking(move || fs::symlink_metadata(mark)).await?;
        there.map(drop).map_err(|error| {
            let told = format!("its file {MARK} is not there");
            failed(if error.kind() == io::ErrorKind::NotFound { io::Error::new(error.kind(), told) } else { error })
        })
    }

    /// Makes an object and all folders between it and this one durable, whoever made them.
    pub async fn sync(&self, object: &Path) -> Outcome<()> {
        let (root, parts) = (self.0.clone(), object.parts().map(|part| part.as_ref().to_owned()).collect::<Vec<_>>());
        let synced = tokio::task::spawn_blocking(move || {
            let mut path = root;
            sync(&path)?;
            for part in parts {
                path.push(part);
                sync(&path)?;
            }
            Ok(())
        });
        synced.await?.map_err(failed)
    }
}

fn failed(source: io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "folder", source: source.into() }
}

fn sync(path: &std::path::Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes the folder, durably, if it is not there.
fn made(path: &std::path::Path) -> io::Result<PathBuf> {
    let mut there = path;
    while !there.exists() {
        let Some(above) = there.parent() else { break };
        there = above;
    }
    fs::create_dir_all(path)?;
    for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(there)) {
        sync(folder)?;
    }
    let path = path.canonicalize()?;
    File::options().create(true).append(true).open(path.join(MARK))?.sync_all()?;
    sync(&path)?;
    Ok(path)
}

/// The folder at `path`, made if it is not there.
pub(super) async fn open(
    path: &std::path::Path,
    cluster: &ClusterName,
    within: Duration,
) -> Result<(Arc<dyn ObjectStore>, Folder), Error> {
    let shown = format!("archive file://{} of {cluster}", path.display());
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        let folder = made(&path)?;
        let store = LocalFileSystem::new_with_prefix(&folder).map_err(io::Error::other)?;
        Ok::<_, io::Error>((store.with_fsync(true).with_automatic_cleanup(true), Folder(folder)))
    });
    let told = |why: &dyn fmt::Display| {
        format!("{shown}: the folder cannot be used: {why}; it must be one, or one that can be made")
    };
    let away = |why: &dyn fmt::Display| Error::Unavailable(told(why));
    let waits = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::ReadOnlyFilesystem];
    let opened = timeout(within, opened).await;
    let (store, folder) = opened
        .map_err(|_| away(&format_args!("the file system did not answer within {within:?}")))?
        .map_err(|error| away(&error))?
        .map_err(|error| if waits.contains(&error.kind()) { away(&error) } else { Error::Invalid(told(&error)) })?;
    Ok((Arc::new(store), folder))
}
