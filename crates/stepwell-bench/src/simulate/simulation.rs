//! One simulation. Everything that happens follows from its seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::actions::GRACE;
use super::clients;
use super::dice::{Dice, Part};
use super::faults::{Plant, Temper};
use super::plan;
use super::process;
use super::tally::Tally;
use super::tasks::{Owner, Tasks};
use super::world::World;

/// The result of a simulation.
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) hash: u64,
    pub(crate) violation: Option<Violation>,
}

/// A violation of a guarantee.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) seed: u64,
    pub(crate) temper: &'static str,
    pub(crate) what: String,
    pub(crate) trace: Vec<String>,
}

/// A scripted event of a process, a clock or the whole simulation.
#[derive(Debug, Clone, Copy)]
enum Event {
    Begin { slot: usize },
    Kill { slot: usize },
    Freeze { slot: usize, us: u64 },
    Stall { slot: usize, us: u64 },
    Cut { slot: usize, us: u64 },
    Stop { slot: usize },
    Jump { slot: usize, us: i64 },
    Quiet,
}

/// Time at which faults end, in microseconds.
const QUIET_US: i64 = 12_000_000;
/// Time for the remaining runs to end after that, in microseconds.
const PATIENCE_US: i64 = 120_000_000;
/// Maximum number of task steps without any time passing.
const HOT: u64 = 20_000;

struct Simulation {
    world: Arc<World>,
    tasks: Tasks,
    order: Dice,
    plot: Dice,
    slots: usize,
    events: BTreeMap<(i64, u64), Event>,
    count: u64,
    /// Paused tasks, each with the time at which it continues.
    stalled: BTreeMap<u64, i64>,
}

/// Simulates one seed and returns its result.
pub(crate) fn run(seed: u64, plant: Option<Plant>, aloud: bool) -> Outcome {
    let world = Arc::new(World::new(seed, plant, aloud));
    let temper = world.scene().temper.clone();
    let mut plot = Dice::new(seed.wrapping_mul(31), Part::Plot);
    let slots = plot.between(2, 3) as usize;
    let mut simulation = Simulation {
        tasks: Tasks::new(world.board.clone()),
        order: Dice::new(seed, Part::Order),
        world: world.clone(),
        plot,
        slots,
        events: BTreeMap::new(),
        count: 0,
        stalled: BTreeMap::new(),
    };
    simulation.write_plot(&temper);
    let mut plans = plan::plans(&mut Dice::new(seed, Part::Clients));
    plan::tie(&mut plans);
    clients::send_off(&world, plans);
    simulation.go();
    simulation.close();
    let mut scene = world.scene();
    let violation = scene.violation.take().map(|what| Violation {
        seed,
        temper: temper.name,
        what,
        trace: scene.trace.newest(),
    });
    Outcome { tally: scene.tally.clone(), hash: scene.trace.hash(), violation }
}

impl Simulation {
    /// Schedules the faults of the simulation.
    fn write_plot(&mut self, temper: &Temper) {
        for slot in 0..self.slots {
            let at = self.plot.below(300_000) as i64;
            self.at(at, Event::Begin { slot });
        }
        let lists = [
            (temper.kills, 0),
            (temper.freezes, 1),
            (temper.stalls, 2),
            (temper.cuts, 3),
            (temper.stops, 4),
            (u64::from(!temper.is_calm()) * 6, 5),
        ];
        for (most, kind) in lists {
            for _ in 0..self.plot.below(most + 1) {
                let at = self.plot.between(500_000, QUIET_US as u64 - 1) as i64;
                let slot = self.plot.below(self.slots as u64) as usize;
                let us = self.plot.between(500_000, 5_000_000);
                let event = match kind {
                    0 => Event::Kill { slot },
                    1 => Event::Freeze { slot, us },
                    2 => Event::Stall { slot, us },
                    3 => Event::Cut { slot, us },
                    4 => Event::Stop { slot },
                    _ => Event::Jump { slot, us: self.plot.between(0, 40_000_000) as i64 - 20_000_000 },
                };
                self.at(at, event);
            }
        }
        self.at(QUIET_US, Event::Quiet);
    }

    fn at(&mut self, at: i64, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    /// Runs the simulation until everything has ended, or a violation was found.
    fn go(&mut self) {
        let mut hot = 0;
        loop {
            self.reap();
            if self.world.scene().violation.is_some() {
                return;
            }
            let now = self.world.now();
            if let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
                let event = entry.remove();
                self.happen(now, event);
                continue;
            }
            if self.step(now) {
                hot += 1;
                if hot > HOT {
                    self.world.judge(Err(format!("tasks continued {HOT} times without time passing")));
                }
                continue;
            }
            hot = 0;
            if self.is_over(now) {
                return;
            }
            match self.next_time(now) {
                Some(next) => self.world.time.set(next),
                None => return self.world.judge(Err("deadlock: no task can continue".to_owned())),
            }
        }
    }

    fn step(&mut self, now: i64) -> bool {
        let frozen: Vec<i64> = {
            let scene = self.world.scene();
            scene.processes.iter().map(|process| process.frozen_until).collect()
        };
        let stalled = &self.stalled;
        let may_run = |task: u64, owner: Owner| match owner {
            Owner::Outside => true,
            Owner::Process(number) => {
                frozen.get(number).is_none_or(|until| *until <= now)
                    && stalled.get(&task).is_none_or(|until| *until <= now)
            }
        };
        self.tasks.step(&mut self.order, may_run).is_some()
    }

    /// Returns the next time at which something can continue.
    fn next_time(&self, now: i64) -> Option<i64> {
        let event = self.events.keys().next().map(|(at, _)| *at);
        let scene = self.world.scene();
        let thaws = scene.processes.iter().map(|process| process.frozen_until).filter(|at| *at > now);
        let thaw = thaws.chain(self.stalled.values().copied().filter(|at| *at > now)).min();
        [event, thaw, self.world.time.next_sleeper()].into_iter().flatten().min()
    }

    /// Adopts new tasks, and ends the tasks of dead processes.
    fn reap(&mut self) {
        loop {
            let lives: Vec<bool> = {
                let scene = self.world.scene();
                scene.processes.iter().map(|process| process.lives).collect()
            };
            self.tasks.adopt(|owner| match owner {
                Owner::Outside => true,
                Owner::Process(number) => lives.get(number).copied().unwrap_or(false),
            });
            let Some((number, slot, engine)) = self.next_dead() else { return };
            self.tasks.end_of(Owner::Process(number));
            drop(engine);
            let quiet = self.world.scene().quiet_since.is_some();
            if !quiet {
                let at = self.world.now() + self.plot.between(20_000, 4_000_000) as i64;
                self.at(at, Event::Begin { slot });
            }
        }
    }

    fn next_dead(&self) -> Option<(usize, usize, Option<stepwell::Engine>)> {
        let mut scene = self.world.scene();
        let number = scene.doomed.pop()?;
        let process = scene.processes.get_mut(number)?;
        Some((number, process.slot, process.engine.take()))
    }

    /// Returns the process of a slot that is alive.
    fn living(&self, slot: usize) -> Option<usize> {
        let scene = self.world.scene();
        (0..scene.processes.len()).rev().find(|number| {
            let process = &scene.processes[*number];
            process.slot == slot && process.lives
        })
    }

    fn happen(&mut self, now: i64, event: Event) {
        match event {
            Event::Begin { slot } if self.living(slot).is_none() => {
                process::begin(&self.world, slot);
            }
            Event::Begin { .. } => {}
            Event::Quiet => self.quiet(now),
            Event::Kill { slot }
            | Event::Freeze { slot, .. }
            | Event::Stall { slot, .. }
            | Event::Cut { slot, .. }
            | Event::Stop { slot }
            | Event::Jump { slot, .. } => {
                if let Some(number) = self.living(slot) {
                    self.befall(now, number, event);
                }
            }
        }
    }

    fn befall(&mut self, now: i64, number: usize, event: Event) {
        let task = self.tasks.any_of(Owner::Process(number), &mut self.plot);
        let mut scene = self.world.scene();
        let scene = &mut *scene;
        let Some(process) = scene.processes.get_mut(number) else { return };
        match event {
            Event::Kill { .. } => return scene.kill(now, number, "at a random moment"),
            Event::Freeze { us, .. } => {
                process.frozen_until = now + us as i64;
                scene.tally.freezes += 1;
            }
            Event::Stall { us, .. } => {
                self.stalled.extend(task.map(|task| (task, now + us as i64)));
                process.was_stalled = true;
                scene.tally.freezes += 1;
            }
            Event::Cut { us, .. } => process.cut_until = now + us as i64,
            Event::Jump { us, .. } => {
                process.wall.jump(us);
                scene.tally.clock_jumps += 1;
                self.world.time.wake_all();
            }
            Event::Stop { .. } if !process.stops => {
                process.stops = true;
                scene.tally.stops += 1;
                let stop = stop(self.world.clone(), number, process.engine.clone());
                self.world.board.spawn(Owner::Process(number), Box::pin(stop));
            }
            Event::Stop { .. } | Event::Begin { .. } | Event::Quiet => return,
        }
        scene.trace.line(now, format_args!("p{number}: {event:?}"));
    }

    /// Ends all faults and makes sure that at least one process is alive.
    fn quiet(&mut self, now: i64) {
        self.stalled.clear();
        let only_one = self.plot.chance(500);
        let mut living = Vec::new();
        {
            let mut scene = self.world.scene();
            let scene = &mut *scene;
            scene.trace.line(now, format_args!("quiet from here on"));
            scene.quiet_since = Some(now);
            scene.oracle.quiet_since = Some(now);
            for (number, process) in scene.processes.iter_mut().enumerate().filter(|(_, p)| p.lives) {
                (process.frozen_until, process.cut_until) = (0, 0);
                if !process.stops {
                    living.push(number);
                }
            }
        }
        let calm = self.world.scene().temper.is_calm();
        if only_one && !calm {
            let spared = self.plot.below(living.len().max(1) as u64) as usize;
            for (index, number) in living.iter().enumerate() {
                if index != spared {
                    self.world.kill(*number, "without replacement");
                }
            }
        }
        if living.is_empty() || !only_one {
            (0..self.slots).for_each(|slot| self.at(now, Event::Begin { slot }));
            // A stopping process may still occupy its slot; try again when it has ended.
            (0..self.slots).for_each(|slot| self.at(now + 8_000_000, Event::Begin { slot }));
        }
    }

    /// Returns `true` when everything has ended. Reports a violation after the time limit.
    fn is_over(&self, now: i64) -> bool {
        let mut scene = self.world.scene();
        let scene = &mut *scene;
        let Some(since) = scene.quiet_since else { return false };
        if scene.clients_left == 0 && scene.oracle.unended().is_none() {
            return true;
        }
        if now < since + PATIENCE_US {
            return false;
        }
        let stuck = match scene.oracle.unended() {
            Some(run) => format!(
                "{}: has not ended: {} in {:?}, owned by {:?}",
                run.name,
                run.status,
                run.places(),
                run.owner.map(process::number_of)
            ),
            None => format!("{} clients are still waiting", scene.clients_left),
        };
        scene.judge(Err(stuck));
        true
    }

    /// Makes the final checks and drops all tasks and engines.
    fn close(&mut self) {
        {
            let mut scene = self.world.scene();
            if scene.violation.is_none() {
                let verdict = scene.oracle.finish(&self.world.memory);
                scene.judge(verdict);
            }
        }
        let numbers = 0..self.world.scene().processes.len();
        for number in numbers {
            let engine = self.world.scene().processes[number].engine.take();
            self.tasks.end_of(Owner::Process(number));
            drop(engine);
        }
        self.tasks.end_of(Owner::Outside);
        self.tasks.adopt(|_| false);
    }
}

/// Stops a process gracefully.
async fn stop(world: Arc<World>, number: usize, engine: Option<stepwell::Engine>) {
    if let Some(engine) = engine {
        engine.stop(GRACE).await;
    }
    world.trace(format_args!("p{number} has stopped"));
    world.judge(check_stopped(&world, number));
    world.kill(number, "after a graceful stop");
}

/// Checks that a process that stopped without disturbance has released all its runs.
fn check_stopped(world: &World, number: usize) -> Result<(), String> {
    let scene = world.scene();
    let undisturbed = scene.temper.name == "orderly" && !scene.processes[number].was_stalled;
    let owned = scene.oracle.runs.values().find(|run| run.owner.map(process::number_of) == Some(number));
    match owned.filter(|_| undisturbed) {
        Some(run) => Err(format!("{}: p{number} has stopped and still owns the run", run.name)),
        None => Ok(()),
    }
}
