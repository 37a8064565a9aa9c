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
                None if self.keys.iter().any(|known| known.section() == key) => {}
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
            None => format!("did you mean {}?", nearest(key, self.keys)),
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

/// The known key that is nearest by edits, of the whole, of its last part or of its section. Long keys are compared by
/// their beginning.
fn nearest(key: &str, keys: &[&'static Key]) -> &'static str {
    let key: String = key.chars().take(64).collect();
    let first = key.split('.').next().unwrap_or_default();
    let last = key.rsplit('.').next().unwrap_or_default();
    let score = |known: &Key| {
        let whole = strsim::normalized_damerau_levenshtein(&key, known.path);
        let part = strsim::normalized_damerau_levenshtein(last, known.name());
        let section = strsim::normalized_damerau_levenshtein(first, known.section());
        whole.max(part * 0.95).max(section * 0.6)
    };
    let best = keys.iter().rev().max_by(|a, b| score(a).total_cmp(&score(b)));
    best.map_or("", |key| key.path)
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
