//! A TOML text as flat keys, each with the line it stands on.

use crate::kind::MAX_ADDRESSES;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The largest file that is read, in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// A key of a file, as it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileKey {
    /// Dotted.
    pub path: String,
    /// Its value in text form; `None` for a table without keys.
    pub text: Option<String>,
    /// From 1.
    pub line: usize,
}

/// Flattens `text`.
///
/// # Errors
/// The line, if known, and what is wrong there, when `text` is not TOML.
pub(crate) fn flatten(text: &str) -> Result<Vec<FileKey>, (Option<usize>, String)> {
    let table = DeTable::parse(text)
        .map_err(|error| (error.span().map(|span| line_of(text, span.start)), error.message().to_owned()))?;
    let mut keys = Vec::new();
    walk(text, "", table.get_ref(), &mut keys);
    keys.sort_by_key(|key| key.line);
    Ok(keys)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// As deep as the parser lets tables nest, which it bounds.
fn walk(text: &str, prefix: &str, table: &DeTable<'_>, keys: &mut Vec<FileKey>) {
    for (name, value) in table {
        let path = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        let line = line_of(text, name.span().start);
        match value.get_ref() {
            DeValue::Table(inner) if inner.is_empty() => keys.push(FileKey { path, text: None, line }),
            DeValue::Table(inner) => walk(text, &path, inner, keys),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_) => keys.push(FileKey { path, text: Some(scalar(value.get_ref())), line }),
        }
    }
}

fn scalar(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            parsed.map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
        }
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(at) => at.to_string(),
        DeValue::Array(items) => list(items),
        DeValue::Table(_) => "{…}".to_owned(),
    }
}

/// One more than the longest accepted list is enough to refuse it.
fn list(items: &DeArray<'_>) -> String {
    let items: Vec<_> = items.iter().take(MAX_ADDRESSES + 1).map(Spanned::get_ref).map(scalar).collect();
    items.join(",")
}
