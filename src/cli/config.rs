//! Where a command's configuration comes from, and `config check | show | default`.

use super::{Exit, Failure, say, show, table};
use leasehold_config::{Configuration, Loaded, ShownValue, Sources, load, render_default};
use serde::Serialize;
use std::path::PathBuf;

/// Sources of configuration besides the environment.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConfigOptions {
    /// A TOML file
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CONFIG", global = true)]
    pub config: Option<PathBuf>,
    /// Set one key: `--set lease.profile=lan` (may be repeated; stronger than file and environment)
    #[arg(long = "set", value_name = "KEY=VALUE", global = true)]
    pub set: Vec<String>,
}

impl ConfigOptions {
    /// Loads and checks everything; `also` are further settings made of flags.
    ///
    /// # Errors
    /// Exit code 78 with everything that is wrong.
    pub fn load<T: Configuration>(&self, also: Vec<String>) -> Result<Loaded<T>, Failure> {
        let overrides = self.set.iter().cloned().chain(also).collect();
        Ok(load::<T>(&Sources::of_process(self.config.clone(), overrides))?)
    }
}

/// What to do with the configuration.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum ConfigCommand {
    /// Say whether it is acceptable, and everything that is wrong with it
    Check,
    /// Every value with where it came from, and every time that follows from them
    Show {
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// A sample file with every key, its default and its meaning
    Default,
}

#[derive(Serialize)]
struct Row<'a> {
    key: &'a str,
    value: &'a str,
    source: &'a str,
    derived: bool,
    note: &'a str,
}

/// Runs `config …` for a configuration of type `T`.
///
/// # Errors
/// Exit code 78 with everything that is wrong.
pub fn run<T: Configuration>(options: &ConfigOptions, command: &ConfigCommand) -> Result<Exit, Failure> {
    match command {
        ConfigCommand::Default => say(render_default::<T>().trim_end())?,
        ConfigCommand::Check => {
            let loaded = options.load::<T>(Vec::new())?;
            for warning in &loaded.warnings {
                say(&format!("warning: {warning}"))?;
            }
            say("the configuration is fine")?;
        }
        ConfigCommand::Show { json } => {
            let shown = options.load::<T>(Vec::new())?.render_show();
            let row = |value: &ShownValue| {
                (value.key.clone(), value.value.clone(), value.source.clone(), value.derived, value.note.clone())
            };
            let rows: Vec<_> = shown.iter().map(row).collect();
            let for_programs: Vec<Row<'_>> = rows
                .iter()
                .map(|(key, value, source, derived, note)| Row { key, value, source, derived: *derived, note })
                .collect();
            show(&for_programs, *json, || render(&shown))?;
        }
    }
    Ok(Exit::Fine)
}

fn render(shown: &[ShownValue]) -> String {
    let mut set = table(&["key", "value", "from"]);
    let mut derived = table(&["derived", "value", "how", "what it means"]);
    for value in shown {
        if value.derived {
            derived.add_row([&value.key, &value.value, &value.source, &value.note]);
        } else {
            set.add_row([&value.key, &value.value, &value.source]);
        }
    }
    format!("{set}\n\n{derived}")
}
