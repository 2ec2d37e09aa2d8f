//! `stepwell dev`: a server to try things out with: SQLite in a folder, the examples, a key, and what to do next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::catalogue::Publish;
use stepwell::flow::Key;
use stepwell::{CatalogueError, Engine, Grants};
use stepwell_server::api::{NewKey, Server};

use crate::config::{Config, Settings, Sources};
use crate::examples::EXAMPLES;
use crate::exit::Failure;
use crate::log;
use crate::output::{self, talk};
use crate::server::{home, listen, runtime, until_stopped, url_of};
use crate::start::{self, Opened};

/// What the key of this server is called.
const NAME: &str = "dev";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder that everything is in; created if it is not there.
    #[arg(long, default_value = "stepwell-data")]
    data: PathBuf,
    /// The address to listen at; port 0 = any free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let data = &options.data;
    std::fs::create_dir_all(data)
        .map_err(|error| Failure::unexpected(format!("{}: {error}", data.display())))?;
    let settings = settings(options)?;
    log::init(&settings.log)?;
    runtime()?.block_on(async {
        let opened = Opened::open(&settings).await?;
        let telemetry = start::telemetry(&settings, &opened)?;
        let options = start::options(&settings);
        let engine = start::engine(&settings, opened.store(), options, Some(&telemetry)).await?;
        let server = Arc::new(start::server(&settings, &opened, &engine)?.with_telemetry(telemetry));
        let loaded = load_examples(&engine).await?;
        let key = fresh_key(&server, data).await?;
        let listener = listen(&settings, &server).await?;
        let url = url_of(&listener)?;
        output::line(&url)?;
        talk(&story(&url, &key, data, loaded));
        until_stopped(&settings, listener, server, engine).await
    })
}

/// The settings, with everything in the folder. `stepwell.toml` and the environment count as for any server.
fn settings(options: &Options) -> Result<Settings, Failure> {
    let keys = options.data.join("flow.keys");
    if !keys.exists() {
        let key = Key::generate("dev").map_err(Failure::unexpected)?;
        write_secret(&keys, &format!("dev:{}\n", key.reveal()))?;
    }
    let text = |path: &Path| Some(path.display().to_string());
    let database = format!("sqlite:{}", options.data.join("stepwell.sqlite").display());
    let flags = vec![
        ("database.url", "--data", Some(database)),
        ("flows.key_file", "--data", text(&keys)),
        ("server.listen", "--listen", options.listen.clone()),
    ];
    Ok(Config::read(&Sources::of(None, flags))?.settings)
}

/// A file that only its owner can read.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let written = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::unexpected(format!("{}: {error}", path.display())))
}

/// Publishes the examples that are not there yet; says how many there are.
async fn load_examples(engine: &Engine) -> Result<usize, Failure> {
    let catalogue = engine.catalogue();
    let mut loaded = 0;
    for (name, text) in EXAMPLES {
        match catalogue.workflow(*name).await {
            Ok(_) => loaded += 1,
            Err(CatalogueError::NotFound { .. }) => {
                let publish = Publish::text(*text).activate().note("an example");
                match catalogue.publish(*name, publish).await {
                    Ok(_) => loaded += 1,
                    Err(error) => {
                        tracing::debug!(name, %error, "an example needs what this server does not have");
                    }
                }
            }
            Err(error) => return Err(Failure::unexpected(error)),
        }
    }
    Ok(loaded)
}

/// A new key for whoever has started the server; the one of the start before is no longer good.
async fn fresh_key(server: &Server, data: &Path) -> Result<String, Failure> {
    let keys = server.keys();
    let mut cursor = None;
    loop {
        let page = keys.list(home(), 200, cursor).await?;
        for old in page.items.iter().filter(|key| key.name == NAME) {
            keys.revoke(home(), &old.id, Some(NAME)).await?;
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let new = NewKey { name: NAME.to_owned(), permissions: Grants::all(), ttl: None };
    let key = keys.create(home(), new, Some(NAME)).await?;
    let secret = key.secret.ok_or_else(|| Failure::unexpected("a new key has a secret"))?;
    write_secret(&data.join("dev.key"), &format!("{secret}\n"))?;
    Ok(secret)
}

/// What to do next.
fn story(url: &str, key: &str, data: &Path, loaded: usize) -> String {
    let (data, key_file) = (data.display(), data.join("dev.key"));
    let key_file = key_file.display();
    let json = "-H 'Content-Type: application/json'";
    format!(
        r#"
Stepwell {version} answers at {url}. State is in {data}; {loaded} example workflows are loaded. Stop with Ctrl-C.
This start's API key (also in {key_file}; the next start makes another):

  {key}

Try it, in another terminal. Have the key at hand:

  export URL={url} KEY=$(cat {key_file})
  api() {{ curl -sS -H "Authorization: Bearer $KEY" "$@"; echo; }}

1. Start a run. It waits for a person:

  api {json} "$URL/v1/runs" -d '{{"workflow": "tour", "input": {{"visitor": "ann"}}}}'
  RUN=…the id it gave…
  api "$URL/v1/runs/$RUN"
  api "$URL/v1/waits?run=$RUN"

2. Break something, so that the next step fails: the counter is not a number.

  api -X PUT {json} "$URL/v1/kv/tour/visitors" -d '{{"value": "oops"}}'

3. Answer what it waits for. The step after it fails, and the run stands still with the error:

  api {json} "$URL/v1/runs/$RUN/signals/welcome" -d '{{"by": "joe"}}'
  api "$URL/v1/runs/$RUN"

4. Repair it, and try the failed step again. The run finishes:

  api -X PUT {json} "$URL/v1/kv/tour/visitors" -d '{{"value": 41}}'
  api -X POST "$URL/v1/runs/$RUN/retry"
  api "$URL/v1/runs/$RUN?wait=10s"
  api "$URL/v1/runs/$RUN/history"

Everything else: {url}/docs
"#,
        version = env!("CARGO_PKG_VERSION"),
    )
}
