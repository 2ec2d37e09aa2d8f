//! `stepwell dev`: a development server with SQLite in one directory, example workflows, an API key and a tutorial.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::catalogue::Publish;
use stepwell::flow::Key;
use stepwell::{CatalogueError, Engine};

use crate::config::{Config, Settings, Sources};
use crate::examples::EXAMPLES;
use crate::exit::Failure;
use crate::flows::{self, Delivery};
use crate::log;
use crate::output::{self, print_message};
use crate::own_key;
use crate::server::{follow_keys, listen, local_url, runtime, terminated, until_stopped, url_of};
use crate::start::{self, Opened, Purpose};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory for the database and the key files; created if it does not exist.
    #[arg(long, default_value = "stepwell-data")]
    data: PathBuf,
    /// Address to listen on, such as `127.0.0.1:7077`; port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let data = &options.data;
    std::fs::create_dir_all(data)
        .map_err(|error| Failure::unexpected(format!("{}: {error}", data.display())))?;
    let mut settings = settings(options)?;
    log::init(&settings.log)?;
    runtime()?.block_on(async {
        let opened = Opened::open(&settings, Purpose::Serve).await?;
        let telemetry = start::telemetry(&settings, &opened)?;
        let options = start::options(&settings);
        let engine = start::engine(&settings, opened.store(), options, Some(&telemetry)).await?;
        let server = start::server(&settings, &opened, &engine)?.with_telemetry(telemetry);
        let key = own_key::dev(&server, &data.join("dev.key")).await?;
        let listener = listen(&settings, &server).await?;
        let url = url_of(&listener)?;
        opened.publish_address(&local_url(&listener)?);
        settings.server.public_url.get_or_insert_with(|| url.clone());
        let (server, ring) = flows::add_to(server, &settings, &engine, Delivery::Here)?;
        follow_keys(&settings, ring);
        let server = Arc::new(server);
        let loaded = load_examples(&engine).await?;
        let terminated = terminated()?;
        output::line(&url)?;
        print_message(&story(&url, &key, data, loaded));
        until_stopped(&settings, listener, server, engine, terminated).await
    })
}

/// Reads the settings, with the database and the flow keys in the data directory.
///
/// `stepwell.toml` and the environment apply as for any server. The first start generates the flow keys.
fn settings(options: &Options) -> Result<Settings, Failure> {
    let keys = options.data.join("flow.keys");
    if !keys.exists() {
        let key = Key::generate("dev").map_err(Failure::unexpected)?;
        own_key::write_secret(&keys, &format!("dev:{}\n", key.reveal()))?;
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

/// Publishes the examples that are missing. Returns the number of examples that are available.
async fn load_examples(engine: &Engine) -> Result<usize, Failure> {
    let catalogue = engine.catalogue();
    let mut loaded = 0;
    for (name, text) in EXAMPLES {
        match catalogue.workflow(*name).await {
            Ok(_) => loaded += 1,
            Err(CatalogueError::NotFound { .. }) => {
                // Some examples call actions that a program brings.
                let publish =
                    Publish::text(*text).activate().note("example workflow").allow_unknown_actions();
                match catalogue.publish(*name, publish).await {
                    Ok(_) => loaded += 1,
                    Err(error) => {
                        tracing::debug!(name, %error, "an example could not be published and is skipped");
                    }
                }
            }
            Err(error) => return Err(Failure::unexpected(error)),
        }
    }
    Ok(loaded)
}

/// Returns the tutorial that is printed after the start.
fn story(url: &str, key: &str, data: &Path, loaded: usize) -> String {
    let (data, key_file) = (data.display(), data.join("dev.key"));
    let key_file = key_file.display();
    let json = "-H 'Content-Type: application/json'";
    format!(
        r#"
Stepwell {version} listens on {url}. Data directory: {data}. Example workflows: {loaded}. Press Ctrl-C to stop.
API key with every permission (also in {key_file}; later starts keep it):

  {key}

Try it in another terminal. First set the variables and a helper function:

  export URL={url} KEY=$(cat {key_file})
  api() {{ curl -sS -H "Authorization: Bearer $KEY" "$@"; echo; }}

1. Start a run. It waits for a person:

  api {json} "$URL/v1/runs" -d '{{"workflow": "tour", "input": {{"visitor": "ann"}}}}'
  RUN=…the "id" of the response…
  api "$URL/v1/runs/$RUN"
  api "$URL/v1/waits?run=$RUN"

2. Make the next step fail: store a text where the workflow expects a number.

  api -X PUT {json} "$URL/v1/kv/tour/visitors" -d '{{"value": "oops"}}'

3. Answer the wait. The next step fails, and the run has status "failed" with the error:

  api {json} "$URL/v1/runs/$RUN/signals/welcome" -d '{{"by": "joe"}}'
  api "$URL/v1/runs/$RUN"

4. Repair the value and retry the failed step. The run completes:

  api -X PUT {json} "$URL/v1/kv/tour/visitors" -d '{{"value": 41}}'
  api -X POST "$URL/v1/runs/$RUN/retry"
  api "$URL/v1/runs/$RUN?wait=10s"
  api "$URL/v1/runs/$RUN/history"

API documentation: {url}/docs
"#,
        version = env!("CARGO_PKG_VERSION"),
    )
}
