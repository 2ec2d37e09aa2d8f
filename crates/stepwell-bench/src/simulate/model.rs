//! The oracle's model of the simulated workflows: a small table of allowed moves, independent of the engine.

/// The model of one workflow.
pub(crate) struct Flow {
    pub(crate) name: &'static str,
    /// Places of a new run.
    pub(crate) begins: To,
    pub(crate) moves: &'static [Move],
}

/// One allowed move of a workflow.
#[derive(Debug)]
pub(crate) struct Move {
    /// Action word in the history entry.
    pub(crate) word: &'static str,
    /// Transition in the history entry, or empty.
    pub(crate) transition: &'static str,
    /// Place of the activation that moves.
    pub(crate) from: &'static str,
    /// `true` if the activation must be waiting.
    pub(crate) waits: bool,
    pub(crate) to: To,
    /// Action whose result the move applies, or empty.
    pub(crate) action: &'static str,
    /// Delay of a timer, counted from entering the place.
    pub(crate) after_ms: Option<u64>,
}

/// The target of a move.
#[derive(Debug, Clone, Copy)]
pub(crate) enum To {
    /// A step, or a join that has fired.
    Step(&'static str),
    /// A place that waits.
    Wait(&'static str),
    /// Several places at once, each with `true` if it waits.
    Fork(&'static [(&'static str, bool)]),
    /// A join that fires after `needs` arrivals. With `ends_rest` it then ends the other branches.
    Join { place: &'static str, needs: usize, ends_rest: bool },
    /// No place: the run is completed.
    End,
    /// The same place, which no longer waits.
    Resolved,
    /// The same place, which still waits.
    Counted,
}

/// Returns the pause before a retry of an action in milliseconds, or `None` if there is no such retry.
pub(crate) fn retry_pause_ms(action: &str, retry: u64) -> Option<u64> {
    match action {
        "flaky" => [200, 400, 500].get(retry.checked_sub(1)? as usize).copied(),
        "add" => (1..=60).contains(&retry).then_some(80),
        _ => None,
    }
}

/// Returns `true` for actions whose commit increments a counter cell.
pub(crate) fn counts(action: &str) -> bool {
    matches!(action, "count" | "add")
}

/// The places of a run, sorted, each with `true` if it waits.
pub(crate) type Places = Vec<(String, bool)>;

impl To {
    /// Returns the places after a move of an activation that has left the place `left`.
    pub(crate) fn enter(self, mut places: Places, left: &(String, bool)) -> Places {
        let mut add = |place: &str, waits: bool| places.push((place.to_owned(), waits));
        match self {
            To::Step(place) => add(place, false),
            To::Wait(place) => add(place, true),
            To::Fork(branches) => branches.iter().for_each(|(place, waits)| add(place, *waits)),
            To::End => places.clear(),
            To::Resolved => add(&left.0, false),
            To::Counted => add(&left.0, true),
            To::Join { place, needs, ends_rest } => {
                let arrived = |known: &(String, bool)| known.0 == place && known.1;
                if places.iter().filter(|known| arrived(known)).count() + 1 < needs {
                    places.push((place.to_owned(), true));
                } else {
                    places.retain(|known| !arrived(known) && !ends_rest);
                    places.push((place.to_owned(), false));
                }
            }
        }
        places.sort();
        places
    }
}

impl Flow {
    pub(crate) fn of(name: &str) -> Option<&'static Flow> {
        FLOWS.iter().find(|flow| flow.name == name)
    }

    /// Returns the moves that match the action word and transition of a history entry.
    pub(crate) fn moves<'a>(
        &'static self,
        word: &'a str,
        transition: &'a str,
    ) -> impl Iterator<Item = &'static Move> + 'a {
        self.moves.iter().filter(move |known| known.word == word && known.transition == transition)
    }

    /// Returns the move of a transition whose action succeeds.
    pub(crate) fn by_transition(&self, transition: &str) -> Option<&Move> {
        self.moves.iter().find(|known| known.transition == transition)
    }

    /// Returns `true` if a signal of this name moves the run from these places.
    pub(crate) fn takes(&self, signal: &str, places: &Places) -> bool {
        let resolves = |known: &&Move| match signal {
            "GO" => known.word == "__resolve_wait:answer",
            "NOTE" => known.word == "__resolve_wait:r0",
            other => known.word == other,
        };
        let here = |known: &Move| places.iter().any(|(p, waits)| p == known.from && *waits == known.waits);
        self.moves.iter().filter(resolves).any(here)
    }
}

const fn auto(
    word: &'static str,
    transition: &'static str,
    from: &'static str,
    action: &'static str,
    to: To,
) -> Move {
    Move { word, transition, from, waits: false, to, action, after_ms: None }
}

const fn timer(
    word: &'static str,
    transition: &'static str,
    from: (&'static str, bool),
    action: &'static str,
    after_ms: u64,
    to: To,
) -> Move {
    Move { word, transition, from: from.0, waits: from.1, to, action, after_ms: Some(after_ms) }
}

/// A move of a waiting place that no transition makes.
const fn told(word: &'static str, from: &'static str, to: To) -> Move {
    Move { word, transition: "", from, waits: true, to, action: "", after_ms: None }
}

/// The move after the last retry of an action has failed.
const fn spent(word: &'static str, from: &'static str, to: To) -> Move {
    Move { word, transition: "", from, waits: false, to, action: "", after_ms: None }
}

const JOIN_BOTH: To = To::Join { place: "meet", needs: 2, ends_rest: false };
const JOIN_FIRST: To = To::Join { place: "first", needs: 1, ends_rest: true };
const SPLIT: To = To::Fork(&[("l0", false), ("r0", true)]);

const FLOWS: &[Flow] = &[
    Flow {
        name: "chain",
        begins: To::Step("s0"),
        moves: &[
            auto("__auto:first", "first", "s0", "work", To::Step("s1")),
            auto("__auto:second", "second", "s1", "count", To::Step("s2")),
            auto("__auto:pass", "pass", "s2", "", To::Step("s3")),
            auto("__auto:last", "last", "s3", "tell", To::End),
        ],
    },
    Flow {
        name: "flaky",
        begins: To::Step("trying"),
        moves: &[
            auto("__auto:try", "try", "trying", "flaky", To::End),
            spent("__error:try", "trying", To::Step("handled")),
            auto("__auto:repair", "repair", "handled", "count", To::End),
        ],
    },
    Flow {
        name: "mended",
        begins: To::Step("broken"),
        moves: &[
            auto("__auto:mend", "mend", "broken", "fragile", To::Step("whole")),
            auto("__auto:finish", "finish", "whole", "count", To::End),
        ],
    },
    Flow {
        name: "gate",
        begins: To::Step("asking"),
        moves: &[
            auto("__auto:ask", "ask", "asking", "work", To::Wait("answer")),
            told("__resolve_wait:answer", "answer", To::Resolved),
            auto("__auto:go", "go", "answer", "count", To::End),
            timer("__timer:answer", "give-up", ("answer", true), "work", 3_000, To::End),
        ],
    },
    Flow {
        name: "both",
        begins: To::Step("begin"),
        moves: &[
            auto("__auto:start", "start", "begin", "", SPLIT),
            auto("__auto:left1", "left1", "l0", "work", To::Step("l1")),
            auto("__auto:left2", "left2", "l1", "count", JOIN_BOTH),
            told("__resolve_wait:r0", "r0", To::Resolved),
            auto("__auto:noted", "noted", "r0", "work", To::Step("r1")),
            timer("__timer:r0", "unnoted", ("r0", true), "", 4_000, To::Step("r1")),
            auto("__auto:right2", "right2", "r1", "count", JOIN_BOTH),
            auto("__auto:last", "last", "meet", "work", To::End),
        ],
    },
    Flow {
        name: "race",
        begins: To::Fork(&[("x", false), ("y", false)]),
        moves: &[
            auto("__auto:run-x", "run-x", "x", "count", JOIN_FIRST),
            auto("__auto:run-y", "run-y", "y", "count", JOIN_FIRST),
            auto("__auto:won", "won", "first", "work", To::End),
        ],
    },
    Flow {
        name: "inbox",
        begins: To::Step("open"),
        moves: &[
            auto("ADD", "add", "open", "add", To::Step("open")),
            auto("CLOSE", "close", "open", "", To::End),
        ],
    },
    Flow {
        name: "parent",
        begins: To::Step("begin"),
        moves: &[
            auto("__auto:spawn", "spawn", "begin", "spawn", To::Wait("kids")),
            told("__child:kids", "kids", To::Counted),
            told("__child:kids", "kids", To::Step("bereft")),
            told("__resolve_wait:kids", "kids", To::Resolved),
            auto("__auto:gather", "gather", "kids", "count", To::End),
            auto("__auto:mourn", "mourn", "bereft", "work", To::End),
        ],
    },
    Flow {
        name: "child",
        begins: To::Step("c0"),
        moves: &[
            auto("__auto:one", "one", "c0", "work", To::Step("c1")),
            auto("__auto:two", "two", "c1", "doomed", To::End),
        ],
    },
    Flow {
        name: "napper",
        begins: To::Step("asleep"),
        moves: &[timer("__timer:asleep", "wake", ("asleep", false), "", 10_000_000, To::End)],
    },
    Flow {
        name: "nap",
        begins: To::Step("asleep"),
        moves: &[
            timer("__timer:asleep", "stir", ("asleep", false), "", 1_200, To::Step("dozing")),
            timer("__timer:dozing", "rise", ("dozing", false), "count", 700, To::End),
        ],
    },
];
