//! The `three-processes` workload: three processes share one database, and a random one is killed repeatedly. Then the
//! same happens while connections are cut and the server itself is killed and restarted. In the end every workflow must
//! have completed, and every step must be committed once.

use std::time::{Duration, Instant};

use stepwell_postgres::test_schema::ENGINE;

use crate::StoreKind;
use crate::child::Victim;
use crate::kill_engine::{Said, Setting, figures};
use crate::script::Random;
use crate::site::{Place, Site};

const PROCESSES: u64 = 3;
/// One of this many disturbances kills the server; the others cut connections or kill a process.
const SERVER_DIES: u64 = 5;

/// Options of the `three-processes` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of workflows of ten steps, in each of the two parts.
    #[arg(long, default_value_t = 1_000)]
    workflows: u64,
    /// Number of killed processes in the first part, and of all disturbances in the second.
    #[arg(long, default_value_t = 40)]
    kills: u64,
    /// Seed of the disturbances and their times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Uses 90 workflows and 6 kills only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON lines only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (workflows, kills) = if options.short { (90, 6) } else { (options.workflows.max(1), options.kills) };
    let runtime = crate::runtime()?;
    let mut random = Random::new(options.seed);
    let mut is_clean = true;
    for server in [false, true] {
        let mut site = Site::new(StoreKind::Postgres)?;
        let place = site.place(&runtime, "runs")?;
        let folder = site.folder().to_owned();
        let setting = Setting { kind: StoreKind::Postgres, place, folder, workflows, plant: None };
        let begin = Instant::now();
        let mut pack = Pack::start(&setting)?;
        let mut done = Done::default();
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(100 + random.next() % 300));
            let what = if server { random.next() % SERVER_DIES } else { 1 };
            match what {
                0 => {
                    let cluster = site
                        .cluster()
                        .ok_or("this workload kills the database server: run it without --database-url")?;
                    cluster.kill()?;
                    cluster.restart()?;
                    done.server_kills += 1;
                }
                1 | 2 => done.process_kills += u64::from(pack.kill_one(&mut random)?),
                _ => done.connections_cut += runtime.block_on(cut(&setting.place))?,
            }
        }
        pack.end()?;
        let (mut line, clean) = figures(&setting, &pack.said)?;
        line["workload"] = "three-processes".into();
        line["part"] = if server { "server" } else { "processes" }.into();
        line["process_kills"] = done.process_kills.into();
        line["connections_cut"] = done.connections_cut.into();
        line["server_kills"] = done.server_kills.into();
        line["seconds"] = begin.elapsed().as_secs().into();
        // A disconnected process may have its effect after the process that took over the run.
        is_clean &= clean && (server || line["uncounted_tries"] == 0);
        if !options.json {
            eprintln!("{}: {} of {workflows} finished", line["part"], line["finished"]);
        }
        println!("{line}");
    }
    if is_clean { Ok(()) } else { Err("workflows, steps or effects are missing or duplicated".to_owned()) }
}

/// Counts of the disturbances.
#[derive(Default)]
struct Done {
    process_kills: u64,
    connections_cut: u64,
    server_kills: u64,
}

/// Cuts the connections of all processes and returns their number.
async fn cut(place: &Place) -> Result<u64, String> {
    let Place::Postgres(test_schema) = place else {
        return Err("`three-processes` needs PostgreSQL".to_owned());
    };
    let failed = |error: tokio_postgres::Error| error.to_string();
    let (client, driver) =
        tokio_postgres::connect(test_schema.admin(), tokio_postgres::NoTls).await.map_err(failed)?;
    tokio::spawn(driver);
    let cut = "select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity where usename = $1) cut";
    let row = client.query_one(cut, &[&ENGINE]).await.map_err(failed)?;
    Ok(row.get::<_, i64>(0) as u64)
}

/// The processes. Each starts its own third of the workflows and executes all due runs.
struct Pack<'a> {
    setting: &'a Setting,
    victims: Vec<Option<Victim>>,
    said: Said,
    count: u64,
}

impl<'a> Pack<'a> {
    fn start(setting: &'a Setting) -> Result<Self, String> {
        let mut pack = Pack { setting, victims: Vec::new(), said: Said::default(), count: 0 };
        for number in 0..PROCESSES {
            let victim = pack.begin(number)?;
            pack.victims.push(Some(victim));
        }
        Ok(pack)
    }

    fn begin(&mut self, number: u64) -> Result<Victim, String> {
        let first = self.said.first_open(number, PROCESSES, self.setting.workflows);
        let mut arguments = self.setting.arguments(first);
        arguments.extend(["--stride".to_owned(), PROCESSES.to_string()]);
        self.count += 1;
        Victim::start(&format!("process-{number}-{}", self.count), &arguments)
    }

    /// Kills a process and starts it again. Returns `false` if it had finished its work.
    fn kill_one(&mut self, random: &mut Random) -> Result<bool, String> {
        let number = random.next() % PROCESSES;
        let Some(mut victim) = self.victims[number as usize].take() else { return Ok(false) };
        if !victim.is_going()? {
            victim.end()?.iter().for_each(|line| self.said.hear(line));
            return Ok(false);
        }
        victim.kill()?.iter().for_each(|line| self.said.hear(line));
        let victim = self.begin(number)?;
        self.victims[number as usize] = Some(victim);
        Ok(true)
    }

    /// Waits for all processes, then starts every workflow again in a last process.
    fn end(&mut self) -> Result<(), String> {
        for victim in self.victims.drain(..).flatten() {
            victim.end()?.iter().for_each(|line| self.said.hear(line));
        }
        let survivor = Victim::start("survivor", &self.setting.arguments(0))?;
        survivor.end()?.iter().for_each(|line| self.said.hear(line));
        Ok(())
    }
}
