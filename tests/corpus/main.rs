//! Plays the corpus of `fuzz/` through its targets: what once was found stays found. `make fuzz` goes on from there.

#![allow(missing_docs, reason = "a test binary has no public items")]

use std::path::Path;

#[path = "../../fuzz/targets.rs"]
mod targets;

#[test]
fn nothing_in_the_corpus_makes_a_decoder_panic() {
    for (name, target) in targets::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let mut files: Vec<_> =
            folder.read_dir().expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{name} has a corpus");
        for file in files {
            let bytes = std::fs::read(&file).expect("a readable file");
            // The test's output names the last one.
            println!("{}", file.display());
            target(&bytes);
        }
    }
}
