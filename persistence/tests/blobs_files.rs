//! What only a folder can suffer: a full, read-only or absent one, files that are none of the archive's, a crash in the middle of a put.

#![cfg(all(feature = "files", feature = "s3"))]
#![allow(missing_docs, reason = "a test binary has no public items")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod blob_places;

use blob_places::Folder;
use futures::StreamExt;
use leasehold_model::ClusterName;
use leasehold_model::archive::ArchiveUrl;
use leasehold_persistence::oplog::Error;
use leasehold_persistence::oplog::layers::blobs::Blobs;
use leasehold_persistence::oplog::layers::objects::{ObjectBlobs, Settings};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

async fn opened(path: &Path) -> Result<ObjectBlobs, Error> {
    let cluster = ClusterName::new("c").unwrap();
    ObjectBlobs::open(&ArchiveUrl::Files(path.to_owned()), &cluster, &Settings::default()).await
}

async fn list(blobs: &ObjectBlobs) -> Vec<String> {
    blobs.list("").collect::<Vec<_>>().await.into_iter().collect::<Result<_, _>>().unwrap()
}

fn unavailable<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Unavailable(told)) => told,
        outcome => panic!("{outcome:?}"),
    }
}

#[tokio::test]
async fn a_folder_is_made_if_it_is_not_there_and_refused_if_it_is_none() {
    let place = Folder::new();
    let deep = place.0.path().join("a/b/c");
    assert_eq!(opened(&deep).await.unwrap().check().await, Ok(()));
    let file = place.0.path().join("file");
    fs::write(&file, "x").unwrap();
    for path in [file.clone(), file.join("below")] {
        let Err(Error::Invalid(told)) = opened(&path).await else { panic!("{path:?}") };
        assert!(told.contains(&format!("file://{}", path.display())) && told.contains("can be made"), "{told}");
    }
}

/// A crash in the middle of a put leaves a part of a file, under a name that no object has.
#[tokio::test]
async fn what_a_crash_left_is_no_object_and_hinders_nothing() {
    let place = Folder::new();
    let blobs = place.blobs("c").await;
    blobs.put("7/a/before", b"x".to_vec()).await.unwrap();
    fs::write(place.path().join("c/7/a/object#1"), "par").unwrap();
    assert_eq!(list(&blobs).await, ["7/a/before"]);
    blobs.put("7/a/object", b"whole".to_vec()).await.unwrap();
    assert_eq!(blobs.get("7/a/object").await, Ok(Some(b"whole".to_vec())));
    assert_eq!(list(&blobs).await.len(), 2);
}

/// `object_store` ends its list there: that is told, and not taken for the list's end.
#[tokio::test]
async fn a_foreign_file_whose_name_cannot_be_listed_is_told_of() {
    let place = Folder::new();
    let blobs = place.blobs("c").await;
    blobs.put("7/a/object", b"x".to_vec()).await.unwrap();
    fs::write(place.path().join("c/7/line\nbreak"), "foreign").unwrap();
    let listed: Result<Vec<_>, _> = blobs.list("").collect::<Vec<_>>().await.into_iter().collect();
    let told = unavailable(listed);
    assert!(told.contains("break") && told.contains("move it away") && !told.contains('\n'), "{told}");
}

/// Folders of agents that are gone do not pile up, and the archive's own stays.
#[tokio::test]
async fn a_folder_that_became_empty_is_removed() {
    let place = Folder::new();
    let blobs = place.blobs("c").await;
    blobs.put("7/a/object", b"x".to_vec()).await.unwrap();
    blobs.delete("7/a/object").await.unwrap();
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["leasehold-archive"]);
    assert_eq!(blobs.check().await, Ok(()));
}

/// A folder that is gone is not an empty archive, and nothing is put beside it.
#[tokio::test]
async fn a_folder_that_is_gone_is_unavailable_and_not_made_again() {
    let place = Folder::new();
    let blobs = place.blobs("c").await;
    blobs.put("7/a/object", b"x".to_vec()).await.unwrap();
    fs::remove_dir_all(place.path()).unwrap();
    for told in [
        unavailable(blobs.get("7/a/object").await),
        unavailable(blobs.put("7/a/other", b"x".to_vec()).await),
        unavailable(blobs.delete("7/a/object").await),
    ] {
        assert!(told.contains("leasehold-archive is not there") && told.contains("mounted"), "{told}");
    }
    assert!(!place.path().exists());
}

const PART: &str = "BLOBS_CHILD_FOLDER";

/// Runs the child's part with `mount` done before, in file systems of its own. Needs root or user namespaces.
fn child(mount: &str, part: &str, folder: &Path) {
    let mut shell = Command::new("unshare");
    shell.args(["--map-root-user", "--mount", "/bin/sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    child_by(shell, part, folder);
}

fn child_by(mut shell: Command, part: &str, folder: &Path) {
    let output = shell
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", part, "--nocapture"])
        .env(PART, folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("the child has done its part"), "{text}");
}

/// The child's folder, in the child.
fn of_child() -> Option<PathBuf> {
    std::env::var_os(PART).map(PathBuf::from)
}

/// Case 26: a folder that is really full, and has room again.
#[tokio::test]
async fn a_full_folder_refuses_what_does_not_fit_and_takes_it_once_there_is_room() {
    let Some(folder) = of_child() else {
        let place = Folder::new();
        let folder = place.0.path().join("small");
        fs::create_dir(&folder).unwrap();
        let mount = format!("mount -t tmpfs -o size=512k none '{}'", folder.display());
        let name = "a_full_folder_refuses_what_does_not_fit_and_takes_it_once_there_is_room";
        return child(&mount, name, &folder);
    };
    let blobs = opened(&folder).await.unwrap();
    blobs.put("7/a/small", vec![1; 1000]).await.unwrap();
    fs::write(folder.join("filler"), vec![0; 300 << 10]).unwrap();
    for _ in 0..3 {
        let told = unavailable(blobs.put("7/a/large", vec![2; 300 << 10]).await);
        assert!(told.contains("No space left on device") && told.contains("make room"), "{told}");
        assert!(told.contains("7/a/large"), "{told}");
    }
    assert_eq!(blobs.get("7/a/large").await, Ok(None), "nothing of it is there");
    assert_eq!(blobs.get("7/a/small").await, Ok(Some(vec![1; 1000])));
    blobs.put("7/a/other", vec![3; 1000]).await.unwrap();
    fs::remove_file(folder.join("filler")).unwrap();
    blobs.put("7/a/large", vec![2; 300 << 10]).await.unwrap();
    assert_eq!(blobs.get("7/a/large").await, Ok(Some(vec![2; 300 << 10])));
    println!("the child has done its part");
}

#[tokio::test]
async fn a_read_only_folder_is_read_and_what_would_change_it_is_refused_with_what_to_do() {
    let Some(folder) = of_child() else {
        let place = Folder::new();
        let folder = place.0.path().join("small");
        fs::create_dir(&folder).unwrap();
        let mount = format!("mount -t tmpfs -o size=512k none '{}'", folder.display());
        let name = "a_read_only_folder_is_read_and_what_would_change_it_is_refused_with_what_to_do";
        return child(&mount, name, &folder);
    };
    let blobs = opened(&folder).await.unwrap();
    blobs.put("7/a/object", b"x".to_vec()).await.unwrap();
    let mounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&folder).status().unwrap();
    assert!(mounted.success());
    assert_eq!(blobs.get("7/a/object").await, Ok(Some(b"x".to_vec())));
    for told in
        [unavailable(blobs.put("7/a/other", b"x".to_vec()).await), unavailable(blobs.delete("7/a/object").await)]
    {
        assert!(told.contains("Read-only file system") && told.contains("let the executor's user"), "{told}");
    }
    assert!(matches!(blobs.check().await, Err(Error::Invalid(_))));
    println!("the child has done its part");
}

/// A library before the system's whose `fsync` fails for what ends as the file `failing` says.
const FAILING_SYNCS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd) {
    char link[64], name[4096], end[256] = "";
    FILE *failing = fopen(getenv("BLOBS_CHILD_FAILING"), "r");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (failing) {
        if (!fgets(end, sizeof end, failing)) end[0] = 0;
        fclose(failing);
    }
    if (length > 0 && end[0]) {
        name[length] = 0;
        size_t ends = strlen(end);
        if (length >= ends && !strcmp(name + length - ends, end)) { errno = EIO; return -1; }
    }
    return syscall(SYS_fsync, fd);
}
"#;

/// A list may name an object once its put was answered: nothing that it stands on may be lost with the power then.
#[tokio::test]
async fn a_put_is_answered_once_the_file_and_every_folder_above_it_are_synced() {
    const FAILING: &str = "BLOBS_CHILD_FAILING";
    let Some(folder) = of_child() else {
        let place = Folder::new();
        let at = |name| place.0.path().join(name);
        fs::write(at("syncs.c"), FAILING_SYNCS).unwrap();
        let mut cc = Command::new("cc");
        assert!(cc.args(["-shared", "-fPIC", "-o"]).args([at("syncs.so"), at("syncs.c")]).status().unwrap().success());
        let mut shell = Command::new("/usr/bin/env");
        shell.env(FAILING, at("failing")).arg(format!("LD_PRELOAD={}", at("syncs.so").display()));
        let name = "a_put_is_answered_once_the_file_and_every_folder_above_it_are_synced";
        return child_by(shell, name, &place.path());
    };
    let failing = PathBuf::from(std::env::var_os(FAILING).unwrap());
    let blobs = opened(&folder).await.unwrap();
    for (number, end) in ["#1", "/c/7/a", "/c/7", "/c", "/archive"].into_iter().enumerate() {
        fs::write(&failing, end).unwrap();
        // The folders are there, or made by this put.
        for path in [format!("7/a/{number}"), "7/a/again".to_owned(), "7/a/again".to_owned()] {
            let told = unavailable(blobs.put(&path, b"x".to_vec()).await);
            assert!(told.contains("Input/output error"), "{end}: {told}");
        }
        fs::remove_file(&failing).unwrap();
        assert_eq!(blobs.put("7/a/again", b"x".to_vec()).await, Ok(()), "{end}");
        assert_eq!(blobs.delete("7/a/again").await, Ok(()));
    }
    println!("the child has done its part");
}
