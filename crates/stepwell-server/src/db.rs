//! `stepwell db …`: migration, status, integrity check, backup and restore of the database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use stepwell::store::Store;
use stepwell_sqlite::{BackupError, BackupProgress, CheckReport, Existing, OpenError, Sizes};

use crate::config::{Config, Settings, Sources};
use crate::exit::{Code, Failure};
use crate::output::{self, print_message};
use crate::server::runtime;
use crate::start::{Opened, Purpose, in_use, migrate_postgres, sqlite_path};

/// Duration of the fsync measurement.
const MEASURED: Duration = Duration::from_secs(1);

/// Options that select the database.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Of {
    /// Configuration file (default: `stepwell.toml`, if it exists).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Database: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Create the database tables, or migrate them to the current schema.
    Migrate {
        /// PostgreSQL: role of the servers, which gets the rights to use the tables (default: the role of
        /// `database.url`).
        #[arg(long, value_name = "ROLE")]
        grant_to: Option<String>,
        #[command(flatten)]
        of: Of,
    },
    /// Show the schema version and size of the database, and for SQLite the fsyncs per second of its disk.
    Status(Of),
    /// Check an SQLite file for damage; a server may be using it.
    Check(Of),
    /// Copy an SQLite file; a server may be writing to it. The copy is complete or does not exist.
    Backup {
        /// File to write the backup to.
        to: PathBuf,
        /// Replace an existing file.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Replace the database by a backup; the previous database is kept under another name.
    Restore {
        /// Backup file to restore.
        from: PathBuf,
        /// Allow the restore if a database exists; it is renamed.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        of: Of,
    },
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Migrate { grant_to, of } => runtime()?.block_on(migrate(of, grant_to.as_deref())),
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

    /// Returns the SQLite file, or an error for PostgreSQL.
    fn file(&self) -> Result<PathBuf, Failure> {
        let url = self.settings()?.database.url;
        sqlite_path(&url).ok_or_else(|| {
            let why =
                "this command is for SQLite files; for PostgreSQL use pg_dump, pg_restore or pg_amcheck";
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

async fn migrate(of: &Of, grant_to: Option<&str>) -> Result<(), Failure> {
    let settings = of.settings()?;
    let bar = output::busy("migrating");
    let version = match (sqlite_path(&settings.database.url), grant_to) {
        (Some(_), Some(role)) => {
            let why = format!("`--grant-to {role}` is for PostgreSQL: an SQLite file has no roles");
            return Err(Failure::new(Code::Invalid, why));
        }
        (Some(_), None) => Opened::open(&settings, Purpose::Maintain).await?.store().migrate().await?,
        (None, _) => migrate_postgres(&settings, grant_to).await?,
    };
    bar.finish_and_clear();
    of.say(&json!({"schema": version.0}))
}

async fn status(of: &Of) -> Result<(), Failure> {
    let settings = of.settings()?;
    if let Some(path) = sqlite_path(&settings.database.url) {
        // A server may have the file open, so read it without opening it as a store.
        let report = stepwell_sqlite::check(&path).map_err(|error| opening(&error))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let rate = stepwell_sqlite::fsync_rate(folder, MEASURED).map_err(|error| opening(&error))?;
        let mut said = shown(&report);
        said["fsyncsPerSecond"] = json!(rate.per_second.round());
        said["fsyncP50Us"] = json!(rate.p50_us);
        said["fsyncP99Us"] = json!(rate.p99_us);
        return of.say(&said);
    }
    let Opened::Postgres(store) = Opened::open(&settings, Purpose::Maintain).await? else {
        return Err(Failure::unexpected("the database is neither SQLite nor PostgreSQL"));
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
    let done =
        stepwell_sqlite::backup_file(of.file()?, to, existing, |progress| show_progress(&bar, progress))
            .map_err(|error| failed(&error))?;
    bar.finish_and_clear();
    of.say(&json!({"backup": to.display().to_string(), "bytes": done.bytes, "schema": done.schema.0}))
}

fn restore(of: &Of, from: &Path, existing: Existing) -> Result<(), Failure> {
    let (bar, file) = (bar("restored"), of.file()?);
    let done = stepwell_sqlite::restore(from, &file, existing, |progress| show_progress(&bar, progress))
        .map_err(|error| failed(&error))?;
    bar.finish_and_clear();
    let previous = done.previous.as_ref().map(|previous| previous.display().to_string());
    if let Some(previous) = &previous {
        print_message(&format!("the previous database is kept as {previous}"));
    }
    of.say(&json!({"restored": file.display().to_string(), "kept": previous, "schema": done.schema.0}))
}

/// Returns a progress bar. It is shown only on a terminal.
fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} pages {msg}, {eta} left");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}

fn show_progress(bar: &ProgressBar, progress: BackupProgress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

fn opening(error: &OpenError) -> Failure {
    in_use(error, Purpose::Maintain)
}

fn failed(error: &BackupError) -> Failure {
    match error {
        BackupError::Open(error) => opening(error),
        BackupError::Exists { .. } => Failure::new(Code::Conflict, format!("{error} (`--replace`)")),
        BackupError::Unusable { .. } => Failure::new(Code::Invalid, error.to_string()),
    }
}
