//! The moves of loops, error scopes and forks over lists: what is kept while the run is in them, and what comes of it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::definition::{CollectNode, EachNode, JoinNode, LoopNode, OverNode, PlaceIndex, PlaceKind};
use crate::expr::Budget;
use crate::frame::{Frame, List, ListId};
use crate::guard::{VARS, View};
use crate::ids::Name;
use crate::refusal::{DecideError, Failure};
use crate::save::Save;
use crate::snapshot::{ActivationStatus, Branch, Gave, Passing, PassingId};
use crate::template::Template;
use crate::turn::{Origin, Turn, Way, check_context};

/// Rounds that one change may begin; then the run rests in the loop, and goes on with the next change.
const ROUNDS: u32 = 8;

/// Places that may be entered one because of the other before an error is left to whoever asked.
const MAX_DEPTH: u32 = 100;

impl JoinNode {
    /// How many branches of this passing make it fire.
    pub(crate) fn needed(&self, passing: &Passing) -> u32 {
        if self.is_all && passing.list.is_some() { passing.branches } else { self.quorum }
    }
}

impl Turn<'_> {
    /// Leaves the loops and scopes that a place is not in; what their locals had hidden is there again.
    pub(crate) fn leave_frames(&self, place: PlaceIndex, origin: &mut Origin) {
        let node = &self.compiled.places[place];
        let stays = |frame: &&Frame| {
            let scope = self.compiled.by_name.get(&frame.place);
            frame.place == node.name || scope.is_some_and(|scope| node.inside.contains(scope))
        };
        let kept = origin.frames.iter().take_while(stays).count();
        while origin.frames.len() > kept {
            self.leave_frame(origin);
        }
    }

    fn leave_frame(&self, origin: &mut Origin) -> Option<Frame> {
        let mut frame = origin.frames.pop()?;
        let mut forget = |name: &String| drop(origin.locals.remove(name));
        match self.compiled.place(&frame.place).map(|node| &node.kind) {
            Some(PlaceKind::Loop(node)) => {
                node.index.iter().for_each(&mut forget);
                if let OverNode::Items { item, .. } = &node.over {
                    forget(item);
                }
            }
            Some(PlaceKind::Catch { local, .. }) => forget(local),
            _ => {}
        }
        origin.locals.extend(std::mem::take(&mut frame.hidden));
        Some(frame)
    }

    /// An error scope is entered: its local holds the error until the run leads out of it.
    pub(crate) fn enter_catch(
        &mut self,
        place: PlaceIndex,
        local: &str,
        first: PlaceIndex,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = &self.compiled.places[place].name;
        if origin.frames.last().is_some_and(|frame| frame.place == *name) {
            self.leave_frame(&mut origin);
        }
        let error = match std::mem::take(&mut origin.gave) {
            Gave::Failed(failure) => serde_json::to_value(failure).expect("a failure is plain data"),
            Gave::Value(_) | Gave::Nothing | Gave::Leaves => Value::Null,
        };
        push_frame(&mut origin, name, None, [local]);
        origin.locals.insert(local.to_owned(), error);
        self.pass_through(name);
        self.enter(first, origin, event)
    }

    /// A loop is come to: from elsewhere it begins, from its own body its next round does.
    pub(crate) fn enter_loop(
        &mut self,
        place: PlaceIndex,
        node: &LoopNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = &self.compiled.places[place].name;
        let goes_on = origin.frames.last().is_some_and(|frame| frame.place == *name);
        if goes_on && origin.gave == Gave::Leaves {
            return self.leave_loop(place, node, origin, event);
        }
        let ready = if goes_on {
            self.round_over(name, node, &mut origin, event)
        } else {
            self.begin_loop(name, node, &mut origin, event)
        };
        if let Err(error) = ready {
            return self.fail_in(node.error_place, origin, error);
        }
        if self.rounds >= ROUNDS {
            return self.stay(place, ActivationStatus::Active, origin, event).map(drop);
        }
        self.go_round(place, node, origin, event)
    }

    fn begin_loop(
        &mut self,
        name: &Name,
        node: &LoopNode,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let (list, item) = match &node.over {
            OverNode::Items { list, item } => {
                let (id, list) = self.list(name, list, &origin.locals, event)?;
                self.check_count(name, list.items().len(), node.most)?;
                (Some(id), Some(item.as_str()))
            }
            OverNode::While(_) => (None, None),
        };
        origin.gave = Gave::Nothing;
        push_frame(origin, name, list, item.into_iter().chain(node.index.as_deref()));
        Ok(())
    }

    fn round_over(
        &mut self,
        name: &Name,
        node: &LoopNode,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let given =
            node.collect.as_ref().map(|collect| self.given(name, collect, origin, event)).transpose()?;
        origin.gave = Gave::Nothing;
        if let Some(frame) = origin.frames.last_mut() {
            frame.results.extend(given.flatten());
            frame.round = frame.round.saturating_add(1);
        }
        Ok(())
    }

    /// Begins the round that is next, or leaves the loop.
    pub(crate) fn go_round(
        &mut self,
        place: PlaceIndex,
        node: &LoopNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        self.rounds += 1;
        let name = &self.compiled.places[place].name;
        let round = origin.frames.last().map_or(0, |frame| frame.round);
        let begins = match self.round(name, node, round, &mut origin, event) {
            Ok(begins) => begins,
            Err(error) => return self.fail_in(node.error_place, origin, error),
        };
        if begins {
            if let Some(index) = &node.index {
                origin.locals.insert(index.clone(), round.into());
            }
            self.pass_through(name);
            return self.enter(node.first, origin, event);
        }
        self.leave_loop(place, node, origin, event)
    }

    /// The loop is over: what its rounds gave is put where it belongs, and the run goes on after it.
    fn leave_loop(
        &mut self,
        place: PlaceIndex,
        node: &LoopNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = &self.compiled.places[place].name;
        origin.gave = Gave::Nothing;
        let results = self.leave_frame(&mut origin).map(|frame| frame.results).unwrap_or_default();
        if let Some(save) = node.collect.as_ref().and_then(|collect| collect.save.as_ref()) {
            origin.gives(&results);
            let saved = self.save(save, &mut origin.locals, Value::Array(results));
            if let Err(error) = saved {
                return self.fail_in(node.error_place, origin, error);
            }
        }
        self.pass_through(name);
        self.enter(node.then, origin, event)
    }

    /// Whether there is such a round; its item is put where it can be seen.
    fn round(
        &self,
        name: &Name,
        node: &LoopNode,
        round: u32,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<bool, DecideError> {
        let begins = match &node.over {
            OverNode::Items { item, .. } => {
                let list = origin.frames.last().and_then(|frame| frame.list.clone());
                let items = self.items(name, list.as_ref())?;
                let next = items.items().get(round as usize).cloned();
                let begins = next.is_some();
                if let Some(next) = next {
                    origin.locals.insert(item.clone(), next);
                }
                begins
            }
            OverNode::While(condition) => {
                let mut locals = origin.locals.clone();
                locals.extend(node.index.clone().map(|index| (index, round.into())));
                let view = View::new(&self.next, &locals, event, self.now);
                condition.holds(&view, || format!("condition of `{name}`"))?
            }
        };
        if begins {
            self.check_count(name, round as usize + 1, node.most)?;
        }
        Ok(begins)
    }

    /// No loop or fork has more rounds or items than its author, and the limits, allow.
    fn check_count(&self, name: &Name, count: usize, most: Option<u32>) -> Result<(), DecideError> {
        let most = u64::from(most.unwrap_or(u32::MAX)).min(self.compiled.limits.loop_rounds);
        if count as u64 <= most {
            return Ok(());
        }
        let message = format!("`{name}` has {count} rounds or more, and at most {most} are allowed");
        Err(DecideError::Raised(Failure::new("tooManyRounds", message).finally()))
    }

    fn items(&self, name: &Name, list: Option<&ListId>) -> Result<List, DecideError> {
        let known = list.and_then(|id| self.next.lists.0.get(id));
        known.cloned().ok_or_else(|| DecideError::ListMissing { place: name.clone() })
    }

    /// Makes the list that a loop or fork goes through.
    fn list(
        &mut self,
        name: &Name,
        source: &Template,
        locals: &Map<String, Value>,
        event: &Value,
    ) -> Result<(ListId, List), DecideError> {
        let view = View::new(&self.next, locals, event, self.now);
        let items = source
            .render_list(&view, &mut Budget::default())
            .map_err(|error| DecideError::Template { at: format!("items of `{name}`"), error })?;
        let (id, list) = List::new(items);
        self.next.lists.0.insert(id.clone(), list.clone());
        Ok((id, list))
    }

    /// What a round or a branch gave, as it is collected; nothing of one that failed and is passed over.
    fn given(
        &self,
        name: &Name,
        collect: &CollectNode,
        origin: &Origin,
        event: &Value,
    ) -> Result<Option<Value>, DecideError> {
        let value = match (&origin.gave, &collect.result) {
            (Gave::Failed(failure), _) => {
                return Ok(collect.settled.then(|| json!({ "status": "failed", "error": failure })));
            }
            (_, Some(result)) => {
                let view = View::new(&self.next, &origin.locals, event, self.now);
                result
                    .render(&view, &mut Budget::default())
                    .map_err(|error| DecideError::Template { at: format!("result of `{name}`"), error })?
            }
            (Gave::Value(value), None) => value.clone(),
            (Gave::Nothing | Gave::Leaves, None) => Value::Null,
        };
        Ok(Some(if collect.settled { json!({ "status": "completed", "output": value }) } else { value }))
    }

    /// Puts a value where it belongs, if it fits there.
    pub(crate) fn save(
        &mut self,
        save: &Save,
        locals: &mut Map<String, Value>,
        value: Value,
    ) -> Result<(), DecideError> {
        self.put(save, locals, value)?;
        if save.is_local { Ok(()) } else { check_context(self.compiled, &self.next.context) }
    }

    /// The same without asking whether the context still fits its schema.
    pub(crate) fn put(
        &mut self,
        save: &Save,
        locals: &mut Map<String, Value>,
        value: Value,
    ) -> Result<(), DecideError> {
        let unfit = |message| DecideError::Raised(Failure::new("cannotSave", message).finally());
        if save.is_local {
            self.compiled.limits.nesting("a local", &value)?;
            if let [root, name, _, ..] = save.path.as_slice()
                && root == VARS
            {
                self.take_over(name, locals);
            }
            return save.put(locals, value).map_err(unfit);
        }
        let context = Arc::make_mut(&mut self.next.context);
        if !context.is_object() {
            *context = Value::Object(Map::new());
        }
        match context {
            Value::Object(fields) => save.put(fields, value).map_err(unfit),
            _ => Ok(()),
        }
    }

    /// A branch of a fork over a list writes into a variable: what the run has under that name becomes its own first.
    fn take_over(&self, name: &str, locals: &mut Map<String, Value>) {
        let shared = self.next.context.get(VARS).and_then(|vars| vars.get(name));
        let own = locals.entry(VARS).or_insert_with(|| Value::Object(Map::new()));
        if let (Some(shared), Value::Object(own)) = (shared, own)
            && !own.contains_key(name)
        {
            own.insert(name.to_owned(), shared.clone());
        }
    }

    /// Something cannot be done in a place: where its errors lead, or an error of the whole change.
    pub(crate) fn fail_in(
        &mut self,
        error_place: Option<PlaceIndex>,
        origin: Origin,
        error: DecideError,
    ) -> Result<(), DecideError> {
        match error_place {
            // Places whose errors lead to one another would be entered without end.
            Some(place) if error.can_be_caught() && self.depth < MAX_DEPTH => {
                self.fail_with(place, origin, &error.failure(), Way::In)
            }
            _ => Err(error),
        }
    }

    /// A fork over a list is entered: a new passing, and as many branches as may be open at once.
    pub(crate) fn open_each(
        &mut self,
        place: PlaceIndex,
        each: &EachNode,
        join: Option<PlaceIndex>,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = self.compiled.places[place].name.clone();
        origin.gave = Gave::Nothing;
        let (id, list) = match self.list(&name, &each.items, &origin.locals, event) {
            Ok(list) => list,
            Err(error) => return self.fail_in(each.error_place, origin, error),
        };
        if let Err(error) = self.check_count(&name, list.items().len(), each.most) {
            return self.fail_in(each.error_place, origin, error);
        }
        let total = u32::try_from(list.items().len()).unwrap_or(u32::MAX);
        self.pass_through(&name);
        if total == 0 {
            let Some(join) = join else { return Ok(()) };
            return self.fire_join(join, origin, Vec::new(), event);
        }
        let passing = self.number();
        self.next.passings.push(Passing {
            branches: total,
            list: Some(id),
            ..Passing::opened(passing, name, &origin)
        });
        // A branch may begin with several activations: so many of them as there is room for.
        let (most, before) = (self.compiled.limits.activations, self.next.activations.len() as u64);
        let mut width = 1;
        for begun in 0..u64::from(total.min(each.limit)) {
            if begun > 0 && self.next.activations.len() as u64 + width > most {
                break;
            }
            self.begin_branch(passing, event)?;
            width = width.max((self.next.activations.len() as u64).saturating_sub(before) / (begun + 1));
        }
        Ok(())
    }

    /// Begins the next branch of a fork over a list, if there is one and it is still wanted.
    pub(crate) fn begin_branch(&mut self, id: PassingId, event: &Value) -> Result<(), DecideError> {
        let compiled = self.compiled;
        let Some(passing) = self.next.passings.iter_mut().find(|passing| passing.id == id) else {
            return Ok(());
        };
        let index = passing.begun;
        if passing.fired || index >= passing.branches {
            return Ok(());
        }
        passing.begun += 1;
        let Some(PlaceKind::Fork { branches, each: Some(each), .. }) =
            compiled.place(&passing.fork).map(|node| &node.kind)
        else {
            return Ok(());
        };
        let (fork, list) = (passing.fork.clone(), passing.list.clone());
        let mut origin = passing.inside(index);
        let item = self.items(&fork, list.as_ref())?.items().get(index as usize).cloned();
        origin.locals.insert(each.item.clone(), item.unwrap_or_default());
        origin.locals.extend(each.index.clone().map(|local| (local, index.into())));
        branches.first().map_or(Ok(()), |&first| self.enter(first, origin, event))
    }

    /// A branch of a fork over a list comes to the join: it is counted, and the next one begins.
    pub(crate) fn arrive_each(
        &mut self,
        place: PlaceIndex,
        node: &JoinNode,
        branch: Branch,
        given: Option<Value>,
        event: &Value,
    ) -> Result<(), DecideError> {
        let Some(passing) = self.next.passings.iter_mut().find(|passing| passing.id == branch.passing) else {
            return Ok(());
        };
        passing.arrived += 1;
        passing.results.extend(given.map(|given| (branch.index, given)));
        if passing.arrived < node.needed(passing) {
            self.to_begin.push_back(branch.passing);
            return Ok(());
        }
        passing.fired = true;
        let results = std::mem::take(&mut passing.results).into_values().collect();
        let after = passing.after();
        // Those that never began are not waited for; those that are still going are, unless they are ended.
        passing.begun = passing.branches;
        if node.cancel_rest {
            self.end_branches(branch.passing);
        }
        self.fire_join(place, after, results, event)
    }

    /// A join fires: what its branches gave is put where it belongs, and the run goes on after it.
    pub(crate) fn fire_join(
        &mut self,
        place: PlaceIndex,
        mut after: Origin,
        results: Vec<Value>,
        event: &Value,
    ) -> Result<(), DecideError> {
        let PlaceKind::Join(node) = &self.compiled.places[place].kind else { return Ok(()) };
        self.leave_frames(place, &mut after);
        if let Some(save) = node.collect.as_ref().and_then(|collect| collect.save.as_ref()) {
            after.gives(&results);
            let saved = self.save(save, &mut after.locals, Value::Array(results));
            if let Err(error) = saved {
                return self.fail_in(node.error_place, after, error);
            }
        }
        self.stay(place, ActivationStatus::Active, after, event).map(drop)
    }

    /// What a branch that comes to a join gives, if that is collected. A failure that is neither collected nor passed over is
    /// handed back, if the join says where it leads; to one that says nothing of failures every branch is the same.
    pub(crate) fn given_to_join(
        &self,
        place: PlaceIndex,
        node: &JoinNode,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<Option<Value>, DecideError> {
        let is_kept = node.pass_over || node.collect.as_ref().is_some_and(|collect| collect.settled);
        if let (Gave::Failed(failure), Some(_), false) = (&origin.gave, node.error_place, is_kept) {
            return Err(DecideError::Raised(failure.clone()));
        }
        let name = &self.compiled.places[place].name;
        let given =
            node.collect.as_ref().map(|collect| self.given(name, collect, origin, event)).transpose()?;
        origin.gave = Gave::Nothing;
        Ok(given.flatten())
    }

    /// A branch has failed, or what it gives cannot be made: the others end, and the run goes where errors lead.
    pub(crate) fn fail_join(
        &mut self,
        error_place: Option<PlaceIndex>,
        (branch, locals): (Branch, &Map<String, Value>),
        error: DecideError,
    ) -> Result<(), DecideError> {
        let id = branch.passing;
        let passing = self.next.passing(id);
        let mut after = passing.map(Passing::after).unwrap_or_default();
        if passing.is_some_and(|passing| passing.list.is_none()) {
            let others =
                self.next.activations.iter().filter(|one| one.branch.is_some_and(|b| b.passing == id));
            merge_vars(&mut after, others.map(|one| &one.locals).chain([locals]));
        }
        self.end_branches(id);
        if let Some(passing) = self.next.passings.iter_mut().find(|passing| passing.id == id) {
            passing.fired = true;
        }
        self.fail_in(error_place, after, error)
    }
}

impl Passing {
    /// A passing that is opened by a run from here.
    pub(crate) fn opened(id: PassingId, fork: Name, origin: &Origin) -> Passing {
        Passing {
            id,
            fork,
            branches: 0,
            fired: false,
            outer: origin.branch,
            list: None,
            begun: 0,
            arrived: 0,
            results: Default::default(),
            frames: origin.frames.clone(),
            position: origin.position.clone(),
            locals: origin.locals.clone(),
            retried: origin.retried.clone(),
        }
    }

    /// Where one of its branches begins. What rounds of a loop around it gave stays with the passing.
    pub(crate) fn inside(&self, index: u32) -> Origin {
        let without_results = |frame: &Frame| Frame { results: Vec::new(), ..frame.clone() };
        Origin {
            branch: Some(Branch { passing: self.id, index }),
            frames: self.frames.iter().map(without_results).collect(),
            ..self.after()
        }
    }

    /// Where the run goes on after its join.
    pub(crate) fn after(&self) -> Origin {
        Origin {
            branch: self.outer,
            position: self.position.clone(),
            frames: self.frames.clone(),
            locals: self.locals.clone(),
            retried: self.retried.clone(),
            children: 0,
            gave: Gave::Nothing,
        }
    }
}

/// What branches have put into variables of their own goes on after them, in the order of the branches. What a branch has left
/// as it was is not what it has made.
pub(crate) fn merge_vars<'a>(after: &mut Origin, branches: impl Iterator<Item = &'a Map<String, Value>>) {
    let before = after.locals.get(VARS).cloned().unwrap_or_default();
    for branch in branches {
        let Some(Value::Object(made)) = branch.get(VARS) else { continue };
        let vars = after.locals.entry(VARS).or_insert_with(|| Value::Object(Map::new()));
        let made = made.iter().filter(|(name, value)| before.get(name.as_str()) != Some(*value));
        if let Value::Object(vars) = vars {
            vars.extend(made.map(|(name, value)| (name.clone(), value.clone())));
        }
    }
}

/// A loop or error scope begins, with locals of its own: they hide what is there under their names.
fn push_frame<'n>(
    origin: &mut Origin,
    place: &Name,
    list: Option<ListId>,
    own: impl IntoIterator<Item = &'n str>,
) {
    let hidden = own.into_iter().filter_map(|name| origin.locals.remove_entry(name)).collect();
    let frame = Frame { place: place.clone(), round: 0, list, results: Vec::new(), hidden };
    origin.frames.push(frame);
}
