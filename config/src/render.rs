//! The sample files and the reference, made from the list of keys.

use crate::Configuration;
use crate::key::{Default, Key};
use crate::keys::BINARIES;
use crate::kind::show_duration;
use crate::sections::Lease;
use leasehold_model::lease::{Allowance, Profile};
use std::fmt::Write as _;

/// A commented TOML file with every key of `T` at its default. Loading it changes nothing.
#[must_use]
pub fn render_default<T: Configuration>() -> String {
    let mut out = format!(
        "# Configuration of {}: every key, with its default. A key may be left out.\n\
         # Stronger than this file: the environment (LEASEHOLD__SECTION__KEY=value), then flags.\n",
        T::BINARY
    );
    let mut section = "";
    for key in T::keys() {
        if key.section() != section {
            section = key.section();
            push(&mut out, format_args!("\n[{section}]\n"));
        } else {
            out.push('\n');
        }
        for line in wrapped(key.meaning, 100) {
            push(&mut out, format_args!("# {line}\n"));
        }
        push(&mut out, format_args!("# Accepted: {}.\n", key.kind.accepted()));
        match key.default {
            Default::Text(text) => push(&mut out, format_args!("{} = {}\n", key.name(), key.kind.toml(text))),
            Default::Unset { then, example } => {
                push(&mut out, format_args!("# Unset: {then}.\n#{} = {}\n", key.name(), key.kind.toml(example)));
            }
        }
    }
    out
}

/// The tables of docs/configuration.md: the keys of every command, and what follows from each lease profile.
#[must_use]
pub fn render_reference() -> String {
    let mut out = String::new();
    for (binary, keys) in BINARIES {
        push(&mut out, format_args!("## Keys of `{binary}`\n\n"));
        out.push_str("| key | default | accepted | meaning |\n| --- | --- | --- | --- |\n");
        for key in *keys {
            push(&mut out, format_args!("{}\n", row(key)));
        }
        out.push('\n');
    }
    out.push_str("## What follows from a lease profile\n\n");
    out.push_str("| value | wan | lan | fast | computed as | meaning |\n| --- | --- | --- | --- | --- | --- |\n");
    let of = |profile: Profile| {
        let lease = Lease { profile, times: profile.into(), allowance: Allowance::default() };
        let mut shown = lease.shown_of_manager();
        shown.extend(lease.shown_of_executor().into_iter().rev().take(1));
        shown
    };
    for ((wan, lan), fast) in of(Profile::Wan).into_iter().zip(of(Profile::Lan)).zip(of(Profile::Fast)) {
        let values = format!("`{}` | `{}` | `{}`", wan.value, lan.value, fast.value);
        push(&mut out, format_args!("| `{}` | {values} | {} | {} |\n", wan.key, wan.source, wan.note));
    }
    let least = |profile: Profile| show_duration(profile.call_deadline_floor() * 3);
    push(
        &mut out,
        format_args!(
            "| least `lease.duration` | `{}` | `{}` | `{}` | 3 × lease.call_deadline_floor | \
             shorter is refused at start (R14) |\n",
            least(Profile::Wan),
            least(Profile::Lan),
            least(Profile::Fast)
        ),
    );
    out
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Default::Text(text) => format!("`{text}`"),
        Default::Unset { then, .. } => then.to_owned(),
    };
    format!("| `{}` | {default} | {} | {} |", key.path, key.kind.accepted(), key.meaning)
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string cannot fail");
}

/// `text` in lines of at most `width` characters, broken at spaces.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
