//! Random workflows, built from blocks so that most of them are valid, and random inputs for their runs.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use serde_json::{Value, json};
use stepwell_core::retry::Retry;
use stepwell_core::spec::{
    ActionSpec, ChildRule, Completion, Firing, Guard, Join, LoopStep, Place, Quorum, Tolerance, Transition,
    TransitionTrigger, Wait,
};
use stepwell_core::{Name, Spec};

/// A part of a workflow that is entered at one place and leads to the next block.
#[derive(Debug, Clone)]
pub(crate) enum Block {
    /// A step that is left automatically.
    Step,
    /// A step that is left by a signal.
    Signal(u8),
    /// A wait for a signal, with an optional time limit.
    Wait { signal: u8, limit_ms: Option<u64> },
    /// A step that is left after `ms` or by signal 0; with `until`, at the time in `context.until`.
    Sleep { ms: u64, until: bool },
    /// A step that is left by an action.
    Act { retries: u32, on_error: OnError, save: bool },
    /// The blocks, followed by an action whose retries go back to before the blocks.
    Again { retries: u32, on_error: OnError, blocks: Vec<Block> },
    /// Starts children and waits for them by the rule.
    Children { rule: ChildRule, on_error: OnError },
    /// Branches with conditions. Signal 0 skips them.
    Choice(Vec<(Condition, Vec<Block>)>),
    /// A fork of the branches with a join.
    Fork { branches: Vec<Vec<Block>>, quorum: u32, cancel_rest: bool },
    /// A loop that repeats while `context.n` is below 3.
    Loop(Vec<Block>),
    /// A step that a signal leads to the end `quit`, and that can also be left to the next block.
    Quit(u8),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum OnError {
    Stay,
    GoOn,
    End,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Condition {
    Always,
    Small,
    Large,
    Lucky,
    BeenThere,
}

/// A random workflow. [`Plan::spec`] builds its spec.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) blocks: Vec<Block>,
    pub(crate) firing: Firing,
    pub(crate) completion: Completion,
}

/// A random occurrence in a run. Its input depends on the state of the run.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// One of the inputs that the run is ready for.
    Likely {
        which: usize,
        n: i64,
    },
    Signal {
        signal: u8,
        payload: Value,
    },
    UnknownSignal,
    Advance,
    AdvanceOne(usize),
    Pass(u64),
    Timer(usize),
    Done {
        call: usize,
        n: i64,
        children: u32,
    },
    Failed {
        call: usize,
        retries: u32,
        is_final: bool,
    },
    Retry {
        call: usize,
        manual: bool,
    },
    Child {
        activation: usize,
        child: u32,
        how: u8,
    },
    Move {
        activation: Option<usize>,
        to: usize,
    },
    Resolve(usize),
    Patch(i64),
    Cancel,
}

pub(crate) const SIGNALS: u8 = 3;

pub(crate) fn signal(number: u8) -> Name {
    Name::from(format!("S{number}"))
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let firing = prop_oneof![3 => Just(Firing::First), 2 => Just(Firing::All)];
    let completion = prop_oneof![Just(Completion::FirstEnd), Just(Completion::AllBranches)];
    let blocks = vec(block(), 1..5);
    (blocks, firing, completion).prop_map(|(blocks, firing, completion)| Plan { blocks, firing, completion })
}

fn block() -> BoxedStrategy<Block> {
    let on_error = || prop_oneof![Just(OnError::Stay), Just(OnError::GoOn), Just(OnError::End)];
    let rule = prop_oneof![
        Just(ChildRule::All),
        Just(ChildRule::AllSettled),
        Just(ChildRule::Any),
        (1_u32..4).prop_map(ChildRule::N),
    ];
    let condition = prop_oneof![
        Just(Condition::Always),
        Just(Condition::Small),
        Just(Condition::Large),
        Just(Condition::Lucky),
        Just(Condition::BeenThere),
    ];
    let leaf = prop_oneof![
        Just(Block::Step),
        (0..SIGNALS).prop_map(Block::Signal),
        (0..SIGNALS, of(1_u64..50)).prop_map(|(signal, limit_ms)| Block::Wait { signal, limit_ms }),
        (1_u64..50, any::<bool>()).prop_map(|(ms, until)| Block::Sleep { ms, until }),
        (0_u32..3, on_error(), any::<bool>()).prop_map(|(retries, on_error, save)| Block::Act {
            retries,
            on_error,
            save
        }),
        (rule, on_error()).prop_map(|(rule, on_error)| Block::Children { rule, on_error }),
        (0..SIGNALS).prop_map(Block::Quit),
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        let again = (1_u32..4, on_error(), vec(inner.clone(), 0..3));
        let way = (condition.clone(), vec(inner.clone(), 0..3));
        let branches = vec(vec(inner.clone(), 0..3), 1..4);
        prop_oneof![
            vec(way, 1..4).prop_map(Block::Choice),
            (branches, any::<u32>(), any::<bool>()).prop_map(|(branches, quorum, cancel_rest)| Block::Fork {
                branches,
                quorum,
                cancel_rest
            }),
            vec(inner, 0..3).prop_map(Block::Loop),
            again.prop_map(|(retries, on_error, blocks)| Block::Again { retries, on_error, blocks }),
        ]
    })
    .boxed()
}

pub(crate) fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let payload = prop_oneof![
        4 => (0_i64..6).prop_map(|n| json!({ "n": n })),
        1 => Just(Value::Null),
        1 => Just(json!("not an object")),
    ];
    let one = prop_oneof![
        40 => (any::<usize>(), 0_i64..6).prop_map(|(which, n)| Happening::Likely { which, n }),
        12 => (0..SIGNALS, payload).prop_map(|(signal, payload)| Happening::Signal { signal, payload }),
        1 => Just(Happening::UnknownSignal),
        16 => Just(Happening::Advance),
        4 => any::<usize>().prop_map(Happening::AdvanceOne),
        6 => (1_u64..60).prop_map(Happening::Pass),
        6 => any::<usize>().prop_map(Happening::Timer),
        10 => (any::<usize>(), 0_i64..6, 0_u32..4)
            .prop_map(|(call, n, children)| Happening::Done { call, n, children }),
        3 => (any::<usize>(), 0_u32..4, any::<bool>())
            .prop_map(|(call, retries, is_final)| Happening::Failed { call, retries, is_final }),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(call, manual)| Happening::Retry { call, manual }),
        2 => (of(any::<usize>()), any::<usize>()).prop_map(|(activation, to)| Happening::Move { activation, to }),
        8 => (any::<usize>(), 0_u32..4, 0_u8..3)
            .prop_map(|(activation, child, how)| Happening::Child { activation, child, how }),
        3 => any::<usize>().prop_map(Happening::Resolve),
        2 => (0_i64..6).prop_map(Happening::Patch),
    ];
    let last = of(Just(Happening::Cancel));
    (vec(one, 1..60), last).prop_map(|(mut all, last)| {
        all.extend(last);
        all
    })
}

/// Returns the next number of a pseudo-random sequence.
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

impl Block {
    /// Returns the block with other settings and the same places.
    fn varied(&self, seed: &mut u64) -> Block {
        let number = draw(seed);
        let on_error = [OnError::Stay, OnError::GoOn, OnError::End][number as usize % 3];
        let mut all = |blocks: &[Block]| blocks.iter().map(|block| block.varied(seed)).collect::<Vec<_>>();
        match self {
            Block::Wait { signal, .. } => Block::Wait {
                signal: *signal,
                limit_ms: (number.is_multiple_of(2)).then_some(number % 50 + 1),
            },
            Block::Sleep { .. } => Block::Sleep { ms: number % 50 + 1, until: number.is_multiple_of(2) },
            Block::Act { save, .. } => Block::Act { retries: number as u32 % 3, on_error, save: *save },
            Block::Again { blocks, .. } => {
                Block::Again { retries: number as u32 % 3 + 1, on_error, blocks: all(blocks) }
            }
            Block::Children { .. } => {
                let rules = [ChildRule::All, ChildRule::AllSettled, ChildRule::Any, ChildRule::N(2)];
                Block::Children { rule: rules[number as usize % 4], on_error }
            }
            Block::Choice(ways) => {
                Block::Choice(ways.iter().map(|(condition, blocks)| (*condition, all(blocks))).collect())
            }
            Block::Fork { branches, .. } => Block::Fork {
                branches: branches.iter().map(|blocks| all(blocks)).collect(),
                quorum: number as u32,
                cancel_rest: number.is_multiple_of(2),
            },
            Block::Loop(blocks) => Block::Loop(all(blocks)),
            Block::Step | Block::Signal(_) | Block::Quit(_) => self.clone(),
        }
    }
}

impl Plan {
    /// Returns the workflow with other settings and the same places.
    pub(crate) fn varied(&self, mut seed: u64) -> Plan {
        let blocks = self.blocks.iter().map(|block| block.varied(&mut seed)).collect();
        Plan { blocks, ..self.clone() }
    }

    pub(crate) fn spec(&self) -> Spec {
        let spec = Spec::new("random").firing(self.firing).completion(self.completion);
        let spec = spec.end_with("done", json!({"n": {"$expr": "context.n"}})).end("quit").end("failed");
        let spec = (0..SIGNALS - 1).fold(spec, |spec, number| spec.signal(signal(number)));
        let spec = spec.signal_with(signal(SIGNALS - 1), json!({"type": ["object", "null"]}));
        let mut layout = Layout { spec, places: 0 };
        // Transitions that never fire lead to `quit` and `failed`, so that these ends are always reachable.
        let first = layout.sequence(&self.blocks, "done".into());
        let begin = layout.step();
        layout.way(&begin, &first, |t| t.priority(9));
        layout.way(&begin, "quit", |t| t.when("context.n < 0"));
        layout.way(&begin, "failed", |t| t.when("context.n < 0"));
        layout.spec.initial = Some(begin);
        layout.name_joined_places();
        layout.spec
    }
}

struct Layout {
    spec: Spec,
    places: usize,
}

impl Layout {
    fn fresh(&mut self) -> Name {
        self.places += 1;
        Name::from(format!("p{}", self.places))
    }

    fn put(&mut self, place: Place) -> Name {
        let name = self.fresh();
        self.spec.places.insert(name.clone(), place);
        name
    }

    fn step(&mut self) -> Name {
        self.put(Place::Step {})
    }

    fn way(&mut self, from: &Name, to: &str, change: impl FnOnce(Transition) -> Transition) {
        let id = format!("t{}", self.spec.transitions.len());
        self.spec.transitions.push(change(Transition::new(id, from.clone(), to)));
    }

    /// Adds the blocks in sequence. Returns the first place of the first block.
    fn sequence(&mut self, blocks: &[Block], next: Name) -> Name {
        blocks.iter().rev().fold(next, |next, block| self.block(block, &next))
    }

    fn block(&mut self, block: &Block, next: &Name) -> Name {
        match block {
            Block::Choice(ways) => self.choice(ways, next),
            Block::Fork { branches, quorum, cancel_rest } => self.fork(branches, *quorum, *cancel_rest, next),
            Block::Loop(body) => self.repeat(body, next),
            Block::Children { rule, on_error } => self.children(*rule, *on_error, next),
            Block::Again { retries, on_error, blocks } => self.again(*retries, *on_error, blocks, next),
            Block::Wait { signal: number, limit_ms } => {
                let wait = Wait { signal: Some(signal(*number)), ..Wait::default() };
                let here = self.put(Place::Wait(wait));
                self.way(&here, next, |t| t);
                if let Some(ms) = limit_ms {
                    self.way(&here, next, |t| t.after_ms(*ms));
                }
                here
            }
            Block::Step | Block::Signal(_) | Block::Sleep { .. } | Block::Act { .. } | Block::Quit(_) => {
                let here = self.step();
                self.leave(block, &here, next);
                here
            }
        }
    }

    /// Adds the transitions out of a step.
    fn leave(&mut self, block: &Block, here: &Name, next: &Name) {
        match block {
            Block::Signal(number) => self.way(here, next, |t| t.on_signal(signal(*number))),
            Block::Sleep { ms, until: false } => {
                self.way(here, next, |t| t.after_ms(*ms));
                self.way(here, next, |t| t.on_signal(signal(0)));
            }
            Block::Sleep { until: true, .. } => {
                self.way(here, next, |t| t.on(TransitionTrigger::Until("context.until".to_owned())));
            }
            Block::Act { retries, on_error, save } => {
                let save_as = save.then(|| "saved".to_owned());
                let input = json!({"n": {"$expr": "context.n"}, "at": {"$expr": "meta.version"}});
                let retry = Retry { attempts: *retries, place: on_error.place(next), ..Retry::default() };
                let action = ActionSpec { name: "work".into(), input, save_as, version: None };
                self.act(here, next, |t| t.action_with(action).retry(retry));
            }
            Block::Quit(number) => {
                self.way(here, "quit", |t| t.on_signal(signal(*number)));
                self.way(here, next, |t| t.when("context.n > 1"));
                self.way(here, next, |t| t.on_signal(signal((number + 1) % SIGNALS)));
            }
            _ => self.way(here, next, |t| t),
        }
    }

    /// Adds a transition with an action. With `firing: all`, which allows no actions, the transition has none.
    fn act(&mut self, from: &Name, to: &str, change: impl FnOnce(Transition) -> Transition) {
        match self.spec.firing {
            Firing::First => self.way(from, to, change),
            Firing::All => self.way(from, to, |t| t),
        }
    }

    fn children(&mut self, rule: ChildRule, on_error: OnError, next: &Name) -> Name {
        let wait = Wait { children: Some(rule), error_place: on_error.place(next), ..Wait::default() };
        let parts = self.put(Place::Wait(wait));
        self.way(&parts, next, |t| t);
        let here = self.step();
        self.act(&here, &parts, |t| t.action("start"));
        here
    }

    fn again(&mut self, retries: u32, on_error: OnError, blocks: &[Block], next: &Name) -> Name {
        let (before, last) = (self.step(), self.step());
        let place = on_error.place(next);
        let retry = Retry { attempts: retries, place, target: Some(before.clone()), ..Retry::default() };
        self.act(&last, next, |t| t.action("work").retry(retry));
        let first = self.sequence(blocks, last);
        self.way(&before, &first, |t| t);
        before
    }

    fn choice(&mut self, ways: &[(Condition, Vec<Block>)], next: &Name) -> Name {
        let here = self.step();
        for (condition, blocks) in ways {
            let first = self.sequence(blocks, next.clone());
            let guard = condition.guard(&here);
            self.way(&here, &first, |t| Transition { guard, ..t });
        }
        self.way(&here, next, |t| t.on_signal(signal(0)));
        here
    }

    fn fork(&mut self, branches: &[Vec<Block>], quorum: u32, cancel_rest: bool, next: &Name) -> Name {
        let tolerate = match quorum % 6 {
            0 => Some(Tolerance::Any),
            1 => Some(Tolerance::Count(1)),
            2 => Some(Tolerance::Percent(50)),
            _ => None,
        };
        let quorum = match quorum % (branches.len() as u32 + 2) {
            0 => Quorum::All,
            1 => Quorum::Any,
            n => Quorum::N(n - 1),
        };
        let join =
            self.put(Place::Join(Join { of: Vec::new(), quorum, cancel_rest, tolerate, ..Join::default() }));
        self.way(&join, next, |t| t);
        let branches = branches.iter().map(|blocks| self.sequence(blocks, join.clone())).collect();
        self.put(Place::Fork(stepwell_core::spec::Fork { branches, each: None }))
    }

    fn repeat(&mut self, body: &[Block], next: &Name) -> Name {
        let (before, turn) = (self.step(), self.step());
        let first = self.sequence(body, turn.clone());
        self.way(&before, &first, |t| t.loop_step(LoopStep::Enter));
        self.way(&turn, &first, |t| t.when("context.n < 3").loop_step(LoopStep::Next));
        self.way(&turn, next, |t| t.when("context.n >= 3").loop_step(LoopStep::Leave));
        before
    }

    /// Lists in each join the places that lead to it.
    fn name_joined_places(&mut self) {
        let joins: Vec<_> = self.spec.places.keys().cloned().collect();
        for join in joins {
            let by_transition = self.spec.transitions.iter().filter(|t| {
                t.to == join || t.retry.as_ref().is_some_and(|retry| retry.place.as_ref() == Some(&join))
            });
            let mut of: Vec<_> = by_transition.map(|t| t.from.clone()).collect();
            of.extend(self.spec.places.iter().filter_map(|(name, place)| match place {
                Place::Fork(fork) if fork.branches.contains(&join) => Some(name.clone()),
                Place::Wait(wait) if wait.error_place.as_ref() == Some(&join) => Some(name.clone()),
                _ => None,
            }));
            if let Some(Place::Join(found)) = self.spec.places.get_mut(&join) {
                found.of = of;
            }
        }
    }
}

impl OnError {
    fn place(self, next: &Name) -> Option<Name> {
        match self {
            OnError::Stay => None,
            OnError::GoOn => Some(next.clone()),
            OnError::End => Some("failed".into()),
        }
    }
}

impl Condition {
    fn guard(self, here: &Name) -> Option<Guard> {
        match self {
            Condition::Always => None,
            Condition::Small => Some(Guard::expr("context.n < 3")),
            Condition::Large => Some(Guard::expr("context.n >= 3")),
            Condition::Lucky => Some(Guard::named("lucky")),
            Condition::BeenThere => Some(Guard::Or(vec![
                Guard::And(vec![Guard::Completed(here.clone()), Guard::named("lucky")]),
                Guard::Not(Box::new(Guard::Active("done".into()))),
            ])),
        }
    }
}
