"""Checks of snapshots and dispatch (A) and of durable runs (B), through any door."""

import datetime
import os
import re

from doorkit import expect, promise, same

ASK = "name: NAME\nsteps:\n  - { id: ask, type: human.task, title: Go on? }\n  - { id: done, type: control.return, value: { $expr: vars.ask } }\n"
NESTED = """
name: NAME
initial: draft
places:
  draft: { kind: step }
  parts: { kind: fork, branches: [red, inner] }
  inner: { kind: fork, branches: [x, y] }
  red: { kind: step }
  x: { kind: step }
  y: { kind: step }
  either: { kind: join, of: [x, y], quorum: any }
  both: { kind: join, of: [red, either] }
  ask: { kind: wait, signal: ANSWER }
  over: { kind: end, output: { $expr: context.n } }
signals: { GO: {}, RED: {}, X: {}, Y: {}, ANSWER: { payload: { type: object, required: [again] } } }
transitions:
  - { id: go, from: draft, to: parts, on: { signal: GO } }
  - { id: red, from: red, to: both, on: { signal: RED } }
  - { id: x, from: x, to: either, on: { signal: X } }
  - { id: y, from: y, to: either, on: { signal: Y } }
  - { id: inner, from: either, to: both }
  - { id: all, from: both, to: ask }
  - { id: again, from: ask, to: draft, guard: { expr: event.again } }
  - { id: done, from: ask, to: over }
"""
PAYS = "action: { name: ACTION, input: { cents: { $expr: event.cents } }, saveAs: paid }"
PAY = """
name: NAME
initial: idle
places: { idle: { kind: step }, done: { kind: end, output: { $expr: context.paid } } }
signals: { PAY: { payload: { type: object, required: [cents] } } }
transitions:
  - { id: pay, from: idle, to: done, on: { signal: PAY }, PAYS }
""".replace("PAYS", PAYS)
DOWN = "action: http.request, input: { url: 'http://127.0.0.1:1/' }"


def steps(*lines):
    """Returns a document of these steps."""
    return "name: NAME\nsteps:\n" + "".join(f"  - {{ id: s{number}, {line} }}\n" for number, line in enumerate(lines))


def state(w, run, version=None):
    return w.ok("showRunVersion", run=run, version=w.show(run)["version"] if version is None else version)["state"]


def places(w, run):
    return w.show(run)["places"]


def signals(w, run, *names):
    for name in names:
        w.send(run, name)


def path(w, run):
    """Returns the history without what differs between two runs that behave alike."""
    return [{name: entry.get(name) for name in ("action", "entered", "exited", "payload", "version")} for entry in w.history(run)]


def instant(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def seconds(start, end):
    return (instant(end) - instant(start)).total_seconds()


def remote(w):
    """Registers an action of remote workers in a tenant of the check, and returns its name."""
    w.own_tenant()
    name = w.fresh("bank.charge")
    w.ok("putAction", name=name)
    return name


def complete(w, task, output=None, **more):
    return w.ok("completeTask", task=task["id"], fence=task["fence"], output=output, **more)


def fail(w, task, code="bankDown", **more):
    return w.ok("failTask", task=task["id"], fence=task["fence"], error={"code": code, "message": "it is closed"}, **more)


@promise("A1", "B4", alone=True)
def a_run_continues_after_a_kill_as_if_nothing_had_happened(w):
    action, nested, key = remote(w), w.publish(NESTED), w.fresh("count")
    kept, twin = w.start(nested, {"n": 7}), w.start(nested, {"n": 7})
    before, after = ["GO", "X"], ["Y", "RED"]
    signals(w, kept, *before)
    signals(w, twin, *before, *after)
    sleeping = w.start(w.publish(steps("type: wait.sleep, for: 3s", "type: control.return, value: 1")))
    leased = w.start(w.publish(PAY.replace("ACTION", action)))
    w.send(leased, "PAY", {"cents": 5})
    task = w.task(action)
    states = {run: (state(w, run), w.show(run)) for run in (kept, leased)}
    asleep = state(w, sleeping, 0)
    counting = w.start(w.publish(f"""
name: NAME
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: '[1..400]' }}
    body: [{{ id: count, type: action.call, action: store.increment, input: {{ namespace: kills, key: {key} }} }}]
"""))
    w.site.restart()
    for run in (kept, leased):
        same((state(w, run), w.show(run)), states[run], "the run after a kill")
    same(state(w, sleeping, 0), asleep, "the sleeping run after a kill")
    signals(w, kept, *after)
    same(path(w, kept), path(w, twin), "what the killed run did")
    for run in (kept, twin):
        w.send(run, "ANSWER", {"again": False})
        same(w.until(run, "completed")["result"], 7, "the result of the nested run")
    complete(w, task, "paid")
    same(w.until(leased, "completed")["result"], "paid", "the result of the work that began before the kill")
    same(w.until(sleeping, "completed")["result"], 1, "the result of the sleeping run")
    w.until(counting, "completed")
    same(w.ok("getKey", namespace="kills", key=key)["value"], 400, "the count of a run that was killed while it counted")


@promise("A2")
def the_snapshot_has_all_that_a_run_is(w):
    flow = w.publish("""
name: NAME
steps:
  - { id: slot, type: action.call, action: state.set, input: { scope: session, key: mood, value: calm } }
  - id: people
    type: control.forEach
    items: [ann, bob]
    itemVar: person
    parallel: true
    body:
      - id: days
        type: control.forEach
        items: [1, 2]
        itemVar: day
        body: [{ id: ask, type: human.task, title: { $expr: person }, timeout: P2D }]
""")
    run = w.start(flow, {"a": 1})
    w.until(run, "waiting")
    w.ok("answerWait", wait=w.ok("listWaits", run=run)["items"][0]["id"], input="fine")
    shown, found = w.show(run), state(w, run)
    plain = ["instanceId", "workflow", "definitionVersion", "definitionHash", "version", "session", "isTerminal", "createdAt", "updatedAt"]
    wanted = [run, flow, 1, shown["definition"], shown["version"], {"mood": "calm"}, False, shown["createdAt"], shown["updatedAt"]]
    same([found[name] for name in plain], wanted, "the fields of the snapshot")
    expect("slot" in found["completed"] and found["context"]["payload"] == {"a": 1}, f"places and context are wrong: {found}")
    both = sorted(found["activations"], key=lambda one: one["locals"]["person"])
    same([(one["place"], one["status"]) for one in both], [("ask", "waiting")] * 2, "two activations in one place")
    same([(one["branch"]["index"], one["frames"][0].get("round", 0), one["locals"]["day"]) for one in both], [(0, 1, 2), (1, 0, 1)],
         "the branches, rounds and locals")
    same([seconds(one["since"], one["timers"][0]["at"]) for one in both], [172800.0] * 2, "the time until the activations are due")
    nodes = {node["id"]: (node["status"], node["activations"]) for node in w.ok("drawRun", run=run)["nodes"]}
    same([nodes[place] for place in ("slot", "ask", "people.join")], [("completed", 0), ("waiting", 2), ("idle", 0)], "the status of places")
    draft = w.start(w.publish(NESTED), {"n": 1})
    same([node["status"] for node in w.ok("drawRun", run=draft)["nodes"] if node["id"] == "draft"], ["active"], "the status of a step")
    for stamp in [found["createdAt"], found["updatedAt"], both[0]["since"]]:
        expect(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", stamp), f"{stamp} is not RFC 3339")


@promise("A3")
def every_change_raises_the_version_by_one(w):
    run = w.start(w.publish(ASK))
    before = w.until(run, "waiting")["version"]
    w.ok("suspendRun", run=run)
    w.ok("resumeRun", run=run)
    same(w.show(run)["version"], before, "the version after suspend and resume")
    w.no(404, "signalRun", run=run, name="unknown", body=None)
    same(w.show(run)["version"], before, "the version after a refused signal")
    w.ok("patchRun", run=run, fields={"note": 1})
    same(w.show(run)["version"], before + 1, "the version after a patch")
    w.send(run, "ask", {"ok": True})
    w.until(run, "completed")
    same([entry["version"] for entry in w.history(run)], list(range(w.show(run)["version"] + 1)), "the versions in the history")
    same(w.ok("showRunVersion", run=run, version=0)["state"]["version"], 0, "the first version")


@promise("A4")
def a_snapshot_that_does_not_fit_a_definition_is_refused_by_what_differs(w):
    first = """
name: NAME
initial: draft
context: { type: object, required: [n], properties: { n: { type: integer } } }
places: { draft: { kind: step }, review: { kind: step }, done: { kind: end } }
signals: { GO: {} }
transitions: [{ id: go, from: draft, to: review, on: { signal: GO } }, { id: end, from: review, to: done, on: { signal: GO } }]
"""
    flow = w.publish(first)
    run = w.start(flow, {"n": 1})
    w.send(run, "GO")
    before = w.show(run), state(w, run)
    for text in (first.replace("review", "check"), first.replace("type: integer", "type: string")):
        w.publish(text, name=flow)
    expect("`review`" in w.no(422, "migrateRun", run=run, version=2), "the error does not name the place")
    said = w.no(422, "migrateRun", run=run, version=3)
    expect("/n" in said and "expected string" in said, f"the error does not name the field: {said}")
    expect("nowhere" in w.no(409, "moveRun", run=run, to="nowhere"), "the error does not name the place of the move")
    expect("expected integer" in w.no(422, "patchRun", run=run, fields={"n": "one"}), "the error does not name the mismatch of the patch")
    same((w.show(run), state(w, run)), before, "the run after four mismatches")
    hashes = [row["hash"] for row in w.ok("listVersions", name=flow)["items"]]
    expect(len(set(hashes)) == 3 and before[0]["definition"] in hashes, f"the run is not pinned to one of {hashes}")
    w.ok("migrateRun", run=run, version=2, places={"review": "check"})
    same(places(w, run), ["check"], "the places after a migration that fits")


@promise("A5")
def forks_and_joins_count_the_branches_of_each_passing(w):
    nested = w.start(w.publish(NESTED), {"n": 7})
    same(state(w, nested)["activations"][0]["status"], "active", "a step that needs a signal")
    for wanted in (["both", "red"], ["both", "red"]):
        signals(w, nested, "GO")
        same(places(w, nested), ["red", "x", "y"], "the branches of nested forks")
        signals(w, nested, "X")
        same(places(w, nested), ["both", "red", "y"], "after the first branch of a join of any")
        signals(w, nested, "Y")
        same(places(w, nested), wanted, "after a late branch")
        signals(w, nested, "RED")
        same((places(w, nested), state(w, nested)["activations"][0]["status"]), (["ask"], "waiting"), "after a join of all")
        w.send(nested, "ANSWER", {"again": True})
    parts = """
name: NAME
initial: parts
places:
  parts: { kind: fork, branches: [a, b, c] }
  a: { kind: step }
  b: { kind: step }
  c: { kind: step }
  stop: { kind: end }
  two: { kind: join, of: [a, b, c], quorum: { n: 2 }, cancelRest: true }
  ask: { kind: wait, signal: ON }
  done: { kind: end }
completion: allBranches
signals: { A: {}, B: {}, C: {}, ON: {}, STOP: {} }
transitions:
  - { id: a, from: a, to: two, on: { signal: A } }
  - { id: b, from: b, to: two, on: { signal: B } }
  - { id: c, from: c, to: two, on: { signal: C } }
  - { id: quit_a, from: a, to: stop, on: { signal: STOP } }
  - { id: quit_b, from: b, to: stop, on: { signal: STOP } }
  - { id: on, from: two, to: ask }
  - { id: end, from: ask, to: done }
"""
    flow = w.publish(parts)
    run, short = w.start(flow), w.start(flow)
    same(places(w, run), ["a", "b", "c"], "a fork as the initial place")
    signals(w, run, "A", "C")
    same(places(w, run), ["ask"], "after two of three branches, the rest cancelled")
    signals(w, run, "ON")
    same(w.until(run, "completed")["version"], 5, "the version at the end")
    signals(w, short, "STOP", "STOP", "C")
    error = w.until(short, "failed")["error"]
    expect(error["code"] == "joinUnreached" and "`two`" in error["message"], f"the error does not name the join: {error}")
    for number in ("0", "4"):
        said = w.no(422, "publishVersion", name=w.fresh("flow"), document=parts.replace("{ n: 2 }", "{ n: %s }" % number).replace("NAME", "x"))
        expect("the quorum" in said, f"the error does not name the quorum: {said}")


@promise("A6")
def guards_of_every_kind_let_through_and_block(w):
    guards = {
        "EXPR": "{ expr: event.n > 1 }", "COMPLETED": "{ completed: b }", "ACTIVE": "{ active: b }", "NOT": "{ not: { active: b } }",
        "AND": "{ and: [{ active: b }, { expr: context.open }] }", "OR": "{ or: [{ completed: b }, { expr: context.open }] }",
    }
    lines = "".join(f"  - {{ id: t_{name}, from: a, to: done, on: {{ signal: {name} }}, guard: {guard} }}\n" for name, guard in guards.items())
    run = w.start(w.publish(f"""
name: NAME
initial: parts
places: {{ parts: {{ kind: fork, branches: [a, b] }}, a: {{ kind: step }}, b: {{ kind: step }}, c: {{ kind: step }}, done: {{ kind: end }} }}
signals: {{ NEXT: {{}}, {", ".join(f"{name}: {{}}" for name in guards)} }}
transitions:
  - {{ id: next, from: b, to: c, on: {{ signal: NEXT }} }}
  - {{ id: end, from: c, to: done, on: {{ signal: NEXT }} }}
{lines}"""), {"open": True})

    def passing(n):
        found = set()
        for name in guards:
            reply = w.call("signalRun", run=run, name=name, body={"n": n}, strict=True, dryRun=True)
            expect(not reply.refused or f"`t_{name}`" in w.door.detail(reply), f"the refusal does not name the guard: {reply}")
            found.update([] if reply.refused else [name])
        return found

    same(sorted(passing(2)), ["ACTIVE", "AND", "EXPR", "OR"], "the guards that pass at first")
    w.ok("patchRun", run=run, fields={"open": False})
    same(sorted(passing(1)), ["ACTIVE"], "the guards that pass after the patch")
    signals(w, run, "NEXT")
    same(sorted(passing(1)), ["COMPLETED", "NOT", "OR"], "the guards that pass after b")
    w.send(run, "NOT", {})
    w.until(run, "completed")
    named = w.fresh("flow")
    text = PAY.replace(PAYS, "guard: { named: isManager }")
    warnings = w.ok("publishVersion", document=text.replace("NAME", named), name=named, activate=True)["warnings"]
    expect([one["code"] for one in warnings] == ["unknownGuard"] and "`isManager`" in warnings[0]["message"], f"the warnings are {warnings}")
    said = w.no(422, "signalRun", run=w.start(named), name="PAY", body={"cents": 1})
    expect("`isManager` of transition `pay` is not registered" in said, f"the error does not name the guard: {said}")


@promise("A7")
def refusals_come_in_order_and_say_why(w):
    run = w.start(w.publish("""
name: NAME
initial: cart
places: { cart: { kind: step }, paid: { kind: step }, done: { kind: end } }
signals: { PAY: { payload: { type: object, required: [cents] } }, LATER: { payload: { type: object, required: [why] } }, STOP: {}, ON: {} }
transitions:
  - { id: pay, from: cart, to: done, on: { signal: PAY }, guard: { expr: context.open } }
  - { id: later, from: paid, to: done, on: { signal: LATER }, guard: { expr: context.open } }
  - { id: on, from: cart, to: paid, on: { signal: ON } }
  - { id: stop, from: cart, to: done, on: { signal: STOP } }
"""), {"open": False})
    before = state(w, run)
    inputs = [("PAI", 1), ("LATER", {}), ("PAY", {}), ("LATER", {"why": "x"}), ("PAY", {"cents": 1})]
    blocked = "`pay` is blocked by its guard `context.open`"
    refusals = [(404, "no signal `PAI`"), (422, "why"), (422, "cents"), (409, "accepted in `paid`"), (409, blocked)]
    for (name, payload), (status, reason) in zip(inputs, refusals):
        said = w.no(status, "signalRun", run=run, name=name, body=payload, strict=True)
        expect(reason in said, f"{name} was refused with {said}, expected {reason}")
    same(state(w, run), before, "the snapshot after refusals")
    signals(w, run, "STOP")
    for name, payload in inputs:
        said = w.no(409, "signalRun", run=run, name=name, body=payload, strict=True)
        expect("already ended" in said, f"after the end {name} was refused with {said}")


@promise("A8")
def the_first_passing_transition_fires_or_all_of_them_together(w):
    graph = """
name: NAME
initial: start
firing: FIRING
places: { start: { kind: step }, a: { kind: step }, b: { kind: step }, end: { kind: end } }
signals: { GO: {}, ON: {} }
transitions:
  - { id: low, from: start, to: a, on: { signal: GO }, priority: -1 }
  - { id: one, from: start, to: a, on: { signal: GO } }
  - { id: two, from: start, to: b, on: { signal: GO }, guard: { expr: event.n > 1 } }
  - { id: high, from: start, to: b, on: { signal: GO }, priority: 5, guard: { expr: event.n > 5 } }
  - { id: a, from: a, to: end, on: { signal: ON } }
  - { id: b, from: b, to: end, on: { signal: ON } }
"""
    for firing, fired in [("first", [["one"], ["one"], ["high"]]), ("all", [["one", "low"], ["one", "two", "low"], ["high", "one", "two", "low"]])]:
        flow = w.publish(graph.replace("FIRING", firing))
        for n, wanted in zip([0, 2, 6], fired):
            run = w.start(flow)
            w.send(run, "GO", {"n": n})
            entries = w.history(run)
            same([entry["action"] for entry in entries], ["__start", "GO"], "the entries of one signal")
            same((entries[1]["transitions"], len(state(w, run)["activations"])), (wanted, len(wanted)), f"what fires with {firing} and {n}")
    document = graph.replace("FIRING", "all").replace("NAME", "x").replace("priority: -1", "action: { name: log, input: { message: x } }")
    said = w.no(422, "publishVersion", name=w.fresh("flow"), document=document)
    expect("`low`" in said and "cannot have actions" in said, f"an action with `all` was refused with {said}")


@promise("A9")
def the_history_says_all_that_happened_and_every_version_can_be_rebuilt(w):
    tenant, action, token = w.own_tenant(), w.fresh("bank.charge"), w.fresh("secret-token")
    folder = os.path.join(w.settings["STEPWELL_SECRETS__FOLDER"], tenant)
    os.makedirs(folder)
    with open(os.path.join(folder, "TOKEN"), "w", encoding="utf-8") as file:
        file.write(token)
    w.ok("putAction", name=action, secretFields=["/token"])
    run = w.start(w.publish("""
name: NAME
steps:
  - { id: far, type: action.call, action: ACTION, input: { token: { $secret: TOKEN } } }
  - { id: long, type: action.call, action: transform, input: { text: { $expr: payload.text } } }
  - { id: short, type: action.call, action: transform, input: { n: 1 } }
  - { id: bad, type: action.call, action: log, input: { message: { $expr: payload.n } }, onError: [{ id: told, type: vars.set, values: { x: 1 } }] }
  - { id: nap, type: wait.sleep, for: 50ms }
  - { id: ask, type: human.task, form: { type: object, required: [by] } }
  - { id: done, type: control.return }
""".replace("ACTION", action)), {"text": "y" * 50000, "n": 1})
    task = w.task(action)
    same(task["input"], {"token": token}, "the input of the worker")
    complete(w, task, {"said": f"it was {token}"})
    w.wait(lambda: places(w, run) == ["ask"], "the run asks")
    w.ok("patchRun", run=run, fields={"vars": {"x": 2}})
    w.no(422, "signalRun", run=run, name="ask", body={})
    w.send(run, "ask", {"by": "ann"})
    w.until(run, "completed")
    entries = w.history(run)
    named = {entry["action"]: entry for entry in entries}
    same([entry["action"] for entry in entries if not entry["action"].startswith("__auto:")],
         ["__start", "__error:bad", "__timer:nap", "__operator:patch", "__resolve_wait:ask"], "the actions in the history")
    short, answer = named["__auto:short"], named["__resolve_wait:ask"]
    same([short[name] for name in ("entered", "exited", "input", "output")], [["bad"], ["short"], {"n": 1}, {"n": 1}], "the entry of an action")
    expect(isinstance(short["durationUs"], int) and "durationUs" not in answer, "only actions have a duration")
    same((answer["payload"], answer["actor"].split(":")[0]), ({"by": "ann"}, "apikey"), "the entry of an answer")
    far = named["__auto:far"]
    same((far["input"], far["output"]), ({"token": {"$secret": "TOKEN"}}, {"said": "it was ***"}), "an entry with a secret")
    cut = named["__auto:long"]["input"]["$cut"]
    expect(cut["bytes"] > 50000 and len(cut["head"]) < 10000, f"a long input is not cut: {len(cut['head'])} characters of {cut['bytes']}")
    same(sorted(entry["at"] for entry in entries), [entry["at"] for entry in entries], "the times in the history")
    patched, asked = named["__operator:patch"]["version"], named["__timer:nap"]["version"]
    versions = {version: state(w, run, version) for version in (0, asked, patched)}
    same([(found["version"], found["context"]["vars"].get("x"), found["activations"][0]["place"]) for found in versions.values()],
         [(0, None, "far"), (asked, 1, "ask"), (patched, 2, "ask")], "the states at earlier versions")
    same([row["entry"] for row in w.ok("listHistory", run=run, limit=200)["items"]], entries, "the history after reading it")


@promise("A10")
def a_run_can_be_looked_at_and_tried_without_changing_it(w):
    flow = w.publish("""
name: NAME
initial: draft
places:
  draft: { kind: step }
  ask: { kind: wait, signal: ANSWER, prompt: { title: Sure? }, form: { type: object, required: [yes] }, answerers: ["user:ann"] }
  done: { kind: end }
signals: { GO: {}, ANSWER: {}, QUIT: {} }
transitions:
  - { id: go, from: draft, to: ask, on: { signal: GO } }
  - { id: quit, from: draft, to: done, on: { signal: QUIT }, guard: { expr: context.bored } }
  - { id: done, from: ask, to: done }
  - { id: late, from: ask, to: done, on: { afterMs: 86400000 } }
""")
    run = w.start(flow, {"bored": False})
    before = state(w, run)
    rows = [(row["transition"], row.get("signal"), row.get("blockedBy")) for row in w.ok("listTransitions", run=run)["items"]]
    same(rows, [("go", "GO", None), ("quit", "QUIT", "guard `context.bored`")], "the transitions")
    tried = w.ok("signalRun", run=run, name="GO", body={"a": 1}, dryRun=True)
    same((tried["outcome"], tried["effect"]["change"]["entered"], tried["effect"]["change"]["version"]), ("consumed", ["ask"], 1), "the dry run")
    expect("context.bored" in w.no(409, "signalRun", run=run, name="QUIT", body=None, dryRun=True), "a refused dry run does not say why")
    same((state(w, run), places(w, run)), (before, ["draft"]), "the run after dry runs")
    w.send(run, "GO")
    wait = w.ok("listWaits", workflow=flow)["items"][0]
    same([wait[name] for name in ("run", "place", "prompt", "form", "answerers", "outcomes")],
         [run, "ask", {"title": "Sure?"}, {"type": "object", "required": ["yes"]}, ["user:ann"], ["ANSWER"]], "the open wait")
    same((wait["since"], seconds(wait["since"], wait["due"])), (w.show(run)["updatedAt"], 86400.0), "the times of the open wait")
    graph = w.ok("drawRun", run=run)
    same({node["id"]: node["status"] for node in graph["nodes"]}, {"draft": "completed", "ask": "waiting", "done": "idle"}, "the graph of the run")
    same([edge["transition"] for edge in graph["edges"]], ["go", "quit", "done", "late"], "the edges of the graph")
    drawn = w.call("drawRun", run=run, format="mermaid").text
    expect('(["ask"]):::waiting' in drawn and '"draft"]:::completed' in drawn, f"the diagram has no status: {drawn}")
    plain = w.call("drawWorkflow", name=flow, format="mermaid").text
    expect("flowchart" in plain and ":::waiting" not in plain, f"the diagram of the workflow has a status: {plain}")


@promise("A11")
def every_problem_of_a_definition_is_reported_at_once(w):
    good = """
name: NAME
initial: draft
places: { draft: { kind: step }, done: { kind: end } }
signals: { SUBMIT: {} }
transitions: [{ id: submit, from: draft, to: done, on: { signal: SUBMIT } }]
"""
    bad = """
name: x
initial: drift
places:
  draft: { kind: step }
  attic: { kind: step }
  wait: { kind: wait }
  fork: { kind: fork, branches: [a, b] }
  a: { kind: step }
  b: { kind: step }
  join: { kind: join, of: [a, b], quorum: { n: 3 } }
transitions:
  - { id: submit, from: draft, to: wait, on: { signal: SUBMIT } }
  - { id: lost, from: draft, to: nowhere, on: { signal: SUBMIT } }
  - { id: typo, from: wait, to: fork, on: { signal: SUBMITT } }
  - { id: a, from: a, to: join }
  - { id: b, from: b, to: join }
  - { id: again, from: join, to: draft }
signals: { SUBMIT: {} }
"""
    def validate(text):
        if w.door.name == "cli":
            return w.door.command(["workflow", "validate", w.file(text), "--json"], json_output=False).value
        return w.ok("validateDocument", document=text)

    report = validate(bad)
    found = {(problem["code"], re.search(r"`(\w+)`|definition", problem["message"]).group(1)) for problem in report["problems"]}
    wanted = {
        ("noEnd", None), ("unknownPlace", "initial"), ("unknownPlace", "lost"), ("unknownSignal", "typo"), ("unreachablePlace", "attic"),
        ("deadEnd", "attic"), ("badQuorum", "join"), ("unresolvableWait", "wait"),
    }
    same(sorted(map(str, found)), sorted(map(str, wanted)), "the problems")
    same((report["valid"], [problem["line"] for problem in report["problems"] if problem["code"] == "unresolvableWait"]), (False, [7]), "the line")
    said = w.no(422, "publishVersion", name=w.fresh("flow"), document=bad)
    expect("`attic`" in said and "`nowhere`" in said and "`SUBMITT`" in said, f"publishing does not report every problem: {said}")
    same((validate(good)["valid"], validate(good)["problems"]), (True, []), "the problems of a valid definition")
    w.publish(good)


@promise("B1")
def each_transition_is_committed_before_the_next_begins(w):
    action, key = remote(w), w.fresh("count")
    count = f"type: action.call, action: store.increment, input: {{ namespace: steps, key: {key} }} }}"
    run = w.start(w.publish(f"""
name: NAME
steps:
  - {{ id: one, {count}
  - {{ id: two, {count}
  - {{ id: far, type: action.call, action: {action} }}
  - {{ id: three, {count}
  - {{ id: ask, type: human.task }}
  - {{ id: done, type: control.return }}
"""))
    task = w.task(action)
    same((w.show(run)["version"], places(w, run)), (2, ["far"]), "the run while its action is open")
    same(w.ok("getKey", namespace="steps", key=key)["value"], 2, "what is committed while the action is open")
    complete(w, task, "ok")
    same(w.until(run, "waiting")["places"], ["ask"], "where the run comes to rest")
    entries = w.history(run)
    same([(entry["version"], entry["action"]) for entry in entries],
         list(enumerate(["__start", "__auto:one", "__auto:two", "__auto:far", "__auto:three"])), "the checkpoints")
    same([state(w, run, version)["context"]["vars"].get("two", {}).get("value") for version in (1, 2)], [None, 2], "the data of two checkpoints")
    signal = w.start(w.publish(PAY.replace("ACTION", action)))
    w.send(signal, "PAY", {"cents": 5})
    fail(w, w.task(action))
    same((w.until(signal, "failed")["version"], len(w.history(signal))), (0, 1), "a run whose action has failed")
    w.ok("retryRun", run=signal)
    complete(w, w.task(action), "paid")
    same((w.until(signal, "completed")["result"], w.history(signal)[1]["payload"]), ("paid", {"cents": 5}), "the signal after a failure")


@promise("B2")
def a_transition_commits_everything_or_nothing(w):
    action, space, event = remote(w), w.fresh("atoms"), w.fresh("PAID")
    child = w.publish(steps("type: control.return"))
    other = w.start(w.publish(steps("type: wait.signal, signal: GO", "type: wait.signal, signal: HEAR")))
    flow = w.publish(steps(f"type: action.call, action: {action}, retry: 3"))
    run = w.start(flow)
    writes = [
        {"action": "store.set", "input": {"namespace": space, "key": "a", "value": 1}},
        {"action": "links.upsert", "input": {"namespace": space, "from": {"type": "t", "id": "1"}, "to": {"type": "t", "id": "2"}}},
        {"action": "state.set", "input": {"scope": "workflow", "key": "a", "value": 1}},
        {"action": "document.put", "input": {"key": "a", "kind": "text", "body": "x"}},
        {"action": "workflow.start", "input": {"workflow": child}},
        {"action": "workflow.signal", "input": {"run": other, "signal": "HEAR", "payload": 1}},
        {"action": "event.emit", "input": {"name": event, "data": {}}},
    ]
    conflict = {"action": "store.set", "input": {"namespace": space, "key": "b", "value": 1, "if_revision": 7}}

    def traces():
        return [
            len(w.ok("listKeys", namespace=space)["items"]), len(w.ok("listLinks", namespace=space)["items"]),
            len(w.ok("listWorkflowSlots", workflow=flow)["items"]), len(w.ok("listDocuments", run=run)["items"]),
            len(w.ok("listRuns", workflow=child)["items"]), w.show(other)["bufferedSignals"], w.show(run)["version"],
        ]

    before = state(w, run)
    same(complete(w, w.task(action), {"ok": 1}, writes=[*writes, conflict])["error"]["code"], "conflict", "the refused write")
    failed = w.until(run, "failed")
    same((failed["error"]["code"], len(failed["failures"])), ("conflict", 1), "the recorded error")
    same((traces(), state(w, run)), ([0] * 7, before), "what a failed transition leaves")
    w.ok("retryRun", run=run)
    same(complete(w, w.task(action), {"ok": 1}, writes=writes)["outcome"], "completed", "the second try")
    w.until(run, "completed")
    w.wait(lambda: traces() == [1] * 7, "each write has been made once")


@promise("B3")
def a_checkpoint_fixes_places_state_and_documents(w):
    put = "type: action.call, action: document.put, input: { kind: text, key: KEY, body: BODY } }"
    run = w.start(w.publish(f"""
name: NAME
steps:
  - {{ id: one, {put.replace("KEY", "note").replace("BODY", "first")}
  - {{ id: two, {put.replace("KEY", "note").replace("BODY", "second")}
  - {{ id: three, {put.replace("KEY", "other").replace("BODY", "third")}
  - {{ id: four, type: action.call, action: document.remove, input: {{ key: note }} }}
  - {{ id: done, type: control.return }}
"""))
    w.until(run, "completed")
    seen = [[(row["key"], row["body"]) for row in w.ok("listDocuments", run=run, version=version)["items"]] for version in range(5)]
    note, other = ("note", "second"), ("other", "third")
    same([sorted(rows) for rows in seen], [[], [("note", "first")], [note], [note, other], [other]], "the documents by version")
    rows = w.ok("listHistory", run=run)["items"]
    same([row["entry"]["version"] for row in rows], list(range(5)), "the versions of the checkpoints")
    states = [state(w, run, version) for version in range(5)]
    same([[one["place"] for one in found["activations"]] for found in states], [["one"], ["two"], ["three"], ["four"], []], "the places by version")
    same([len(found["context"]["vars"]) for found in states], [0, 1, 2, 3, 4], "the number of variables by version")


@promise("B5")
def a_failed_step_is_not_retried_until_someone_retries_or_dismisses_it(w):
    action = remote(w)
    run = w.start(w.publish(PAY.replace("ACTION", action)))
    w.send(run, "PAY", {"cents": 7})
    fail(w, w.task(action))
    failed = w.until(run, "failed")
    same([failed["places"], failed["version"], failed["error"]["code"], "wakeAt" in failed], [["idle"], 0, "bankDown", False], "the failed run")
    same(w.ok("pollTasks", worker="worker", actions=[action])["tasks"], [], "the tasks of a failed run")
    same(w.send(run, "PAY", {"cents": 8})["outcome"], "buffered", "a signal to a failed run")
    w.no(409, "signalRun", run=run, name="PAY", body={"cents": 9}, strict=True)
    w.ok("retryRun", run=run)
    task = w.task(action)
    same((task["input"], task["attempt"]), ({"cents": 7}, 2), "the input of a retry")
    fail(w, task)
    w.ok("dismissRun", run=run)
    task = w.task(action)
    same(task["input"], {"cents": 8}, "the input after the failed signal was dismissed")
    complete(w, task, "paid")
    same(w.until(run, "completed")["result"], "paid", "the result")
    same([entry.get("payload") for entry in w.history(run)], [None, {"cents": 8}], "the payloads in the history")
    w.no(409, "retryRun", run=run)


@promise("B6")
def a_retry_policy_sets_number_delay_and_codes(w):
    action = remote(w)
    listed = w.start(w.publish(steps(f"type: action.call, action: {action}, retry: {{ attempts: 5, delay: 50ms, retryOn: [busy] }}")))
    runs = {name: w.start(w.publish(steps(f"type: action.call, {DOWN}, retry: {{ {policy} }}"))) for name, policy in {
        "doubled": "attempts: 4, delay: 200ms, maxDelay: 600ms", "fixed": "attempts: 12, delay: 20ms, backoff: fixed",
    }.items()}
    write = f"action: store.set, input: {{ namespace: {w.fresh('n')}, key: a, value: 1, if_revision: 7 }}"
    conflict = w.start(w.publish(steps(f"type: action.call, {write}, retry: 3")))
    down = f"{{ id: down, type: action.call, {DOWN}, retry: {{ attempts: 9, delay: 100s, maxDelay: 100s }} }}"
    up = "{ id: go, type: wait.signal, signal: GO }, { id: on, type: wait.signal, signal: ON }"
    patient = w.start(w.publish(steps(f"type: control.parallel, branches: {{ down: [{down}], up: [{up}] }}")))
    fail(w, w.task(action), "busy")
    fail(w, w.task(action), "bankDown")
    same([one["error"]["code"] for one in w.until(listed, "failed")["failures"]], ["busy", "bankDown"], "a code that is not listed")
    same([(one["error"]["code"], one["error"]["final"]) for one in w.until(conflict, "failed")["failures"]], [("conflict", True)], "a final error")
    doubled, fixed = w.until(runs["doubled"], "failed"), w.until(runs["fixed"], "failed")
    same([doubled["attempts"][0]["failed"], fixed["attempts"][0]["failed"], len(fixed["failures"])], [5, 13, 10], "the failed tries")
    times = [one["at"] for one in doubled["failures"]]
    gaps = [seconds(start, end) for start, end in zip(times, times[1:])]
    expect(all(gap >= least for gap, least in zip(gaps, [0.2, 0.4, 0.6, 0.6])) and gaps[3] < 1.6, f"the delays are {gaps}")
    shown = w.wait(lambda: (lambda run: run if run["failures"] else None)(w.show(patient)), "the patient run has failed once")
    same(seconds(shown["failures"][0]["at"], shown["wakeAt"]), 100.0, "the time until the retry")
    w.send(patient, "GO")
    w.wait(lambda: places(w, patient) == ["down", "on"], "the other branch goes on")
    w.ok("cancelRun", run=patient)


@promise("B7")
def spent_retries_lead_to_the_error_place_or_stop_the_run(w):
    action = remote(w)
    graph = """
name: NAME
initial: idle
places:
  idle: { kind: step }
  work: { kind: step }
  broken: { kind: step }
  done: { kind: end }
  told: { kind: end, output: { $expr: error.code } }
transitions:
  - { id: begin, from: idle, to: work, action: { name: transform, input: { n: 1 } } }
  - { id: pay, from: work, to: done, action: { name: ACTION, input: {} }, retry: { attempts: 1, delayMs: 20, MORE } }
  - { id: tell, from: broken, to: told }
""".replace("ACTION", action)
    told = ["begin", "__error:pay", "tell"]
    paths = {"place: broken, target: idle": ["begin", "__retry:pay", *told], "place: broken": told}
    for more, wanted in paths.items():
        run = w.start(w.publish(graph.replace("MORE", more)))
        fail(w, w.task(action))
        fail(w, w.task(action))
        same(w.until(run, "completed", "failed")["result"], "bankDown", f"the result with {more}")
        same([entry["action"].removeprefix("__auto:") for entry in w.history(run)[1:]], wanted, f"the path with {more}")
    plain = w.start(w.publish(steps(f"type: action.call, action: {action}, retry: {{ attempts: 1, delay: 20ms }}")))
    fail(w, w.task(action))
    fail(w, w.task(action))
    same([w.until(plain, "failed")[name] for name in ("places", "version")], [["s0"], 0], "a run without an error place")
    w.ok("retryRun", run=plain)
    complete(w, w.task(action))
    w.until(plain, "completed")


@promise("B8")
def a_timed_out_action_can_write_nothing(w):
    action, key = remote(w), w.fresh("late")
    call = lambda more: steps(f"type: action.call, action: {action}{more}")
    for setting, wanted in [("", 300.0), (", timeout: 0", None), (", timeout: 40s", 40.0)]:
        run = w.start(w.publish(call(setting)))
        task = w.task(action)
        same(30 + seconds(task["leaseUntil"], task["deadline"]) if "deadline" in task else None, wanted, f"the time limit with `{setting}`")
        complete(w, task)
        w.until(run, "completed")
    run = w.start(w.publish(call(", timeout: 300ms, retry: { attempts: 1, delay: 10ms }")))
    late = [w.task(action), w.task(action)]
    failed = w.until(run, "failed")
    same([one["error"]["code"] for one in failed["failures"]], ["timeout"] * 2, "the failed tries")
    for task, failure in zip(late, failed["failures"]):
        expect(0 <= seconds(task["deadline"], failure["at"]) < 5, f"the deadline was {task['deadline']}, and the timeout came at {failure['at']}")
        write = {"action": "store.set", "input": {"namespace": "late", "key": key, "value": 1}}
        w.no(409, "completeTask", task=task["id"], fence=task["fence"], output=1, writes=[write])
    w.no(404, "getKey", namespace="late", key=key)
    same((w.show(run)["version"], w.show(run)["status"]), (0, "failed"), "the run after late results")


@promise("B9")
def a_waiting_run_has_no_owner_and_a_signal_reaches_it_from_anywhere(w):
    flow = w.publish("""
name: NAME
steps:
  - { id: one, type: wait.signal, signal: ONE }
  - { id: two, type: wait.signal, signal: TWO }
  - { id: ask, type: human.task }
  - { id: done, type: control.return, value: { one: { $expr: vars.one }, two: { $expr: vars.two }, ask: { $expr: vars.ask } } }
""")
    run = w.start(flow)
    shown = w.until(run, "waiting")
    expect("owner" not in shown and "wakeAt" not in shown and not shown["attempts"], f"a waiting run holds something: {shown}")
    w.send(run, "ONE", {"from": "outside"})
    w.done(w.publish("""
name: NAME
steps:
  - { id: tell, type: action.call, action: workflow.signal, input: { run: { $expr: payload.run }, signal: TWO, payload: { from: a run } } }
"""), {"run": run})
    w.wait(lambda: places(w, run) == ["ask"], "the signal of another run has arrived")
    expect("owner" not in w.until(run, "waiting"), "a waiting run has an owner")
    token = w.ok("createAnswerLink", run=run)["token"]
    if w.door.name == "cli":
        expect(not w.door.command(["token", "resume", '{"from":"a link"}', "--token-file", w.file(token)]).refused, "the link was refused")
    else:
        w.ok("resumeFlow", token=token, input={"from": "a link"})
    same(w.until(run, "completed")["result"], {"one": {"from": "outside"}, "two": {"from": "a run"}, "ask": {"from": "a link"}}, "the payloads")


@promise("B10")
def signals_are_checked_kept_in_order_and_given_once(w):
    flow = w.publish("""
name: NAME
steps:
  - { id: first, type: wait.signal, signal: FIRST }
  - { id: go, type: wait.signal, signal: GO, payload: SCHEMA, filter: event.n > 1 }
  - { id: more, type: wait.signal, signal: GO, payload: SCHEMA }
  - { id: done, type: control.return, value: [{ $expr: vars.go.n }, { $expr: vars.more.n }] }
""".replace("SCHEMA", "{ type: object, required: [n] }"))
    run = w.start(flow)
    before = state(w, run)
    w.no(422, "signalRun", run=run, name="GO", body={})
    w.no(409, "signalRun", run=run, name="GO", body={"n": 2}, strict=True)
    same((w.show(run)["bufferedSignals"], state(w, run)), (0, before), "the run after refused signals")
    same(w.send(run, "GO", {"n": 9}, ttl="1ms")["outcome"], "buffered", "a signal that expires at once")
    row = w.wait(lambda: [row for row in w.ok("listTimeline", run=run)["items"] if row["action"] == "signal.expired"], "the signal expires")[0]
    expect(row["detail"]["expires"] <= row["at"], f"the expiry is recorded as {row}")
    for n, key in [(1, "a"), (2, "b"), (2, "b"), (3, "c")]:
        same(w.send(run, "GO", {"n": n}, key=f"{flow}-{key}")["outcome"], "buffered", "a signal that nothing takes now")
    w.no(422, "signalRun", run=run, name="GO", body={"n": 5}, key=f"{flow}-b")
    same(w.show(run)["bufferedSignals"], 3, "the number of kept signals")
    w.send(run, "FIRST")
    same(w.until(run, "completed")["result"], [2, 1], "the signals that were taken, in order of arrival")
    guarded = w.start(w.publish(PAY.replace(PAYS, "guard: { expr: event.cents > 5 }")))
    expect("guard" in w.no(409, "signalRun", run=guarded, name="PAY", body={"cents": 1}), "the refusal does not name the guard")
    same((w.show(guarded)["bufferedSignals"], w.show(guarded)["version"]), (0, 0), "the run after a guard's no")


@promise("B10")
def a_run_keeps_a_bounded_number_of_signals(w):
    action = remote(w)
    run = w.start(w.publish(steps("type: wait.signal, signal: FIRST", "type: wait.signal, signal: GO")))
    w.start(w.publish(steps(f"type: control.forEach, items: {{ $expr: '[1..10]' }}, body: [{{ id: tell, type: action.call, action: {action} }}]")))
    signal = {"action": "workflow.signal", "input": {"run": run, "signal": "GO"}}
    for count in [100] * 9 + [99]:
        same(complete(w, w.task(action), writes=[signal] * count)["outcome"], "completed", "the outcome of the signals")
    same(w.send(run, "GO")["outcome"], "buffered", "the last signal that is kept")
    expect("1000" in w.no(409, "signalRun", run=run, name="GO", body=None), "the refusal does not name the bound")
    # While the run still handles the last signal, this one would have to be kept too: the refusal says to retry.
    w.wait(lambda: not w.call("signalRun", run=run, name="FIRST", body=None).refused, "the signal that the run waits for is taken")
    w.until(run, "completed")


CHILD = """
name: NAME
steps:
  - { id: bad, type: control.fail, condition: payload.n < 0, code: negative }
  - { id: ask, type: wait.signal, signal: GO, condition: payload.n = 0 }
  - { id: done, type: control.return, value: { $expr: payload.n * 10 } }
"""


@promise("B11")
def children_start_and_end_with_their_parent(w):
    child = w.publish(CHILD)
    call = f"{{ id: call, type: workflow.call, workflow: {child}, input: {{ n: {{ $expr: n }} }} }}"
    flow = w.publish(steps(
        f"type: control.forEach, items: {{ $expr: payload.list }}, itemVar: n, parallel: true, saveAs: all, body: [{call}]",
        "type: control.return, value: { $expr: vars.all }"))
    parent = w.start(flow, {"list": [1, 2, 3, 4, 5]})
    same(w.until(parent, "completed")["result"], [10, 20, 30, 40, 50], "the results of five children")
    children = w.ok("listRuns", parent=parent)["items"]
    same(len([row for row in children if row["workflow"] == child and row["status"] == "completed"]), 5, "the number of children")
    failed = w.until(w.start(flow, {"list": [-1]}), "failed")
    expect(failed["error"]["code"] == "childrenFailed" and "negative" in failed["error"]["message"], f"a failed child gives {failed['error']}")
    top = w.publish(steps(f"type: workflow.call, workflow: {flow}, input: {{ list: [0, 0] }}"))
    root = w.start(top)
    under = lambda run: w.ok("listRuns", parent=run)["items"]
    middle = w.wait(lambda: under(root), "the child has started")[0]["id"]
    leaves = w.wait(lambda: (lambda rows: rows if len(rows) == 2 else None)(under(middle)), "the grandchildren have started")
    w.ok("cancelRun", run=root)
    for run in [root, middle, *[row["id"] for row in leaves]]:
        w.until(run, "cancelled")
    refused = w.publish(steps("type: workflow.call, workflow: missing-child"))
    stopped = w.until(w.start(refused), "failed")
    same((under(stopped["id"]), stopped["version"]), ([], 0), "a transition whose child cannot start")


@promise("B11")
def a_wait_for_children_follows_its_rule(w):
    action, child = remote(w), w.publish(CHILD)
    graph = """
name: NAME
initial: begin
places: { begin: { kind: step }, wait: { kind: wait, children: RULE }, done: { kind: end, output: { $expr: context.ends } } }
transitions:
  - { id: start, from: begin, to: wait, action: { name: ACTION, input: {} } }
  - { id: end, from: wait, to: done, set: [{ to: ends, value: { $expr: event } }] }
""".replace("ACTION", action)
    # With each rule: the inputs of the children, how the run ends, and how many children have ended then.
    rules = [
        ("all", [1, 2], "completed", 2), ("allSettled", [1, -1], "completed", 2), ("any", [1, 0], "completed", 1),
        ("{ n: 2 }", [1, 2, 0], "completed", 2), ("all", [1, -1], "failed", None),
    ]
    for rule, inputs, status, ended in rules:
        run = w.start(w.publish(graph.replace("RULE", rule)))
        complete(w, w.task(action), {}, writes=[{"action": "workflow.call", "input": {"workflow": child, "input": {"n": n}}} for n in inputs])
        shown = w.until(run, "completed", "failed")
        same((shown["status"], len(w.ok("listRuns", parent=run)["items"])), (status, len(inputs)), f"the end with {rule}")
        if ended:
            entries = [entry["action"] for entry in w.history(run)]
            same(sum(entry in ("__child:wait", "__resolve_wait:wait") for entry in entries), ended, f"the ends that the parent with {rule} got")


@promise("B12")
def timers_fire_when_they_are_due(w):
    run = w.start(w.publish("""
name: NAME
steps:
  - { id: nap, type: wait.sleep, for: 400ms }
  - { id: past, type: wait.sleep, until: "2026-01-01T00:00:00Z" }
  - { id: ask, type: human.task, timeout: 300ms, onTimeout: [{ id: late, type: vars.set, values: { late: true } }] }
  - { id: until, type: wait.sleep, until: { $expr: payload.at } }
  - { id: done, type: control.return, value: { $expr: vars.late } }
"""), {"at": "2099-01-02T03:04:05Z"})
    w.wait(lambda: places(w, run) == ["until"], "the run sleeps until 2099")
    same(w.show(run)["wakeAt"], "2099-01-02T03:04:05Z", "the time at which the run goes on")
    expect("owner" not in w.show(run), "a sleeping run has an owner")
    at = {entry["action"]: entry["at"] for entry in w.history(run)}
    order = ["__start", "__timer:nap", "__timer:past", "__timer:ask"]
    gaps = [seconds(at[start], at[end]) for start, end in zip(order, order[1:])]
    expect(0.4 <= gaps[0] < 5 and gaps[1] < 5 and 0.3 <= gaps[2] < 5, f"the timers took {gaps}")
    w.ok("cancelRun", run=run)


@promise("B12")
def a_schedule_is_paused_resumed_and_run_now(w):
    flow, name = w.publish(steps("type: control.return, value: { $expr: payload.n }")), w.fresh("schedule")
    w.ok("putSchedule", name=name, cron="* * * * * *", workflow=flow, input={"n": 1})
    w.wait(lambda: w.ok("showSchedule", name=name)["fired"] > 0, "the schedule has fired")
    w.ok("pauseSchedule", name=name, reason="holidays")
    shown = w.ok("showSchedule", name=name)
    same((shown["paused"]["reason"], shown["nextFirings"]), ("holidays", []), "the paused schedule")
    w.wait(lambda: w.ok("showSchedule", name=name)["skipped"] > 1, "firings are skipped")
    fired = w.ok("showSchedule", name=name)["fired"]
    run = w.ok("runSchedule", name=name, input={"n": 2})["id"]
    same(w.until(run, "completed")["result"], 2, "the result of the run that was started by hand")
    same(w.ok("showSchedule", name=name)["fired"], fired, "the firings of the paused schedule")
    w.ok("resumeSchedule", name=name)
    w.wait(lambda: w.ok("showSchedule", name=name)["fired"] > fired, "the resumed schedule fires")
    w.ok("deleteSchedule", name=name)


@promise("B12")
def schedules_follow_the_clock_of_their_time_zone(w):
    flow, name = w.publish(steps("type: wait.signal, signal: GO")), w.fresh("schedule")

    def change(year, month):
        last = datetime.date(year, month, 31)
        return (last - datetime.timedelta(days=(last.weekday() + 1) % 7)).day

    spring = lambda year: {True: "01:00", False: "00:30" if change(year, 3) < 28 else "01:30"}[change(year, 3) == 28]
    autumn = lambda year: "00:30" if 28 <= change(year, 10) else "01:30"
    for month, wanted in [(3, spring), (10, autumn)]:
        w.ok("putSchedule", name=name, cron=f"30 2 28 {month} *", workflow=flow, timeZone="Europe/Berlin")
        show = lambda: (lambda found: found if f" {month} " in found["cron"] else None)(w.ok("showSchedule", name=name, firings=20))
        times = w.wait(show, "the schedule is shown as it was put")["nextFirings"]
        years = [int(time[:4]) for time in times]
        same(years, list(range(years[0], years[0] + 20)), "the years of the firings")
        same(times, [f"{year}-{month:02}-28T{wanted(year)}:00Z" for year in years], "the firings at a change of the clock")
    w.ok("putSchedule", name=name, cron="* * * * * *", workflow=flow, input={"a": 1})
    often = "triggers: [{ id: often, type: schedule, cron: '* * * * * *', overlap: skip }]\n"
    skipping = w.publish(often + steps("type: wait.signal, signal: GO"))
    shown = w.wait(lambda: (lambda found: found if found["fired"] >= 2 else None)(w.ok("showSchedule", name=name)), "the schedule has fired twice")
    w.ok("deleteSchedule", name=name)
    fired = w.wait(lambda: (lambda found: found if found["off"] else None)(w.ok("showSchedule", name=name)), "the schedule is off")
    runs = w.ok("listRuns", workflow=flow)["items"]
    same((len(runs), fired["nextFirings"], shown["missed"], shown["overlap"]), (fired["fired"], [], "once", "start"), "one run for each firing")
    same(w.show(runs[0]["id"])["context"]["payload"], {"a": 1}, "the input of a firing")
    own = w.wait(lambda: (lambda found: found if found["skipped"] else None)(w.ok("showSchedule", name=f"{skipping}/often")), "a firing was skipped")
    same((own["fired"], len(w.ok("listRuns", workflow=skipping)["items"])), (1, 1), "the firings while a run is going")
    w.ok("archiveWorkflow", name=skipping)
