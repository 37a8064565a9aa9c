//! Answers on standard output: tables for people, JSON for programs, and a quiet end when the reader has gone.

use super::{Exit, Failure};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Writes `text` and a newline to standard output.
///
/// # Errors
/// A quiet, fine end ([`Failure::reader_gone`]) when the pipe is closed; exit code 1 when writing fails otherwise (a full disk).
pub fn say(text: &str) -> Result<(), Failure> {
    written(write_line(&mut io::stdout().lock(), text))
}

/// Writes `value` as one JSON document if `json`, otherwise whatever `text` makes for people.
///
/// # Errors
/// As [`say`].
pub fn show<T: Serialize>(value: &T, json: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if json {
        let document = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot write the answer as JSON: {error}")))?;
        say(&document)
    } else {
        say(&text())
    }
}

/// An empty table with these column heads: fitted to the terminal, or as wide as it needs when the output goes to a program.
#[must_use]
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(heads.iter().map(|head| head.to_uppercase()).collect::<Vec<_>>());
    table
}

fn write_line(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::reader_gone()
        } else {
            Failure::new(Exit::Failed, format!("cannot write to standard output: {error}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_to_a_closed_pipe_ends_quietly_and_fine() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let ended = written(write_line(&mut writer, "nobody reads this")).unwrap_err();
        assert_eq!(ended, Failure::reader_gone());
        assert_eq!(ended.exit.code(), 0);
    }

    #[test]
    fn a_full_disk_is_a_failure_with_its_reason() {
        let ended = written(Err(io::Error::from(io::ErrorKind::StorageFull))).unwrap_err();
        assert_eq!(ended.exit, Exit::Failed);
        assert!(ended.message.contains("standard output"), "{ended}");
    }
}
