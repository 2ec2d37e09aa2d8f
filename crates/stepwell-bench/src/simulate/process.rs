//! A simulated process: the host of its engine, and its start.

use std::sync::Arc;

use stepwell::host::{BoxFuture, Host, Ids, Spawn};
use stepwell::{Engine, Options};
use stepwell_store::ProcessId;
use uuid::Uuid;

use super::actions;
use super::faults::Plant;
use super::tasks::Owner;
use super::time::{ProcessClock, Wall};
use super::wire::Wire;
use super::workflows;
use super::world::{Process, World};

/// Lease of a process in milliseconds: without a heartbeat it counts as expired after this time.
pub(crate) const LEASE_MS: u64 = 2_000;

/// Starts a new process in a slot and returns its number.
pub(crate) fn begin(world: &Arc<World>, slot: usize) -> usize {
    let wall = Wall::default();
    let number = {
        let now = world.now();
        let mut scene = world.scene();
        let number = scene.processes.len();
        scene.processes.push(Process {
            slot,
            lives: true,
            stops: false,
            engine: None,
            frozen_until: 0,
            cut_until: 0,
            was_stalled: false,
            wall: wall.clone(),
        });
        scene.trace.line(now, format_args!("p{number} starts"));
        number
    };
    let life = live(world.clone(), number, wall);
    world.board.spawn(Owner::Process(number), Box::pin(life));
    number
}

async fn live(world: Arc<World>, number: usize, wall: Wall) {
    loop {
        match engine(&world, number, &wall).await {
            Ok(engine) => {
                if let Some(process) = world.scene().processes.get_mut(number) {
                    process.engine = Some(engine);
                }
                return;
            }
            Err(error) => {
                world.trace(format_args!("p{number} cannot start: {error}"));
                world.sleep(200_000).await;
            }
        }
    }
}

async fn engine(world: &Arc<World>, number: usize, wall: &Wall) -> Result<Engine, stepwell::EngineError> {
    let settings = world.scene().settings;
    let follows_wall = world.plant == Some(Plant::WallClockTimers);
    let host = Host {
        clock: Arc::new(ProcessClock {
            time: world.time.clone(),
            wall: if follows_wall { wall.clone() } else { Wall::default() },
        }),
        spawn: Arc::new(ProcessTasks { world: world.clone(), number }),
        ids: Arc::new(ProcessIds { world: world.clone(), number }),
    };
    let options = Options {
        max_runs: settings.max_runs,
        lease_ms: LEASE_MS,
        poll_ms: settings.poll_ms,
        max_crashes: settings.max_crashes,
        maintenance_interval_ms: 5_000,
        ..Options::default()
    };
    let store = Arc::new(Wire { world: world.clone(), process: number });
    let mut builder = Engine::builder(store).host(host).options(options);
    for definition in workflows::all() {
        builder = builder.workflow(definition.clone());
    }
    actions::register(builder, world, number).start().await
}

/// The tasks of a process. They end with it.
struct ProcessTasks {
    world: Arc<World>,
    number: usize,
}

impl Spawn for ProcessTasks {
    fn spawn(&self, task: BoxFuture<()>) {
        self.world.board.spawn(Owner::Process(self.number), task);
    }
}

/// A generator of ids that sort by creation order and contain the number of their process.
struct ProcessIds {
    world: Arc<World>,
    number: usize,
}

impl Ids for ProcessIds {
    fn next(&self) -> Uuid {
        let mut scene = self.world.scene();
        scene.ids_made += 1;
        let chance = u128::from(scene.ids.number() >> 16) << 16;
        Uuid::from_u128((u128::from(scene.ids_made) << 64) | chance | (self.number as u128 & 0xFFFF))
    }
}

/// Returns the number of the simulated process with this id.
pub(crate) fn number_of(process: ProcessId) -> usize {
    (process.0.as_u128() & 0xFFFF) as usize
}
