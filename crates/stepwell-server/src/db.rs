//! `stepwell db …`: what an operator does to the store itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use stepwell::store::Store;
use stepwell_sqlite::{BackupError, BackupProgress, CheckReport, Existing, OpenError, Sizes};

use crate::config::{Config, Settings, Sources};
use crate::exit::{Code, Failure};
use crate::output::{self, talk};
use crate::server::runtime;
use crate::start::{Opened, sqlite_path};

/// How long fsyncs are measured.
const MEASURED: Duration = Duration::from_secs(1);

/// Which store.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Of {
    /// The configuration; `stepwell.toml` is read if it is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Prints what is said as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Makes the store's tables, or brings them up to date.
    Migrate(Of),
    /// Says what the store is, how large it is, and how many fsyncs a second its disk does.
    Status(Of),
    /// Looks for damage in an SQLite file, also while a server has it.
    Check(Of),
    /// Copies an SQLite file, also while a server has it and writes; the copy is whole or not there.
    Backup {
        /// Where to.
        to: PathBuf,
        /// Replace a file that is there.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Puts a backup in the place of the store; what was there is kept beside it.
    Restore {
        /// The backup.
        from: PathBuf,
        /// There is a store already: keep it under another name.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        of: Of,
    },
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Migrate(of) => runtime()?.block_on(migrate(of)),
        Verb::Status(of) => runtime()?.block_on(status(of)),
        Verb::Check(of) => check(of),
        Verb::Backup { to, replace, of } => backup(of, to, existing(*replace)),
        Verb::Restore { from, replace, of } => restore(of, from, existing(*replace)),
    }
}

fn existing(replace: bool) -> Existing {
    if replace { Existing::Replace } else { Existing::Refuse }
}

impl Of {
    fn settings(&self) -> Result<Settings, Failure> {
        let flags = vec![("database.url", "--database-url", self.database_url.clone())];
        Ok(Config::read(&Sources::of(self.config.as_deref(), flags))?.settings)
    }

    /// The file of an SQLite store.
    fn file(&self) -> Result<PathBuf, Failure> {
        let url = self.settings()?.database.url;
        sqlite_path(&url).ok_or_else(|| {
            let why = "this is for SQLite files; PostgreSQL has programs of its own for it (pg_dump, pg_restore, pg_amcheck)";
            Failure::new(Code::Invalid, why)
        })
    }

    fn say(&self, value: &Value) -> Result<(), Failure> {
        if self.json {
            return output::line(&value.to_string());
        }
        let fields = value.as_object().into_iter().flatten();
        fields.into_iter().try_for_each(|(name, value)| match value {
            Value::Object(inside) => {
                output::line(&format!("{name}:"))?;
                inside.iter().try_for_each(|(name, value)| output::line(&format!("  {name:24} {value}")))
            }
            value => output::line(&format!(
                "{name:26} {}",
                value.as_str().map_or_else(|| value.to_string(), str::to_owned)
            )),
        })
    }
}

async fn migrate(of: &Of) -> Result<(), Failure> {
    let bar = output::busy("migrating");
    let store = Opened::open(&of.settings()?).await?.store();
    let version = store.migrate().await?;
    bar.finish_and_clear();
    of.say(&json!({"schema": version.0}))
}

async fn status(of: &Of) -> Result<(), Failure> {
    let settings = of.settings()?;
    if let Some(path) = sqlite_path(&settings.database.url) {
        // A server may have it: what there is to say is said from outside.
        let report = stepwell_sqlite::check(&path).map_err(|error| opening(&error))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let rate = stepwell_sqlite::fsync_rate(folder, MEASURED).map_err(|error| opening(&error))?;
        let mut said = shown(&report);
        said["fsyncsPerSecond"] = json!(rate.per_second.round());
        said["fsyncP50Us"] = json!(rate.p50_us);
        said["fsyncP99Us"] = json!(rate.p99_us);
        return of.say(&said);
    }
    let Opened::Postgres(store) = Opened::open(&settings).await? else {
        return Err(Failure::unexpected("a store is SQLite or PostgreSQL"));
    };
    let status = store.status().await?;
    of.say(&json!({
        "server": status.server, "schema": status.schema.0, "bytes": status.database_bytes,
        "hasCitus": status.has_citus, "rows": status.rows,
    }))
}

fn shown(report: &CheckReport) -> Value {
    let Sizes { file_bytes, log_bytes, page_bytes, pages, free_pages } = report.sizes;
    json!({
        "sound": report.is_sound(), "problems": report.problems, "foreign": report.foreign,
        "schema": report.schema.map(|schema| schema.0), "bytes": file_bytes, "logBytes": log_bytes,
        "pageBytes": page_bytes, "pages": pages, "freePages": free_pages, "rows": report.rows,
    })
}

fn check(of: &Of) -> Result<(), Failure> {
    let report = stepwell_sqlite::check(of.file()?).map_err(|error| opening(&error))?;
    of.say(&shown(&report))?;
    match report.is_sound() {
        true => Ok(()),
        false => {
            Err(Failure::new(Code::Failed, "the file is damaged: restore a backup (`stepwell db restore`)"))
        }
    }
}

fn backup(of: &Of, to: &Path, existing: Existing) -> Result<(), Failure> {
    let bar = bar("copied");
    let done = stepwell_sqlite::backup_file(of.file()?, to, existing, |progress| told(&bar, progress))
        .map_err(|error| failed(&error))?;
    bar.finish_and_clear();
    of.say(&json!({"backup": to.display().to_string(), "bytes": done.bytes, "schema": done.schema.0}))
}

fn restore(of: &Of, from: &Path, existing: Existing) -> Result<(), Failure> {
    let (bar, file) = (bar("restored"), of.file()?);
    let done = stepwell_sqlite::restore(from, &file, existing, |progress| told(&bar, progress))
        .map_err(|error| failed(&error))?;
    bar.finish_and_clear();
    let kept = done.kept.as_ref().map(|kept| kept.display().to_string());
    if let Some(kept) = &kept {
        talk(&format!("what was there is kept as {kept}"));
    }
    of.say(&json!({"restored": file.display().to_string(), "kept": kept, "schema": done.schema.0}))
}

/// A bar for whoever sits at a terminal; it is hidden from everybody else.
fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} pages {msg}, {eta} left");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}

fn told(bar: &ProgressBar, progress: BackupProgress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

fn opening(error: &OpenError) -> Failure {
    let code = match error {
        OpenError::InUse { .. } => Code::Conflict,
        _ => Code::Unexpected,
    };
    Failure::new(code, error.to_string())
}

fn failed(error: &BackupError) -> Failure {
    match error {
        BackupError::Open(error) => opening(error),
        BackupError::Exists { .. } => Failure::new(Code::Conflict, format!("{error} (`--replace`)")),
        BackupError::Unfit { .. } => Failure::new(Code::Invalid, error.to_string()),
    }
}
