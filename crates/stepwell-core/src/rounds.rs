//! The operations of loops, error scopes and forks over lists.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::decision_builder::{DecisionBuilder, Origin, Way, check_context};
use crate::definition::{
    CollectNode, EachNode, JoinNode, LoopNode, OverNode, PagesNode, PlaceIndex, PlaceKind,
};
use crate::expr::Budget;
use crate::frame::{Frame, List, ListId};
use crate::guard::{VARS, View};
use crate::ids::Name;
use crate::join::JoinState;
use crate::refusal::{DecideError, Failure};
use crate::save::Save;
use crate::snapshot::{ActivationStatus, Branch, EntryValue, ForkInstance, ForkInstanceId};
use crate::template::Template;

/// Maximum number of rounds that one change may start. The run then stays in the loop place and continues with the
/// next change.
const MAX_ROUNDS_PER_CHANGE: u32 = 8;

/// The name of a page in the expressions that read its items and its cursor.
const PAGE: &str = "page";

/// Maximum nesting depth of places being entered. Beyond it, an error fails the whole change instead of leading to an
/// error place.
const MAX_DEPTH: u32 = 100;

impl DecisionBuilder<'_> {
    /// Leaves the loops and scopes that do not contain the place, and restores the locals that they shadowed.
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
                node.over.locals().into_iter().for_each(|name| forget(&name.to_owned()));
            }
            Some(PlaceKind::Catch { local, .. }) => forget(local),
            _ => {}
        }
        origin.locals.extend(std::mem::take(&mut frame.hidden));
        Some(frame)
    }

    /// Enters an error scope. Its local holds the error until the run leaves the scope.
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
        let error = match std::mem::take(&mut origin.entry_value) {
            EntryValue::Failed(failure) => serde_json::to_value(failure).expect("a failure is plain data"),
            EntryValue::Value(_) | EntryValue::Nothing | EntryValue::LeaveLoop => Value::Null,
        };
        push_frame(&mut origin, name, None, [local]);
        origin.locals.insert(local.to_owned(), error);
        self.pass_through(name);
        self.enter(first, origin, event)
    }

    /// Enters a loop place. Coming from outside starts a new loop; coming from the body starts the next round.
    pub(crate) fn enter_loop(
        &mut self,
        place: PlaceIndex,
        node: &LoopNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = &self.compiled.places[place].name;
        let is_next_round = origin.frames.last().is_some_and(|frame| frame.place == *name);
        if is_next_round && origin.entry_value == EntryValue::LeaveLoop {
            return self.leave_loop(place, node, origin, event);
        }
        let ready = match (&node.over, is_next_round) {
            (_, false) => self.begin_loop(name, node, &mut origin, event),
            (OverNode::Pages(pages), true) if is_fetching(&origin) => {
                self.take_page(name, pages, &mut origin)
            }
            (_, true) => self.finish_round(name, node, &mut origin, event),
        };
        if let Err(error) = ready {
            return self.handle_error(node.error_place, origin, error);
        }
        if self.rounds >= MAX_ROUNDS_PER_CHANGE {
            return self.activate(place, ActivationStatus::Active, origin, event).map(drop);
        }
        self.start_round(place, node, origin, event)
    }

    fn begin_loop(
        &mut self,
        name: &Name,
        node: &LoopNode,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let list = match &node.over {
            OverNode::Items { list, .. } => {
                let (id, list) = self.list(name, list, &origin.locals, event)?;
                // Checked before the first round, so that a list that is too long is not processed in part.
                self.check_count(name, list.items().len(), node.most)?;
                Some(id)
            }
            OverNode::While(_) | OverNode::Pages(_) => None,
        };
        origin.entry_value = EntryValue::Nothing;
        push_frame(origin, name, list, node.over.locals().into_iter().chain(node.index.as_deref()));
        Ok(())
    }

    /// Takes the page that was fetched: its items replace those of the page before, and its cursor is kept for the
    /// next one.
    fn take_page(&mut self, name: &Name, pages: &PagesNode, origin: &mut Origin) -> Result<(), DecideError> {
        let page = match std::mem::take(&mut origin.entry_value) {
            EntryValue::Failed(failure) => return Err(DecideError::Raised(failure)),
            EntryValue::Value(page) => page,
            EntryValue::Nothing | EntryValue::LeaveLoop => Value::Null,
        };
        let locals = Map::from_iter([(PAGE.to_owned(), page)]);
        let (id, _) = self.list(name, &pages.list, &locals, &Value::Null)?;
        let view = View::new(&self.next, &locals, &Value::Null, self.now);
        let cursor = pages
            .cursor
            .eval(&view, &mut Budget::default())
            .map_err(|error| DecideError::Expression { at: format!("cursor of `{name}`"), error })?;
        let cursor = cursor.filter(|cursor| !cursor.is_null() && cursor.as_str() != Some(""));
        let before = origin.locals.remove(&pages.next);
        if let Some(cursor) = cursor {
            if before.as_ref() == Some(&cursor) {
                let message = format!("`{name}`: the next page has the same cursor as this one: {cursor}");
                return Err(DecideError::Raised(Failure::new("repeatedCursor", message).non_retryable()));
            }
            self.compiled.limits.nesting("the cursor", &cursor)?;
            origin.locals.insert(pages.next.clone(), cursor);
        }
        if let Some(frame) = origin.frames.last_mut() {
            (frame.list, frame.before_page) = (Some(id), frame.round);
        }
        Ok(())
    }

    fn finish_round(
        &mut self,
        name: &Name,
        node: &LoopNode,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let collected =
            node.collect.as_ref().map(|collect| self.collected(name, collect, origin, event)).transpose()?;
        origin.entry_value = EntryValue::Nothing;
        if let Some(frame) = origin.frames.last_mut() {
            frame.results.extend(collected.flatten());
            frame.round = frame.round.saturating_add(1);
        }
        Ok(())
    }

    /// Starts the next round, or leaves the loop.
    pub(crate) fn start_round(
        &mut self,
        place: PlaceIndex,
        node: &LoopNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        self.rounds += 1;
        let name = &self.compiled.places[place].name;
        if let (Some(fetch), true) = (node.fetch(), is_fetching(&origin)) {
            self.pass_through(name);
            return self.enter(fetch, origin, event);
        }
        let round = origin.frames.last().map_or(0, |frame| frame.round);
        let begins = match self.round(name, node, round, &mut origin, event) {
            Ok(begins) => begins,
            Err(error) => return self.handle_error(node.error_place, origin, error),
        };
        if begins {
            if let Some(index) = &node.index {
                origin.locals.insert(index.clone(), round.into());
            }
            self.pass_through(name);
            return self.enter(node.first, origin, event);
        }
        if let OverNode::Pages(pages) = &node.over
            && origin.locals.contains_key(&pages.next)
        {
            if let Some(frame) = origin.frames.last_mut() {
                frame.list = None;
            }
            self.pass_through(name);
            return self.enter(pages.fetch, origin, event);
        }
        self.leave_loop(place, node, origin, event)
    }

    /// Ends the loop: saves the results of its rounds and enters the place after the loop.
    fn leave_loop(
        &mut self,
        place: PlaceIndex,
        node: &LoopNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = &self.compiled.places[place].name;
        origin.entry_value = EntryValue::Nothing;
        let results = self.leave_frame(&mut origin).map(|frame| frame.results).unwrap_or_default();
        if let Some(save) = node.collect.as_ref().and_then(|collect| collect.save.as_ref()) {
            origin.set_collected_result(&results);
            let saved = self.save(save, &mut origin.locals, Value::Array(results));
            if let Err(error) = saved {
                return self.handle_error(node.error_place, origin, error);
            }
        }
        self.pass_through(name);
        self.enter(node.then, origin, event)
    }

    /// Returns true if the loop has this round. Sets the local for its item.
    fn round(
        &self,
        name: &Name,
        node: &LoopNode,
        round: u32,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<bool, DecideError> {
        let begins = match &node.over {
            OverNode::Items { item, .. } | OverNode::Pages(PagesNode { item, .. }) => {
                let frame = origin.frames.last();
                let list = frame.and_then(|frame| frame.list.clone());
                let before = frame.map_or(0, |frame| frame.before_page);
                let items = self.items(name, list.as_ref())?;
                let next = items.items().get(round.saturating_sub(before) as usize).cloned();
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

    /// Checks the number of rounds or items against the author's maximum and the engine's limit.
    fn check_count(&self, name: &Name, count: usize, most: Option<u32>) -> Result<(), DecideError> {
        let most = u64::from(most.unwrap_or(u32::MAX)).min(self.compiled.limits.loop_rounds);
        if count as u64 <= most {
            return Ok(());
        }
        let message = format!("`{name}` needs at least {count} rounds, but at most {most} are allowed");
        Err(DecideError::Raised(Failure::new("tooManyRounds", message).non_retryable()))
    }

    fn items(&self, name: &Name, list: Option<&ListId>) -> Result<List, DecideError> {
        let known = list.and_then(|id| self.next.lists.0.get(id));
        known.cloned().ok_or_else(|| DecideError::ListMissing { place: name.clone() })
    }

    /// Computes the list that a loop or fork iterates over.
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

    /// Returns the result of a round or branch in the form in which it is collected. A failure that is not collected
    /// has no result.
    fn collected(
        &self,
        name: &Name,
        collect: &CollectNode,
        origin: &Origin,
        event: &Value,
    ) -> Result<Option<Value>, DecideError> {
        let value = match (&origin.entry_value, &collect.result) {
            (EntryValue::Failed(failure), _) => {
                return Ok(collect.settled.then(|| json!({ "status": "failed", "error": failure })));
            }
            (_, Some(result)) => {
                let view = View::new(&self.next, &origin.locals, event, self.now);
                result
                    .render(&view, &mut Budget::default())
                    .map_err(|error| DecideError::Template { at: format!("result of `{name}`"), error })?
            }
            (EntryValue::Value(value), None) => value.clone(),
            (EntryValue::Nothing | EntryValue::LeaveLoop, None) => Value::Null,
        };
        Ok(Some(if collect.settled { json!({ "status": "completed", "output": value }) } else { value }))
    }

    /// Saves a value at its path and checks the context against its schema.
    pub(crate) fn save(
        &mut self,
        save: &Save,
        locals: &mut Map<String, Value>,
        value: Value,
    ) -> Result<(), DecideError> {
        self.put(save, locals, value)?;
        if save.is_local { Ok(()) } else { check_context(self.compiled, &self.next.context) }
    }

    /// Saves a value at its path without checking the context against its schema.
    pub(crate) fn put(
        &mut self,
        save: &Save,
        locals: &mut Map<String, Value>,
        value: Value,
    ) -> Result<(), DecideError> {
        let unfit = |message| DecideError::Raised(Failure::new("cannotSave", message).non_retryable());
        if save.is_local {
            self.compiled.limits.nesting("a local", &value)?;
            if let [root, name, _, ..] = save.path.as_slice()
                && root == VARS
            {
                self.copy_run_variable(name, locals);
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

    /// Copies a variable of the run into the branch, before a branch of a fork over a list writes into a part of it.
    fn copy_run_variable(&self, name: &str, locals: &mut Map<String, Value>) {
        let shared = self.next.context.get(VARS).and_then(|vars| vars.get(name));
        let own = locals.entry(VARS).or_insert_with(|| Value::Object(Map::new()));
        if let (Some(shared), Value::Object(own)) = (shared, own)
            && !own.contains_key(name)
        {
            own.insert(name.to_owned(), shared.clone());
        }
    }

    /// Handles an error in a place: enters the error place, or fails the whole change.
    pub(crate) fn handle_error(
        &mut self,
        error_place: Option<PlaceIndex>,
        origin: Origin,
        error: DecideError,
    ) -> Result<(), DecideError> {
        match error_place {
            // The depth is bounded because error places that lead to one another would be entered endlessly.
            Some(place) if error.can_be_caught() && self.depth < MAX_DEPTH => {
                self.enter_error_place(place, origin, &error.failure(), Way::In)
            }
            _ => Err(error),
        }
    }

    /// Enters a fork over a list: creates a fork instance and starts as many branches as may be open at the same
    /// time.
    pub(crate) fn open_each(
        &mut self,
        place: PlaceIndex,
        each: &EachNode,
        join: Option<PlaceIndex>,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let name = self.compiled.places[place].name.clone();
        origin.entry_value = EntryValue::Nothing;
        let (id, list) = match self.list(&name, &each.items, &origin.locals, event) {
            Ok(list) => list,
            Err(error) => return self.handle_error(each.error_place, origin, error),
        };
        if let Err(error) = self.check_count(&name, list.items().len(), each.most) {
            return self.handle_error(each.error_place, origin, error);
        }
        let total = u32::try_from(list.items().len()).unwrap_or(u32::MAX);
        let mut opened = ForkInstance {
            branches: total,
            list: Some(id),
            ..ForkInstance::opened(0, name.clone(), &origin)
        };
        if let Some(PlaceKind::Join(node)) = join.map(|join| &self.compiled.places[join].kind)
            && let JoinState::Fails(failure) = node.state(&name, &opened, (0, 0))
        {
            return self.handle_error(node.error_place, origin, DecideError::Raised(failure));
        }
        self.pass_through(&name);
        if total == 0 {
            let Some(join) = join else { return Ok(()) };
            return self.fire_join(join, origin, Vec::new(), event);
        }
        let fork_instance = self.allocate_id();
        opened.id = fork_instance;
        self.next.fork_instances.push(opened);
        // A branch may start with several activations, so the number of branches started now depends on the
        // activation limit.
        let (most, before) = (self.compiled.limits.activations, self.next.activations.len() as u64);
        let mut width = 1;
        for started in 0..u64::from(total.min(each.limit)) {
            if started > 0 && self.next.activations.len() as u64 + width > most {
                break;
            }
            self.begin_branch(fork_instance, event)?;
            width = width.max((self.next.activations.len() as u64).saturating_sub(before) / (started + 1));
        }
        Ok(())
    }

    /// Starts the next branch of a fork over a list, unless there is none left or the join has fired.
    pub(crate) fn begin_branch(&mut self, id: ForkInstanceId, event: &Value) -> Result<(), DecideError> {
        let compiled = self.compiled;
        let Some(fork_instance) =
            self.next.fork_instances.iter_mut().find(|fork_instance| fork_instance.id == id)
        else {
            return Ok(());
        };
        let index = fork_instance.started;
        if fork_instance.fired || index >= fork_instance.branches {
            return Ok(());
        }
        fork_instance.started += 1;
        let Some(PlaceKind::Fork { branches, each: Some(each), .. }) =
            compiled.place(&fork_instance.fork).map(|node| &node.kind)
        else {
            return Ok(());
        };
        let (fork, list) = (fork_instance.fork.clone(), fork_instance.list.clone());
        let mut origin = fork_instance.inside(index);
        let item = self.items(&fork, list.as_ref())?.items().get(index as usize).cloned();
        origin.locals.insert(each.item.clone(), item.unwrap_or_default());
        origin.locals.extend(each.index.clone().map(|local| (local, index.into())));
        branches.first().map_or(Ok(()), |&first| self.enter(first, origin, event))
    }

    /// Handles a branch of a fork over a list that reaches the join: counts it, and lets the next branch start.
    pub(crate) fn arrive_each(
        &mut self,
        place: PlaceIndex,
        node: &JoinNode,
        (branch, has_failed): (Branch, bool),
        collected: Option<Value>,
        event: &Value,
    ) -> Result<(), DecideError> {
        let Some(fork_instance) = self
            .next
            .fork_instances
            .iter_mut()
            .find(|fork_instance| fork_instance.id == branch.fork_instance)
        else {
            return Ok(());
        };
        fork_instance.arrived += 1;
        fork_instance.failed += u32::from(has_failed);
        fork_instance.results.extend(collected.map(|collected| (branch.index, collected)));
        let name = &self.compiled.places[place].name;
        match node.state(name, fork_instance, (fork_instance.arrived, fork_instance.failed)) {
            JoinState::Fires => {}
            JoinState::Open => {
                self.to_begin.push_back(branch.fork_instance);
                return Ok(());
            }
            JoinState::Fails(failure) if node.error_place.is_none() => {
                self.stopped = Some(failure);
                return Ok(());
            }
            JoinState::Fails(failure) => {
                return self.fail_join(node.error_place, (branch, &Map::new()), DecideError::Raised(failure));
            }
        }
        fork_instance.fired = true;
        let results = node.results(fork_instance.branches, std::mem::take(&mut fork_instance.results));
        let after = fork_instance.after();
        // Branches that never started are not waited for. Active branches are, unless they are ended here.
        fork_instance.started = fork_instance.branches;
        if node.cancel_rest {
            self.end_branches(branch.fork_instance);
        }
        self.fire_join(place, after, results, event)
    }

    /// Fires a join: saves the results of the branches, and the run continues from the join.
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
            after.set_collected_result(&results);
            let saved = self.save(save, &mut after.locals, Value::Array(results));
            if let Err(error) = saved {
                return self.handle_error(node.error_place, after, error);
            }
        }
        self.activate(place, ActivationStatus::Active, after, event).map(drop)
    }

    /// Returns the result of a branch that reaches a join, if results are collected.
    ///
    /// A failure that is neither collected nor passed over is returned as an error if the join has an error place. A
    /// join without an error place treats a failed branch like any other.
    pub(crate) fn result_for_join(
        &mut self,
        place: PlaceIndex,
        node: &JoinNode,
        origin: &mut Origin,
        event: &Value,
    ) -> Result<Option<Value>, DecideError> {
        let is_kept = node.ignore_failures || node.is_settled();
        if let (EntryValue::Failed(failure), Some(_), false) =
            (&origin.entry_value, node.error_place, is_kept)
        {
            return Err(DecideError::Raised(failure.clone()));
        }
        let name = &self.compiled.places[place].name;
        let collected =
            node.collect.as_ref().map(|collect| self.collected(name, collect, origin, event)).transpose()?;
        origin.entry_value = EntryValue::Nothing;
        Ok(collected.flatten())
    }

    /// Handles a failed branch or a result that cannot be computed: ends the other branches and enters the error
    /// place.
    pub(crate) fn fail_join(
        &mut self,
        error_place: Option<PlaceIndex>,
        (branch, locals): (Branch, &Map<String, Value>),
        error: DecideError,
    ) -> Result<(), DecideError> {
        let id = branch.fork_instance;
        let fork_instance = self.next.fork_instance(id);
        let mut after = fork_instance.map(ForkInstance::after).unwrap_or_default();
        if fork_instance.is_some_and(|fork_instance| fork_instance.list.is_none()) {
            let others =
                self.next.activations.iter().filter(|one| one.branch.is_some_and(|b| b.fork_instance == id));
            merge_vars(&mut after, others.map(|one| &one.locals).chain([locals]));
        }
        self.end_branches(id);
        if let Some(fork_instance) = self.fork_instance_mut(id) {
            fork_instance.fired = true;
        }
        self.handle_error(error_place, after, error)
    }
}

impl ForkInstance {
    /// Creates a fork instance that is entered with this state.
    pub(crate) fn opened(id: ForkInstanceId, fork: Name, origin: &Origin) -> ForkInstance {
        ForkInstance {
            id,
            fork,
            branches: 0,
            fired: false,
            outer: origin.branch,
            list: None,
            started: 0,
            arrived: 0,
            failed: 0,
            results: Default::default(),
            frames: origin.frames.clone(),
            position: origin.position.clone(),
            locals: origin.locals.clone(),
            retried: origin.retried.clone(),
        }
    }

    /// Returns the state in which one of the branches starts. Collected results of enclosing loops stay with the fork
    /// instance.
    pub(crate) fn inside(&self, index: u32) -> Origin {
        let without_results = |frame: &Frame| Frame { results: Vec::new(), ..frame.clone() };
        Origin {
            branch: Some(Branch { fork_instance: self.id, index }),
            frames: self.frames.iter().map(without_results).collect(),
            ..self.after()
        }
    }

    /// Returns the state in which the run continues after the join.
    pub(crate) fn after(&self) -> Origin {
        Origin {
            branch: self.outer,
            position: self.position.clone(),
            frames: self.frames.clone(),
            locals: self.locals.clone(),
            retried: self.retried.clone(),
            children: 0,
            entry_value: EntryValue::Nothing,
        }
    }
}

/// Merges the variables of the branches into the state after the join, in the order of the branches. A variable that
/// a branch has not changed is not taken from that branch.
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

impl OverNode {
    /// Returns the names of the locals that hold the item and the cursor.
    fn locals(&self) -> Vec<&str> {
        match self {
            OverNode::Items { item, .. } => vec![item],
            OverNode::Pages(pages) => vec![&pages.item, &pages.next],
            OverNode::While(_) => Vec::new(),
        }
    }
}

/// Returns true if the innermost loop, which is over pages, has no page: it fetches one.
fn is_fetching(origin: &Origin) -> bool {
    origin.frames.last().is_some_and(|frame| frame.list.is_none())
}

/// Enters a loop or error scope. Its locals shadow existing locals with the same names.
fn push_frame<'n>(
    origin: &mut Origin,
    place: &Name,
    list: Option<ListId>,
    own: impl IntoIterator<Item = &'n str>,
) {
    let hidden = own.into_iter().filter_map(|name| origin.locals.remove_entry(name)).collect();
    let frame = Frame { place: place.clone(), round: 0, list, before_page: 0, results: Vec::new(), hidden };
    origin.frames.push(frame);
}
