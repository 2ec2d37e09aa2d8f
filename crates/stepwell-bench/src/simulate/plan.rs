//! The plans of the clients of a simulation, derived from the seed.

use serde_json::{Value, json};
use stepwell_core::RunId;
use uuid::Uuid;

use super::dice::Dice;

/// The plan of one client: a run, and requests for it in order.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) workflow: &'static str,
    pub(crate) input: Value,
    pub(crate) keyed: bool,
    /// A fixed id for the run, if it needs one.
    pub(crate) run: Option<RunId>,
    pub(crate) begins_us: u64,
    /// Run that must exist before the client begins.
    pub(crate) after_run: Option<RunId>,
    /// Number of concurrent starts.
    pub(crate) starters: u64,
    pub(crate) delay_ms: Option<u64>,
    pub(crate) deadline_ms: Option<u64>,
    /// `true` if the client closes the inbox without waiting for its signals to be applied.
    pub(crate) is_hasty: bool,
    pub(crate) wishes: Vec<Wish>,
}

/// A request of a client for its run.
#[derive(Debug, Clone)]
pub(crate) enum Wish {
    /// Waits for a while.
    Pause { us: u64 },
    /// Sends a signal, `sends` times with the same id.
    Signal { name: &'static str, sig: String, sends: u64, with_id: bool, kept_ms: Option<u64> },
    /// Waits until these signals and the signals of these runs have been applied.
    Applied { sigs: Vec<String>, told_by: Vec<RunId> },
    /// Cancels the run, repeating the request until it is answered.
    Cancel,
    /// Writes a number into the context of the run.
    Patch { number: u64 },
    /// Signals the run, or starts it with the signal.
    StartOrSignal { name: &'static str, sig: String },
    /// Suspends the run for a while, then resumes it.
    Suspend { us: u64 },
    /// Retries the run after failures and resumes it, until it has ended.
    End,
}

const KINDS: [&str; 9] = ["chain", "flaky", "mended", "gate", "both", "race", "inbox", "parent", "nap"];

/// Time within which clients begin, in microseconds.
const BEGINS_WITHIN_US: u64 = 6_000_000;

/// Creates the plans of all clients of a seed.
pub(crate) fn plans(dice: &mut Dice) -> Vec<Plan> {
    let count = dice.between(4, 10);
    let mut plans = Vec::new();
    for number in 0..count {
        let kind = dice.pick(&KINDS);
        let plan = plan(dice, number, kind);
        plans.extend(tellers(dice, &plan, count + 10 * (number + 1)));
        plans.push(plan);
    }
    plans
}

fn plan(dice: &mut Dice, number: u64, workflow: &'static str) -> Plan {
    let keyed = workflow != "chain" || dice.chance(500);
    let mut plan = Plan {
        number,
        workflow,
        input: json!({"plan": number, "keyed": keyed}),
        keyed,
        run: None,
        begins_us: dice.below(BEGINS_WITHIN_US),
        after_run: None,
        starters: if keyed && dice.chance(300) { 2 } else { 1 },
        delay_ms: dice.chance(100).then(|| dice.between(100, 2_000)),
        deadline_ms: None,
        is_hasty: false,
        wishes: Vec::new(),
    };
    match workflow {
        "flaky" => plan.input["fails"] = dice.pick(&["always", "never", "sometimes", "sometimes"]).into(),
        "gate" => {
            if dice.chance(300) {
                let sig = format!("GO {number} first");
                plan.wishes.push(Wish::StartOrSignal { name: "GO", sig });
            }
            signals(dice, &mut plan, "GO", 3);
        }
        "both" => signals(dice, &mut plan, "NOTE", 2),
        "mended" => plan.wishes.push(Wish::End),
        "parent" => children(dice, &mut plan),
        "inbox" => adds(dice, &mut plan),
        _ => {}
    }
    if matches!(workflow, "chain" | "gate" | "both" | "race" | "flaky" | "nap") && dice.chance(250) {
        for number in 0..dice.between(1, 3) {
            plan.wishes.push(Wish::Pause { us: dice.below(700_000) });
            plan.wishes.push(Wish::Patch { number });
        }
    }
    if matches!(workflow, "chain" | "both" | "race") && dice.chance(200) {
        plan.wishes.push(Wish::Pause { us: dice.below(500_000) });
        plan.wishes.push(Wish::Suspend { us: dice.between(100_000, 2_000_000) });
        plan.wishes.push(Wish::End);
    }
    if matches!(workflow, "chain" | "gate" | "both" | "nap") && dice.chance(150) {
        plan.wishes.push(Wish::Pause { us: dice.below(2_000_000) });
        plan.wishes.push(Wish::Cancel);
    } else if matches!(workflow, "chain" | "gate" | "both" | "nap") && dice.chance(100) {
        plan.deadline_ms = Some(dice.between(100, 5_000));
    }
    plan
}

/// Adds up to `most` signals of a name. A signal without an id is sent once.
fn signals(dice: &mut Dice, plan: &mut Plan, name: &'static str, most: u64) {
    for count in 0..dice.between(0, most) {
        let with_id = dice.chance(750);
        plan.wishes.push(Wish::Pause { us: dice.pick(&[0, 300_000, 3_000_000]) + dice.below(1_500_000) });
        plan.wishes.push(Wish::Signal {
            name,
            sig: format!("{name} {} {count}", plan.number),
            sends: if with_id { dice.between(1, 3) } else { 1 },
            with_id,
            kept_ms: dice.chance(250).then(|| dice.between(1, 2_000)),
        });
    }
}

fn children(dice: &mut Dice, plan: &mut Plan) {
    let kind = dice.pick(&["well", "well", "napper", "fails"]);
    let child = |dice: &mut Dice| if dice.chance(600) { kind } else { "well" };
    let children: Vec<_> = (0..dice.between(1, 4)).map(|_| child(dice)).collect();
    let sleeps = children.contains(&"napper");
    plan.input["children"] = children.into();
    // A napper sleeps until it is cancelled with its parent.
    if sleeps && dice.chance(500) {
        plan.deadline_ms = Some(dice.between(500, 6_000));
    } else if sleeps || dice.chance(150) {
        plan.wishes.push(Wish::Pause { us: dice.below(3_000_000) });
        plan.wishes.push(Wish::Cancel);
    }
}

/// Adds signals to an inbox run, and the signal that closes it.
fn adds(dice: &mut Dice, plan: &mut Plan) {
    plan.run = Some(run_of(plan.number));
    let sigs: Vec<_> = (0..dice.between(1, 5)).map(|count| format!("ADD {} {count}", plan.number)).collect();
    plan.input["wants"] = sigs.clone().into();
    for sig in &sigs {
        plan.wishes.push(Wish::Pause { us: dice.pick(&[0, 0, 400_000]) });
        plan.wishes.push(Wish::Signal {
            name: "ADD",
            sig: sig.clone(),
            sends: dice.between(1, 3),
            with_id: true,
            kept_ms: None,
        });
    }
    // The inbox is closed either after all signals were applied, or as soon as they were acknowledged.
    plan.is_hasty = dice.chance(400);
    if !plan.is_hasty {
        plan.wishes.push(Wish::Applied { sigs, told_by: Vec::new() });
    }
    let sig = format!("CLOSE {}", plan.number);
    plan.wishes.push(Wish::Signal { name: "CLOSE", sig, sends: 1, with_id: true, kept_ms: None });
}

/// Creates chains that signal an inbox run when they end.
fn tellers(dice: &mut Dice, inbox: &Plan, first: u64) -> Vec<Plan> {
    let Some(run) = inbox.run.filter(|_| !inbox.is_hasty) else { return Vec::new() };
    (0..dice.between(0, 2))
        .map(|count| {
            let mut plan = plan(dice, first + count, "chain");
            plan.run = Some(run_of(plan.number));
            plan.keyed = true;
            plan.input["keyed"] = true.into();
            plan.input["tells"] = run.to_string().into();
            plan.after_run = Some(run);
            plan.deadline_ms = None;
            plan.wishes.retain(|wish| !matches!(wish, Wish::Cancel));
            plan
        })
        .collect()
}

/// Makes each inbox wait for the signals of its chains.
pub(crate) fn tie(plans: &mut [Plan]) {
    let tells: Vec<_> = plans
        .iter()
        .filter_map(|plan| Some((plan.input["tells"].as_str()?.parse::<RunId>().ok()?, plan.run?)))
        .collect();
    for plan in plans {
        let own = plan.run;
        for wish in &mut plan.wishes {
            if let Wish::Applied { told_by, .. } = wish {
                told_by.extend(tells.iter().filter(|(to, _)| Some(*to) == own).map(|(_, from)| *from));
            }
        }
    }
}

fn run_of(plan: u64) -> RunId {
    RunId::new(Uuid::from_u128((1 << 100) | u128::from(plan)))
}
