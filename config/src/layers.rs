//! Lays the sources over each other. The only place that knows figment.

use crate::error::Problem;
use crate::file::{self, FileKey, MAX_FILE_BYTES};
use crate::key::{Default, Key};
use crate::keys::BINARIES;
use crate::source::{ENV_PREFIX, Source, Sources};
use figment::value::{Dict, Map};
use figment::{Figment, Metadata, Profile, Provider};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

/// The sources, laid over each other, and what was wrong with them on the way.
pub(crate) struct Layers {
    figment: Figment,
    /// Which command this is read for.
    binary: &'static str,
    keys: &'static [&'static Key],
    /// Where each key stands, by the name of the layer and the key.
    places: BTreeMap<(String, String), Source>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
}

/// One source's values, all still text.
struct Layer {
    name: String,
    values: Vec<(String, String)>,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let mut dict = Dict::new();
        for (key, text) in &self.values {
            dict.insert(key.clone(), text.clone().into());
        }
        Ok(Profile::Default.collect(dict))
    }
}

impl Layers {
    /// Reads `sources` for the command `binary`, which knows `keys`.
    pub fn read(binary: &'static str, keys: &'static [&'static Key], sources: &Sources) -> Self {
        let mut layers = Self::defaults(binary, keys);
        if let Some(path) = &sources.file {
            match read_file(path) {
                Ok(text) => layers.add_file(path, &text),
                Err(message) => layers.problems.push(Problem::File { path: path.clone(), line: None, message }),
            }
        }
        layers.add_environment(sources);
        layers.add_flags(&sources.overrides);
        layers
    }

    /// The built-in values alone.
    pub fn defaults(binary: &'static str, keys: &'static [&'static Key]) -> Self {
        let values = keys
            .iter()
            .filter_map(|key| match key.default {
                Default::Text(text) => Some((flat(key.path), text.to_owned())),
                Default::Unset { .. } => None,
            })
            .collect();
        Self {
            figment: Figment::from(Layer { name: "default".into(), values }),
            binary,
            keys,
            places: BTreeMap::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The strongest value of `key`, in text form, and where it came from.
    pub fn value(&self, key: &Key) -> Option<(String, Source)> {
        let value = self.figment.find_value(&flat(key.path)).ok()?;
        let layer = self.figment.get_metadata(value.tag()).map(|metadata| metadata.name.to_string())?;
        let source = self.places.get(&(layer, key.path.to_owned())).cloned().unwrap_or(Source::Default);
        Some((value.into_string()?, source))
    }

    pub fn add_file(&mut self, path: &Path, text: &str) {
        let found = match file::flatten(text) {
            Ok(found) => found,
            Err((line, message)) => {
                self.problems.push(Problem::File { path: path.to_owned(), line, message });
                return;
            }
        };
        let mut values = Vec::new();
        for FileKey { path: key, text, line } in found {
            let place = Source::File { path: path.to_owned(), line };
            match text {
                Some(text) => values.push((key, text, place)),
                None if self.keys.iter().any(|known| known.is_in(&key)) => {}
                None => self.unknown(&key, place),
            }
        }
        self.add("file", values);
    }

    fn add_environment(&mut self, sources: &Sources) {
        let mut values = Vec::new();
        for (variable, value) in &sources.env {
            let variable = variable.to_string_lossy();
            let Some(rest) = variable.strip_prefix(ENV_PREFIX) else { continue };
            let key = rest.to_lowercase().replace("__", ".");
            let Some(value) = value.to_str() else {
                self.problems.push(Problem::Environment { variable: variable.into_owned() });
                continue;
            };
            // One environment often serves several processes, so a setting of another command is no mistake here.
            if !self.knows(&key)
                && let Some(owner) = owner_of(&key)
            {
                self.warnings.push(format!("{variable} is a setting of {owner}: not used by {}", self.binary));
                continue;
            }
            values.push((key, value.to_owned(), Source::Environment(variable.into_owned())));
        }
        self.add("environment", values);
    }

    fn add_flags(&mut self, flags: &[String]) {
        let mut values = Vec::new();
        for flag in flags {
            match flag.split_once('=') {
                Some((key, value)) => values.push((key.trim().to_owned(), value.to_owned(), Source::Flag)),
                None => self.problems.push(Problem::Flag { flag: flag.clone() }),
            }
        }
        self.add("flag", values);
    }

    fn add(&mut self, layer: &str, found: Vec<(String, String, Source)>) {
        let mut values = Vec::new();
        for (key, text, place) in found {
            if self.knows(&key) {
                self.places.insert((layer.to_owned(), key.clone()), place);
                values.push((flat(&key), text));
            } else {
                self.unknown(&key, place);
            }
        }
        let figment = std::mem::take(&mut self.figment);
        self.figment = figment.merge(Layer { name: layer.to_owned(), values });
    }

    fn knows(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known.path == key)
    }

    fn unknown(&mut self, key: &str, found_in: Source) {
        let hint = match owner_of(key) {
            Some(owner) => format!("it is a setting of {owner}, not of {}", self.binary),
            None => hint(key, self.binary, self.keys),
        };
        self.problems.push(Problem::UnknownKey { key: key.to_owned(), found_in, hint });
    }
}

/// figment nests at dots; here a key is one name, so that a table in the place of a value cannot hide it.
fn flat(key: &str) -> String {
    key.replace('.', "__")
}

fn owner_of(key: &str) -> Option<&'static str> {
    BINARIES.iter().find(|(_, keys)| keys.iter().any(|known| known.path == key)).map(|(binary, _)| *binary)
}

/// How alike two names must be for one to be offered for the other, from 0 to 1: a guess that is far off misleads.
const ALIKE: f64 = 0.6;
/// The same for the last part alone, whatever the section.
const ALIKE_IN_PART: f64 = 0.75;

/// What somebody who wrote `key` may have meant: a key that is nearly the same, the keys of a section that is, or where to
/// read all of them.
fn hint(key: &str, binary: &str, keys: &[&'static Key]) -> String {
    // Long keys are compared by their beginning.
    let key: String = key.chars().take(64).collect();
    let first = key.split('.').next().unwrap_or_default();
    let last = key.rsplit('.').next().unwrap_or_default();
    let alike = strsim::normalized_damerau_levenshtein;
    if let Some(known) = nearest(keys, ALIKE, |known| alike(&key, known.path))
        .or_else(|| nearest(keys, ALIKE_IN_PART, |known| alike(last, known.name())))
    {
        return format!("did you mean {}?", known.path);
    }
    if let Some(known) = nearest(keys, ALIKE, |known| alike(first, known.section())) {
        let section = known.section();
        let of: Vec<_> = keys.iter().filter(|key| key.section() == section).map(|key| key.path).collect();
        return format!("section {section} has {}", of.join(", "));
    }
    let command = match binary.split_once(' ') {
        Some((binary, part)) => format!("{binary} config --{part} default"),
        None => format!("{binary} config default"),
    };
    format!("nothing is called like that; {command} shows every key")
}

/// The first of the keys with the greatest score, if that is `least` or more.
fn nearest(keys: &[&'static Key], least: f64, score: impl Fn(&Key) -> f64) -> Option<&'static Key> {
    let scored = keys.iter().rev().map(|key| (*key, score(key))).filter(|(_, score)| *score >= least);
    scored.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(key, _)| key)
}

/// # Errors
/// What to tell: not there, not readable, too large, not UTF-8.
fn read_file(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}
