//! API keys that the server makes itself and writes to a file: for `stepwell server start --create-api-key` and for
//! `stepwell dev`.

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use stepwell::{DataError, Grants};
use stepwell_server::api::{NewKey, Server};

use crate::exit::{Code, Failure};
use crate::output::print_message;
use crate::server::home;

/// Name of the key that `--create-api-key` creates.
const ADMIN: &str = "admin";
/// Name of the key of `stepwell dev`.
const DEV: &str = "dev";

/// Makes sure that a file contains a valid API key: creates a key with every permission and the file, which only its
/// owner can read. A file with a valid key is kept. A file with anything else is refused.
pub(crate) async fn create(server: &Server, file: &Path) -> Result<(), Failure> {
    let shown = file.display();
    let at = |error: std::io::Error| Failure::unexpected(format!("{shown}: {error}"));
    let known = match std::fs::read_to_string(file) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(at(error)),
    };
    if !known.is_empty() {
        let Some(key) = server.keys().valid(&known).await? else {
            let why = format!(
                "`--create-api-key {shown}`: the file exists and contains no valid API key of this database. It is not \
                 overwritten: name another file, or remove this one"
            );
            return Err(Failure::new(Code::Conflict, why));
        };
        print_message(&format!("{shown} contains the API key `{}`, which is valid", key.name));
        return Ok(());
    }
    // Before the key is created: a key whose secret cannot be written is useless.
    let mut options = std::fs::OpenOptions::new();
    let mut open = options.write(true).create(true).truncate(false).mode(0o600).open(file).map_err(at)?;
    // An empty file may have been there already.
    open.set_permissions(Permissions::from_mode(0o600)).map_err(at)?;
    let created = server.keys().create(home(), NewKey::new(ADMIN, Grants::all()), Some("server")).await;
    let key = created.map_err(|error| {
        let _ = std::fs::remove_file(file);
        match error {
            DataError::Conflict { .. } => {
                let why = format!(
                    "`--create-api-key {shown}`: an API key named `{ADMIN}` exists already, but {shown} does not \
                     contain its secret. Put the secret there, or revoke the key (`stepwell apikey list --database-url …` \
                     shows its id, `stepwell apikey revoke ID --database-url …` revokes it)"
                );
                Failure::new(Code::Conflict, why)
            }
            error => Failure::unexpected(error),
        }
    })?;
    let secret = key.secret.ok_or_else(|| Failure::unexpected("the new API key has no secret"))?;
    open.write_all(format!("{secret}\n").as_bytes()).and_then(|()| open.sync_all()).map_err(at)?;
    print_message(&format!("created the API key `{ADMIN}` with every permission; its secret is in {shown}"));
    Ok(())
}

/// Returns the API key of `stepwell dev`. The key of an earlier start is kept while it is valid and has every
/// permission. Otherwise it is replaced in the file.
pub(crate) async fn dev(server: &Server, file: &Path) -> Result<String, Failure> {
    let keys = server.keys();
    let known = std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let every = Grants::all().words();
    if keys.valid(&known).await?.is_some_and(|key| key.name == DEV && key.permissions == every) {
        return Ok(known);
    }
    let mut cursor = None;
    loop {
        let page = keys.list(home(), 200, cursor).await?;
        for old in page.items.iter().filter(|key| key.name == DEV) {
            keys.revoke(home(), &old.id, Some(DEV)).await?;
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let new = NewKey::new(DEV, Grants::all());
    let key = keys.create(home(), new, Some(DEV)).await.map_err(Failure::unexpected)?;
    let secret = key.secret.ok_or_else(|| Failure::unexpected("the new API key has no secret"))?;
    write_secret(file, &format!("{secret}\n"))?;
    Ok(secret)
}

/// Writes a file that is created with mode 0600, so that only its owner can read it.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), Failure> {
    let written = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::unexpected(format!("{}: {error}", path.display())))
}
