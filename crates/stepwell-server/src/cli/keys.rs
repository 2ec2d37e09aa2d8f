//! `key create`, `key rotate`, `key activate` and `key remove`: verbs that change the file with the keys that seal
//! tokens. They use no server: a running server reads the changed file again.

use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command};
use stepwell::flow::Key;

use crate::exit::{Code, Failure};
use crate::keys::KeyFile;
use crate::output;

pub(super) fn with_verbs(command: Command) -> Command {
    let file =
        || Arg::new("file").value_name("FILE").required(true).help("Key file, as `flows.key_file` names it");
    let given = || Arg::new("id").value_name("ID").required(true).help("Id of the key");
    let new = || {
        let about = "Id of the new key [default: today's date]";
        Arg::new("new-id").long("id").value_name("ID").help(about)
    };
    let dry =
        || Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help("Check, but write nothing");
    let inactive = Arg::new("inactive").long("inactive").action(ArgAction::SetTrue).help(
        "Only add the key, which then opens tokens; `key activate` makes it seal new ones. For several servers, so that all have read the key before one uses it",
    );
    let create = Command::new("create").about("Create the file with a new key").arg(file());
    let rotate =
        Command::new("rotate").about("Add a new key to the file and seal new tokens with it").arg(file());
    let activate = Command::new("activate").about("Seal new tokens with another key of the file").arg(file());
    let remove = Command::new("remove")
        .about("Remove a key from the file: tokens that it has sealed are no longer valid")
        .arg(file());
    command.mut_subcommand("key", |noun| {
        noun.subcommand(create.arg(new()).arg(dry()))
            .subcommand(rotate.arg(new()).arg(inactive).arg(dry()))
            .subcommand(activate.arg(given()).arg(dry()))
            .subcommand(remove.arg(given()).arg(dry()))
    })
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    if noun != "key" {
        return None;
    }
    let file = || Path::new(matches.get_one::<String>("file").map(String::as_str).unwrap_or_default());
    let is_dry = || matches.get_flag("dry-run");
    match verb {
        "create" => Some(create(file(), matches, is_dry())),
        "rotate" => Some(rotate(file(), matches, is_dry())),
        "activate" => Some(changed(file(), is_dry(), |keys| keys.activate(id(matches)))),
        "remove" => Some(changed(file(), is_dry(), |keys| keys.remove(id(matches)))),
        _ => None,
    }
}

fn id(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("id").map(String::as_str).unwrap_or_default()
}

/// Generates a key with the given id, or with today's date.
fn fresh(keys: &KeyFile, matches: &ArgMatches) -> Result<Key, Failure> {
    let today = stepwell::Clock::now(&stepwell::SystemClock::default()).to_string();
    let today = today.get(..10).unwrap_or("key").to_owned();
    let numbered = || (2..).map(|number| format!("{today}-{number}"));
    let id = match matches.get_one::<String>("new-id") {
        Some(id) => id.clone(),
        None => std::iter::once(today.clone()).chain(numbered()).find(|id| !keys.has(id)).unwrap_or_default(),
    };
    Key::generate(id).map_err(|error| Failure::new(Code::Invalid, error.to_string()))
}

fn create(file: &Path, matches: &ArgMatches, is_dry: bool) -> Result<(), Failure> {
    if file.exists() {
        let why = format!("{} exists already: add a key with `stepwell key rotate`", file.display());
        return Err(Failure::new(Code::Conflict, why));
    }
    let mut keys = KeyFile::new(file);
    let key = fresh(&keys, matches)?;
    keys.add(&key, true)?;
    written(&keys, key.id(), is_dry)
}

fn rotate(file: &Path, matches: &ArgMatches, is_dry: bool) -> Result<(), Failure> {
    let mut keys = KeyFile::read(file)?;
    let key = fresh(&keys, matches)?;
    keys.add(&key, !matches.get_flag("inactive"))?;
    written(&keys, key.id(), is_dry)
}

/// Changes the file and prints the id of the key that seals new tokens.
fn changed(
    file: &Path,
    is_dry: bool,
    change: impl FnOnce(&mut KeyFile) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut keys = KeyFile::read(file)?;
    change(&mut keys)?;
    let seals = keys.ids().first().cloned().unwrap_or_default();
    written(&keys, &seals, is_dry)
}

fn written(keys: &KeyFile, id: &str, is_dry: bool) -> Result<(), Failure> {
    if !is_dry {
        keys.write()?;
    }
    output::line(id)
}
