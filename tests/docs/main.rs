//! The documents against the code: what they name exists, and what must be in them is.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap_or_else(|why| panic!("docs/{name}: {why}"))
}

/// What stands between backticks in `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Every `path/to/file.rs::name` of `text`.
fn cited(text: &str) -> Vec<(&str, &str)> {
    quoted(text).filter_map(|quoted| quoted.split_once(".rs::")).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `source` has an item of one of these kinds with this name.
fn defines(source: &str, kinds: &[&str], name: &str) -> bool {
    kinds.iter().any(|kind| {
        let item = format!("{kind} {name}");
        source.match_indices(&item).any(|(at, _)| !source[at + item.len()..].starts_with(is_word))
    })
}

fn check(cited: &[(&str, &str)], kinds: &[&str], document: &str, missing: &mut Vec<String>) {
    for (file, name) in cited {
        let path = root().join(format!("{file}.rs"));
        match fs::read_to_string(&path) {
            Err(_) => missing.push(format!("{document}: there is no {file}.rs")),
            Ok(source) if defines(&source, kinds, name) => {}
            Ok(_) => missing.push(format!("{document}: {file}.rs has no {name}")),
        }
    }
}

const TEST: &[&str] = &["fn"];
const OWNER: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type"];

#[test]
fn every_function_and_type_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            check(&cited(&document(&name)), OWNER, &name, &mut missing);
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_rule_has_an_owner_and_tests_or_says_that_it_is_not_built() {
    let text = document("invariants.md");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(" | ").collect()).collect();
    let ids = [('R', 46), ('S', 7), ('L', 3), ('F', 7)];
    let ids = ids.into_iter().flat_map(|(kind, count)| (1..=count).map(move |number| format!("{kind}{number}")));
    let mut wrong = Vec::new();
    for id in ids {
        let of: Vec<_> = rows.iter().filter(|row| row[0].trim_start_matches("| ") == id && row.len() == 4).collect();
        let [row] = of[..] else {
            wrong.push(format!("{id} has {} rows", of.len()));
            continue;
        };
        let built = !row[2].starts_with("not built yet");
        if built && (cited(row[2]).is_empty() || cited(row[3]).is_empty()) {
            wrong.push(format!("{id} lacks an owner or a test"));
        }
        check(&cited(row[3]), TEST, &format!("tests of {id}"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_case_has_a_test_or_says_which_issue_it_waits_for() {
    let text = document("cases.md");
    let mut wrong = Vec::new();
    for number in 1..=48 {
        let start = format!("{number}. ");
        match text.lines().find(|line| line.starts_with(&start)) {
            None => wrong.push(format!("case {number} is missing")),
            Some(line) if cited(line).is_empty() && !line.contains("issue") => {
                wrong.push(format!("case {number} has no test"));
            }
            Some(line) => check(&cited(line), TEST, &format!("case {number}"), &mut wrong),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The string literals that are the first argument of a call of `function`.
fn first_arguments<'a>(source: &'a str, function: &str) -> Vec<&'a str> {
    let call = format!("{function}(");
    let after = source.match_indices(&call).map(|(at, _)| source[at + call.len()..].trim_start());
    after.filter_map(|rest| rest.strip_prefix('"')?.split('"').next()).collect()
}

/// Every metric's name as `/metrics` shows it, but for the `_total` of counters.
fn registered() -> BTreeSet<String> {
    let mut files = Vec::new();
    for folder in ["src", "actors/src", "rpc/src", "persistence/src"] {
        sources(&root().join(folder), &mut files);
    }
    let mut names = BTreeSet::new();
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        let prefixes = first_arguments(&source, ".sub_registry_with_prefix");
        assert!(prefixes.len() <= 1, "{}: several prefixes, which this test cannot tell apart", file.display());
        let prefix = prefixes.first().map(|prefix| format!("{prefix}_")).unwrap_or_default();
        let plain = first_arguments(&source, ".register").into_iter().map(str::to_owned);
        let timed = first_arguments(&source, ".register_with_unit").into_iter().map(|name| format!("{name}_seconds"));
        let collected = first_arguments(&source, ".encode_descriptor").into_iter().map(str::to_owned);
        for name in plain.chain(timed).chain(collected) {
            let name = match name.strip_prefix("leasehold_") {
                Some(_) => name,
                // Collectors have no registry of their own, and the gateway's registry begins every name with `leasehold`.
                None if prefix.starts_with("leasehold_") => format!("{prefix}{name}"),
                None => format!("leasehold_{prefix}{name}"),
            };
            names.insert(name);
        }
    }
    names
}

/// Case 47: every metric on the guide's list exists, and every metric is on it.
#[test]
fn every_metric_stands_in_the_operations_guide_and_none_that_does_not_exist() {
    let text = document("operations.md");
    let listed = quoted(&text).filter(|quoted| quoted.starts_with("leasehold_") && quoted.chars().all(is_word));
    let listed: BTreeSet<String> = listed.map(|name| name.trim_end_matches("_total").to_owned()).collect();
    let registered = registered();
    assert!(registered.len() > 30, "the scan finds what is registered: {registered:?}");
    let unlisted: Vec<_> = registered.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&registered).collect();
    assert!(unlisted.is_empty() && unknown.is_empty(), "not listed: {unlisted:?}; no such metric: {unknown:?}");
}
