//! `[oplog.archive]`: where an executor moves older entries, and when.

use crate::keys;
use crate::kind::{self, StorageUrl};
use crate::reader::Reader;
use leasehold_model::archive::{ArchiveUrl, Endpoint};
use std::path::PathBuf;
use std::time::Duration;

/// `[oplog.archive]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Where new chunks go.
    pub to: ArchiveTo,
    /// The blob storage, if any: always there with [`ArchiveTo::Blobs`]. Otherwise what was archived there before is read, and nothing written.
    pub blobs: Option<BlobStorage>,
    /// How many entries of an agent stay where they were written.
    pub after_entries: u32,
    /// After how long fewer move too.
    pub after_age: Duration,
}

/// `oplog.archive.to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveTo {
    /// Nothing moves.
    None,
    /// Into the list of chunks, in the oplogs' own store.
    List,
    /// Into blob storage.
    Blobs,
}

/// Blob storage and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobStorage {
    /// Where it is.
    pub url: ArchiveUrl,
    /// Of S3: where it is served; `None`: at Amazon's.
    pub endpoint: Option<Endpoint>,
    /// Of S3: its region; `None`: as the environment says.
    pub region: Option<String>,
    /// Of S3: the file with the access key; `None`: as the environment says.
    pub credentials_file: Option<PathBuf>,
    /// Of S3: certificates to trust beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Of S3: whether an endpoint elsewhere may be spoken to without TLS.
    pub allow_http: bool,
    /// How long a call may take.
    pub request_timeout: Duration,
}

impl Archive {
    /// `oplogs`: where the oplogs themselves are.
    pub(crate) fn read(reader: &mut Reader, oplogs: &StorageUrl) -> Self {
        let to = reader.value(&keys::ARCHIVE_TO, |text| match text {
            "none" => Some(ArchiveTo::None),
            "list" => Some(ArchiveTo::List),
            "blobs" => Some(ArchiveTo::Blobs),
            _ => None,
        });
        let archive = Self {
            to,
            after_entries: reader.whole(&keys::ARCHIVE_AFTER_ENTRIES),
            after_age: reader.duration(&keys::ARCHIVE_AFTER_AGE),
            blobs: read_blobs(reader),
        };
        archive.check(reader, oplogs);
        archive
    }

    fn check(&self, reader: &mut Reader, oplogs: &StorageUrl) {
        let blobs = self.to == ArchiveTo::Blobs;
        if blobs && self.blobs.is_none() && !reader.is_set(&keys::ARCHIVE_URL) {
            let what =
                "not set, and oplog.archive.to is blobs: say where they are, file:///FOLDER or s3://BUCKET/PREFIX";
            reader.contradiction(&keys::ARCHIVE_URL, what.to_owned());
        }
        if *oplogs == StorageUrl::Memory && blobs {
            let what = "blobs, and oplog.url is memory: the list of what is in blob storage would be forgotten with the process; set \
                 oplog.archive.to to list or none, or keep oplogs in sqlite:, postgres: or redis:";
            reader.contradiction(&keys::ARCHIVE_TO, what.to_owned());
        }
        for key in [&keys::ARCHIVE_AFTER_ENTRIES, &keys::ARCHIVE_AFTER_AGE] {
            if self.to == ArchiveTo::None && reader.is_set(key) {
                reader.warnings.push(format!("{} has no effect: oplog.archive.to is none", key.path));
            }
        }
        let Some(storage) = &self.blobs else { return };
        if !blobs {
            let what = "oplog.archive.url is only read, for what was archived there: oplog.archive.to is not blobs";
            reader.warnings.push(what.to_owned());
        }
        storage.check(reader, oplogs);
    }
}

fn read_blobs(reader: &mut Reader) -> Option<BlobStorage> {
    let url = reader.optional(&keys::ARCHIVE_URL, |text| ArchiveUrl::parse(text).ok());
    let endpoint = reader.optional(&keys::ARCHIVE_ENDPOINT, |text| Endpoint::parse(text).ok());
    let region = reader.optional(&keys::ARCHIVE_REGION, kind::region);
    let credentials_file = reader.optional(&keys::ARCHIVE_CREDENTIALS_FILE, kind::file);
    let ca_file = reader.optional(&keys::ARCHIVE_CA_FILE, kind::file);
    let allow_http = reader.value(&keys::ARCHIVE_ALLOW_HTTP, kind::yes);
    let request_timeout = reader.duration(&keys::ARCHIVE_REQUEST_TIMEOUT);
    for (key, otherwise) in [
        (&keys::ARCHIVE_URL, "unset: there is none"),
        (&keys::ARCHIVE_ENDPOINT, "unset: Amazon's"),
        (&keys::ARCHIVE_REGION, "unset: as the environment says"),
        (&keys::ARCHIVE_CREDENTIALS_FILE, "unset: as the environment says"),
        (&keys::ARCHIVE_CA_FILE, "unset: the system's alone"),
    ] {
        reader.show_unset(key, "", otherwise);
    }
    Some(BlobStorage { url: url?, endpoint, region, credentials_file, ca_file, allow_http, request_timeout })
}

impl BlobStorage {
    fn check(&self, reader: &mut Reader, oplogs: &StorageUrl) {
        match &self.url {
            ArchiveUrl::Files(_) => {
                let of_s3 = [
                    &keys::ARCHIVE_ENDPOINT,
                    &keys::ARCHIVE_REGION,
                    &keys::ARCHIVE_CREDENTIALS_FILE,
                    &keys::ARCHIVE_CA_FILE,
                    &keys::ARCHIVE_ALLOW_HTTP,
                ];
                for key in of_s3.into_iter().filter(|key| reader.is_set(key)).collect::<Vec<_>>() {
                    reader.warnings.push(format!("{} has no effect: oplog.archive.url is a folder", key.path));
                }
                if matches!(oplogs, StorageUrl::Postgres(_) | StorageUrl::Redis(_)) {
                    let what = "oplog.archive.url is a folder, and executors on other machines can have these oplogs: the folder must be \
                         the same one on each of them, or an agent that moves cannot be recovered there";
                    reader.warnings.push(what.to_owned());
                }
            }
            ArchiveUrl::S3 { .. } => {
                let Some(endpoint) = &self.endpoint else { return };
                if endpoint.is_encrypted() || endpoint.is_local() {
                    return;
                }
                if self.allow_http {
                    let what = format!("oplog.archive.endpoint: entries travel to {endpoint} unencrypted");
                    reader.warnings.push(what);
                } else {
                    let what = format!(
                        "{endpoint} is on another machine and not encrypted, so that whoever reads along has the entries; use https://, or \
                         set oplog.archive.allow_http to yes"
                    );
                    reader.contradiction(&keys::ARCHIVE_ENDPOINT, what);
                }
            }
        }
    }
}
