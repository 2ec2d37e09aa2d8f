"""Checks of durable runs (B13 to B23), through any door."""

import datetime
import time

from doorkit import expect, promise, same

ASK = "name: NAME\nsteps:\n  - { id: ask, type: human.task, title: Go on? }\n  - { id: done, type: control.return, value: { $expr: vars.ask } }\n"
WORK = """name: NAME
steps:
  - { id: work, type: action.call, action: ACTION, input: { n: { $expr: payload.n } } }
  - { id: done, type: control.return, value: { $expr: vars.work } }
"""


def key(w, name, *permissions, **more):
    """Creates an API key in the tenant of the check, and returns its secret."""
    return w.ok("createApiKey", name=name, permissions=list(permissions), **more)["secret"]


def audited(w, run, operation=None):
    """Returns the rows of the audit trail about a run."""
    rows = w.ok("listAudit", limit=200)["items"]
    return [row for row in rows if row.get("run") == run and operation in (None, row["operation"])]


def remote(w, **more):
    """Registers a remote action and returns its name."""
    action = w.fresh("work") + ".do"
    w.ok("putAction", name=action, **more)
    return action


def at(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def later(w, **time_):
    """Returns a time after that of the server."""
    return (at(w.call("diagnose").value["at"]) + datetime.timedelta(**time_)).isoformat()


DOCUMENTS = """name: NAME
documents:
  note: { type: object, required: [text], properties: { text: { type: string } } }
steps:
  - { id: first, type: action.call, action: document.put, input: { key: a, kind: note, body: { text: one }, tags: [old] } }
  - { id: again, type: action.call, action: document.put, input: { key: a, kind: note, body: { text: two }, tags: [new] } }
  - { id: more, type: action.call, action: document.put, input: { key: b, kind: note, body: { text: three }, tags: [new, last] } }
  - { id: one, type: vars.set, values: { one: 1 } }
  - { id: undone, type: action.call, action: document.put, input: { key: c, kind: note, body: { text: four } }, saveAs: one.deeper }
"""


@promise("B13")
def documents_are_replaced_by_key_and_rolled_back_with_their_step(w):
    failed = w.done(w.publish(DOCUMENTS))
    same(failed["error"]["code"], "cannotSave", "the error of the step whose result cannot be saved")
    found = lambda **more: [(one["key"], one["body"]["text"]) for one in w.ok("listDocuments", run=failed["id"], **more)["items"]]
    same(found(), [("a", "two"), ("b", "three")], "the documents")
    same(found(version=1), [("a", "one")], "the documents at version 1")
    chosen = [found(tag="new"), found(tag="old"), found(tag="last"), found(kind="note", key="b")]
    same(chosen, [found(), [], found()[1:], found()[1:]], "the documents by tag, kind and key")
    wrong = DOCUMENTS.replace("body: { text: two }", "body: { words: two }")
    failed = w.done(w.publish(wrong))
    same((failed["error"]["code"], failed["places"]), ("invalidDocument", ["again"]), "a document that does not match its kind")
    same(found(), [("a", "one")], "the documents after the wrong one")


STATELESS = """name: NAME
steps:
  - { id: put, type: action.call, action: document.put, input: { key: a, kind: note, body: { text: one } } }
  - { id: slot, type: action.call, action: state.set, input: { scope: session, key: count, value: 7 } }
  - { id: ask, type: human.task, title: Go on?, condition: payload.ask }
  - { id: rest, type: wait.sleep, for: 1h, condition: payload.rest }
  - { id: done, type: control.return, value: { $expr: session.count + payload.n } }
"""


@promise("B14")
def a_stateless_run_stores_nothing_and_ends_at_the_first_wait(w):
    flow = w.publish(STATELESS)
    ended = w.ok("runStateless", workflow=flow, input={"n": 1, "ask": False, "rest": False})
    same((ended["status"], ended["result"], [one["body"] for one in ended["documents"]]), ("completed", 8, [{"text": "one"}]), "the end")
    for asked, place in [({"ask": True, "rest": True}, "ask"), ({"ask": False, "rest": True}, "rest")]:
        stopped = w.ok("runStateless", workflow=flow, input={"n": 1, **asked})
        same((stopped["status"], stopped["places"], stopped["snapshot"]["session"]), ("waiting", [place], {"count": 7}), "the pause")
    same(w.ok("listRuns", workflow=flow)["items"], [], "the stored runs")
    durable = w.done(flow, {"n": 1, "ask": False, "rest": False})
    same(durable["result"], 8, "the result of a durable run of the same workflow")
    store = w.fresh("store")
    count = w.publish(f"name: NAME\nsteps:\n  - {{ id: up, type: action.call, action: store.increment, input: {{ namespace: {store}, key: a }} }}\n")
    expect("`up`" in w.no(422, "runStateless", workflow=count), "a step that needs the data store was not named")
    same(w.ok("listKeys", namespace=store)["items"], [], "the keys that the refused run wrote")
    child = w.publish(f"name: NAME\nsteps:\n  - {{ id: sub, type: workflow.call, workflow: {flow} }}\n")
    expect("children" in w.no(422, "runStateless", workflow=child), "a step that needs children was not refused as such")


BESIDE = """name: NAME
steps:
  - id: both
    type: control.parallel
    branches:
      - [{ id: work, type: action.call, action: ACTION, timeout: PATIENCE }]
      - [{ id: ask, type: human.task, title: Go on? }]
  - { id: done, type: control.return, value: { $expr: '{"work": vars.work, "ask": vars.ask}' } }
"""


@promise("B15")
def a_result_outlives_other_decisions_but_not_its_own_attempt(w):
    w.own_tenant()
    action = remote(w)
    flow = w.publish(BESIDE.replace("ACTION", action).replace("PATIENCE", "1h"))
    run = w.start(flow)
    task, before = w.task(action), w.show(run)["version"]
    w.send(run, "ask", "yes")
    expect(w.show(run)["version"] > before, "the signal to the other branch did not change the run")
    w.ok("completeTask", task=task["id"], fence=task["fence"], output="made")
    same(w.until(run, "completed", "failed")["result"], {"work": "made", "ask": "yes"}, "a result that came after another decision")

    run = w.start(flow)
    task = w.task(action)
    w.ok("cancelRun", run=run)
    ended = w.until(run, "cancelled")["version"]
    writes = [{"action": "store.set", "input": {"namespace": "b15", "key": "late", "value": 1}}]
    w.no(409, "completeTask", task=task["id"], fence=task["fence"], output="late", writes=writes)
    after = w.show(run)
    same((after["status"], after["version"], after["context"]["vars"]), ("cancelled", ended, {}), "the cancelled run after a late result")
    w.no(409, "heartbeatTask", task=task["id"], fence=task["fence"])

    run = w.start(w.publish(BESIDE.replace("ACTION", action).replace("PATIENCE", "1s")))
    task = w.task(action)
    same(w.until(run, "failed")["error"]["code"], "timeout", "the error of the slow step")
    w.no(409, "completeTask", task=task["id"], fence=task["fence"], output="late", writes=writes)
    same(w.until(run, "failed")["error"]["code"], "timeout", "the error after a late result")
    same(w.ok("listKeys", namespace="b15")["items"], [], "the keys that late results wrote")


OLD = """name: NAME
steps:
  - { id: ask, type: human.task, title: Go on? }
  - { id: done, type: control.return, value: { $expr: '{"by": "old", "was": vars.ask}' } }
"""
NEW = """name: NAME
steps:
  - { id: question, type: human.task, title: Go on? }
  - { id: done, type: control.return, value: { $expr: '{"by": "new", "was": vars.question, "n": payload.n}' } }
"""


@promise("B16")
def a_run_keeps_its_definition_until_it_is_migrated(w):
    w.own_tenant()
    flow = w.publish(OLD)
    stays, moves = w.start(flow), w.start(flow)
    w.publish(NEW, name=flow)
    before = w.until(moves, "waiting")
    more = {"run": moves, "version": 2, "places": {"ask": "question"}, "context": {"payload": {"n": 5}, "vars": {"$expr": "context.vars"}}}
    expect("ask" in w.no(422, "migrateRun", run=moves, version=2), "a place that the new version lacks was not named")
    planned = w.ok("migrateRun", dryRun=True, **more)
    same((planned["dryRun"], planned["from"], planned["to"]), (True, ["ask"], ["question"]), "the dry run")
    same(w.show(moves), before, "the run after the dry run")
    w.no(412, "migrateRun", match=before["version"] + 1, **more)
    done = w.ok("migrateRun", match=before["version"], reason="new question", **more)
    same({**done, "dryRun": True}, planned, "the migration")
    same([row["actor"] for row in audited(w, moves, "run.migrate")], ["apikey:client"], "the audited migrations")
    same(w.show(moves)["version"], before["version"] + 1, "the version after the migration")
    w.send(moves, "question", "a")
    w.send(stays, "ask", "b")
    same(w.until(moves, "completed", "failed")["result"], {"by": "new", "was": "a", "n": 5}, "the result of the migrated run")
    kept = w.until(stays, "completed", "failed")
    same((kept["result"], kept["definition"]), ({"by": "old", "was": "b"}, before["definition"]), "the run that was not migrated")


FAIL = """name: NAME
steps:
  - { id: ask, type: wait.signal, signal: GO }
  - { id: count, type: action.call, action: store.increment, input: { namespace: { $expr: payload.space }, key: n } }
  - { id: last, type: wait.signal, signal: END }
"""
DISMISS = """name: NAME
initial: open
envelope: true
places: { open: { kind: step }, done: { kind: end } }
signals: { GO: {} }
transitions:
  - { id: go, from: open, to: done, on: { signal: GO }, action: { name: store.increment, input: { namespace: { $expr: payload.space }, key: n } } }
"""


@promise("B17")
def each_command_is_one_audited_commit_on_the_version_seen(w):
    w.own_tenant()
    space, flow = w.fresh("space"), w.publish(FAIL)
    w.ok("setKey", namespace=space, key="n", value="no number")
    run = w.start(flow, {"space": space})
    w.until(run, "waiting")

    def command(operation, name, **more):
        before, rows = w.show(run), len(audited(w, run))
        w.no(412, operation, run=run, match=before["version"] + 1, **more)
        same((w.show(run), len(audited(w, run))), (before, rows), f"the run and its audit trail after a refused {name}")
        done = w.ok(operation, run=run, match=before["version"], reason="because " + name, **more)
        added = [row for row in audited(w, run)[rows:] if row["operation"].startswith("run.")]
        found = [(row["operation"], row["actor"], row["detail"]["reason"]) for row in added]
        same(found, [("run." + name, "apikey:client", "because " + name)], f"the audit trail of {name}")
        return done

    command("suspendRun", "suspend")
    same(w.show(run)["status"], "suspended", "the suspended run")
    command("resumeRun", "resume")
    same(w.show(run)["status"], "waiting", "the resumed run")
    command("patchRun", "patch", fields={"vars": {"note": 1}})
    same(w.show(run)["context"]["vars"], {"note": 1}, "the patched data")
    w.send(run, "GO")
    w.until(run, "failed")
    w.ok("setKey", namespace=space, key="n", value=4)
    command("retryRun", "retry")
    same(w.until(run, "waiting")["context"]["vars"]["count"]["value"], 5, "the result of the retried step")
    command("moveRun", "move", to="ask")
    same(w.until(run, "waiting")["places"], ["ask"], "the place after the move")
    fork = command("forkRun", "fork", version=0)["id"]
    same((w.show(fork)["places"], w.show(fork)["context"]["vars"]), (["ask"], {}), "the fork of the first checkpoint")
    command("cancelRun", "cancel")
    same((w.show(run)["status"], w.show(fork)["status"]), ("cancelled", "waiting"), "the cancelled run and its fork")

    w.ok("setKey", namespace=space, key="n", value="no number")
    run = w.start(w.publish(DISMISS), {"space": space})
    w.until(run, "waiting")
    w.send(run, "GO", {"try": 1})
    w.until(run, "failed")
    command("dismissRun", "dismiss")
    same(w.until(run, "waiting").get("error"), None, "the error after the dismissal")


@promise("B18")
def a_start_is_idempotent_may_signal_wait_and_have_a_deadline(w):
    flow, name = w.publish(ASK), w.fresh("order")
    first = w.ok("startRun", workflow=flow, input={"n": 1}, key=name)
    again = w.ok("startRun", workflow=flow, input={"n": 1}, key=name)
    same((first["created"], again["created"], again["id"]), (True, False, first["id"]), "two starts with one key")
    w.no(422, "startRun", workflow=flow, input={"n": 2}, key=name)
    w.ok("startRun", workflow=flow, input={"n": 1}, key=name, signal={"name": "ask", "payload": "old"})
    same(w.until(first["id"], "completed")["result"], "old", "the run that was there and got the signal")
    made = w.ok("startRun", workflow=flow, key=w.fresh("order"), signal={"name": "ask", "payload": "new"})
    same((made["created"], w.until(made["id"], "completed")["result"]), (True, "new"), "the run that was made with the signal")
    off = w.ok("startRun", workflow=flow, at=later(w, hours=1))["id"]
    same(w.show(off)["status"], "pending", "a start that is put off")
    time_ = later(w, seconds=2)
    soon, short = w.ok("startRun", workflow=flow, at=time_)["id"], w.ok("startRun", workflow=flow, deadline=time_)["id"]
    shown = w.until(short, "cancelled")
    expect(at(shown["updatedAt"]) >= at(shown["deadline"]) == at(time_), f"the run was cancelled before its deadline: {shown}")
    w.until(soon, "waiting")
    began = w.ok("listWaits", run=soon)["items"][0]["since"]
    expect(at(began) >= at(time_), f"the run that was put off until {time_} began to wait at {began}")
    same(w.show(off)["status"], "pending", "a start that is put off for longer")


@promise("B18")
def limited_runs_wait_for_their_turn_in_order_of_arrival(w):
    flow = w.publish("name: NAME\nconcurrency: { key: { $expr: payload.who }, limit: 1 }\n" + ASK.split("\n", 1)[1])
    ann = [w.ok("startRun", workflow=flow, input={"who": "ann"})["id"] for _ in range(3)]
    bob = w.ok("startRun", workflow=flow, input={"who": "bob"})["id"]
    w.until(ann[0], "waiting")
    w.until(bob, "waiting")
    last = w.show(ann[2])
    same((last["status"], last["waitingFor"]["key"], last["waitingFor"]["position"]), ("pending", "ann", 2), "the last run")
    keys = {row["key"]: (row["active"], row["waiting"]) for row in w.ok("listLimits", name=flow)["items"]}
    same(keys, {"ann": (1, 2), "bob": (1, 0)}, "active and waiting runs by key")
    w.send(ann[0], "ask", "go")
    w.until(ann[1], "waiting")
    same(w.show(ann[2])["status"], "pending", "the run behind the next one")
    alone = w.publish("name: NAME\nconcurrency: { limit: 1, whenFull: refuse }\n" + ASK.split("\n", 1)[1])
    w.ok("startRun", workflow=alone)
    w.no(409, "startRun", workflow=alone)


@promise("B18", alone=True)
def retention_removes_a_run_but_not_its_audit_trail(w):
    w.own_tenant()
    flow = w.publish(ASK)
    ended, open_ = w.start(flow), w.start(flow)
    w.send(ended, "ask", "yes")
    w.until(ended, "completed")
    trail = audited(w, ended)
    w.site.settings["STEPWELL_ENGINE__RETENTION"] = "1s"
    try:
        w.site.restart()
        time.sleep(0.5)
        w.wait(lambda: w.ok("cleanUp") and w.call("showRun", run=ended).refused, "the ended run is removed")
    finally:
        del w.site.settings["STEPWELL_ENGINE__RETENTION"]
        w.site.restart()
    w.no(404, "listHistory", run=ended)
    same(audited(w, ended)[:len(trail)], trail, "the audit trail of the removed run")
    same(w.show(open_)["status"], "waiting", "the run that has not ended")


TYPED = ASK.replace("steps:", "output: { type: integer }\nsteps:")
ENDS = """name: NAME
initial: split
completion: RULE
places:
  split: { kind: fork, branches: [short, long] }
  short: { kind: step }
  long: { kind: wait, signal: GO }
  one: { kind: end }
  two: { kind: end }
signals: { GO: {} }
transitions:
  - { id: quick, from: short, to: one }
  - { id: slow, from: long, to: two }
"""


@promise("B19")
def a_run_has_one_of_seven_statuses_and_keeps_its_result(w):
    w.own_tenant()
    action = remote(w)
    flow = w.publish(WORK.replace("ACTION", action))
    off = w.start(flow, at=later(w, hours=1))
    same(w.show(off)["status"], "pending", "a run whose time has not come")
    w.ok("cancelRun", run=off)
    same(w.until(off, "cancelled")["status"], "cancelled", "the cancelled run")
    ask = w.start(w.publish(ASK))
    w.until(ask, "waiting")
    w.ok("suspendRun", run=ask)
    same(w.show(ask)["status"], "suspended", "the suspended run")
    run = w.start(flow, {"n": 1})
    task = w.task(action)
    same(w.show(run)["status"], "running", "a run whose action runs")
    w.ok("failTask", task=task["id"], fence=task["fence"], error={"code": "down", "message": "no"})
    same(w.until(run, "failed")["error"]["code"], "down", "the error of the failed run")
    w.ok("retryRun", run=run)
    task = w.task(action)
    w.ok("completeTask", task=task["id"], fence=task["fence"], output=[7])
    done = w.until(run, "completed")
    same(done["result"], [7], "the result")
    for operation in ["cancelRun", "retryRun", "suspendRun"]:
        w.no(409, operation, run=run)
    same(w.show(run), done, "the completed run after commands")
    typed = w.publish(TYPED)
    good, bad = w.start(typed), w.start(typed)
    w.send(good, "ask", 3)
    same(w.until(good, "completed")["result"], 3, "a result that matches the schema of the output")
    w.send(bad, "ask", "x")
    shown = w.until(bad, "failed", "completed")
    same((shown["status"], "result" in shown), ("failed", False), "a run whose result does not match")
    same(shown["error"]["code"], "validationFailed", "the error of a result that does not match")
    first, every = (w.start(w.publish(ENDS.replace("RULE", rule))) for rule in ["firstEnd", "allBranches"])
    w.until(first, "completed")
    same(w.until(every, "waiting")["places"], ["long"], "the branch that must still end")
    w.send(every, "GO")
    w.until(every, "completed")


@promise("B20")
def a_run_that_nobody_can_serve_stays_and_doctor_names_what_is_missing(w):
    w.own_tenant()
    action = remote(w)
    flow = w.publish("name: NAME\nsteps:\n  - { id: go, type: wait.signal, signal: GO }\n" + WORK.split("steps:\n")[1].replace("ACTION", action))
    run = w.start(flow, {"n": 1})
    w.until(run, "waiting")
    w.ok("deleteAction", name=action)
    w.send(run, "GO")
    unserved = lambda: [one for one in w.call("diagnose", late="1s").value["findings"] if one["kind"] == "runsUnserved"]
    found = w.wait(unserved, "the doctor finds the run")
    expect(action in str(found) and run in str(found), f"the doctor does not name the action and the run: {found}")
    before = w.show(run)
    expect(before["status"] != "failed" and not before["failures"], f"the run has failed or was tried: {before}")
    time.sleep(0.5)
    same(w.show(run), before, "the run that no process can serve")
    w.ok("putAction", name=action)
    task = w.task(action)
    w.ok("completeTask", task=task["id"], fence=task["fence"], output="made")
    same(w.until(run, "completed", "failed")["result"], "made", "the result when the action is there again")


@promise("B21")
def a_step_under_which_its_worker_dies_five_times_stops_the_run(w):
    w.own_tenant()
    action = remote(w)
    run, tries = w.start(w.publish(WORK.replace("ACTION", action)), {"n": 1}), []

    def tried():
        tasks = w.ok("pollTasks", worker="dies", actions=[action], lease="1s")["tasks"]
        tries.extend(task["attempt"] for task in tasks)
        return w.show(run)["status"] == "failed"

    w.wait(tried, "the run stops")
    same((w.show(run)["error"]["code"], len(tries)), ("crashed", 5), "the error and the number of tries")
    same(w.ok("pollTasks", worker="next", actions=[action])["tasks"], [], "the tasks after the last try")
    w.ok("retryRun", run=run)
    task = w.task(action)
    w.ok("completeTask", task=task["id"], fence=task["fence"], output="made")
    same(w.until(run, "completed", "failed")["result"], "made", "the result after a retry by hand")


SLEEP = "name: NAME\nsteps:\n  - { id: rest, type: wait.sleep, for: 2s }\n  - { id: ask, type: human.task, title: Go on?, timeout: 1h }\n"


@promise("B22")
def timers_leases_and_lifetimes_follow_one_clock(w):
    w.own_tenant()
    action = remote(w)
    flow, work = w.publish(SLEEP), w.publish(WORK.replace("ACTION", action))

    def between(what, seconds, made, found):
        """Asserts that a time is this long after that of the server."""
        first = at(w.ok("diagnose")["at"])
        value = made()
        last, length = at(w.ok("diagnose")["at"]), datetime.timedelta(seconds=seconds)
        expect(first + length <= at(found(value)) <= last + length, f"{what}: {found(value)} is not {seconds} s after {first} to {last}")
        return value

    run = between("the start of a run", 0, lambda: w.start(flow), lambda run: w.show(run)["createdAt"])
    w.start(work, {"n": 1})
    poll = lambda: w.ok("pollTasks", worker="one", actions=[action], lease="60s", wait="5s")["tasks"][0]
    between("the lease of a task", 60, poll, lambda task: task["leaseUntil"])
    create = lambda: w.ok("createApiKey", name="short", permissions=["workflow:view"], ttl="90s")
    between("the lifetime of a key", 90, create, lambda made: made["expiresAt"])
    store = lambda: w.ok("setKey", namespace="b22", key="a", value=1, ttlSeconds=600)
    between("the lifetime of a value", 600, store, lambda _: w.ok("getKey", namespace="b22", key="a")["expiresAt"])
    wait = w.wait(lambda: w.ok("listWaits", run=run)["items"], "the run asks")[0]
    same(at(wait["due"]) - at(wait["since"]), datetime.timedelta(hours=1), "the time that the wait has")
    rested = at(wait["since"]) - at(w.show(run)["createdAt"])
    expect(rested >= datetime.timedelta(seconds=2), f"the timer of 2 s fired after {rested}")
    history = [at(row["at"]) for row in w.ok("listHistory", run=run)["items"]]
    expect(history == sorted(history), f"the times of the history go back: {history}")


@promise("B23")
def remote_workers_act_under_a_lease_and_complete_once(w):
    w.own_tenant()
    action, other = remote(w), remote(w)
    worker = key(w, "worker", "worker:" + action)
    w.no(403, "pollTasks", as_key=worker, worker="one", actions=[other])
    run = w.start(w.publish(WORK.replace("ACTION", action)), {"n": 1})
    poll = lambda: w.ok("pollTasks", as_key=worker, worker="one", actions=[action], lease="60s")["tasks"]
    old = w.wait(poll, "there is a task")[0]
    same((old["input"], old["run"], old["attempt"]), ({"n": 1}, run, 1), "the task")
    same(w.ok("pollTasks", worker="two", actions=[action])["tasks"], [], "the tasks for another worker")
    renewed = w.ok("heartbeatTask", as_key=worker, task=old["id"], fence=old["fence"], lease="90s", note="half")
    expect(at(renewed["leaseUntil"]) > at(old["leaseUntil"]), f"the heartbeat did not renew the lease: {renewed}")
    w.ok("heartbeatTask", as_key=worker, task=old["id"], fence=old["fence"], lease="1s")
    new = w.task(action, "two")
    expect(new["fence"] > old["fence"] and new["idempotencyKey"] == old["idempotencyKey"], f"the second lease is {new}, the first was {old}")
    writes = [
        {"action": "store.increment", "input": {"namespace": "b23", "key": "count"}, "saveAs": "count"},
        {"action": "document.put", "input": {"key": "a", "kind": "note", "body": "x"}},
    ]
    w.no(409, "completeTask", as_key=worker, task=old["id"], fence=old["fence"], output={"by": "one"}, writes=writes)
    for _ in range(2):
        same(w.ok("completeTask", task=new["id"], fence=new["fence"], output={"by": "two"}, writes=writes)["outcome"], "completed", "the outcome")
    result = w.until(run, "completed", "failed")["result"]
    same((result["by"], result["count"]["value"]), ("two", 1), "the result with that of the write")
    w.no(409, "completeTask", as_key=worker, task=old["id"], fence=old["fence"], output={"by": "one"}, writes=writes)
    same(w.ok("getKey", namespace="b23", key="count")["value"], 1, "the number of writes")
    entry = next(entry for entry in w.history(run) if entry["action"].startswith("__auto:work"))
    documents = w.ok("listDocuments", run=run)["items"]
    same(len(documents), 1, "the number of documents")
    expect(entry["version"] == documents[0]["visibleFrom"], f"the document {documents} is not from the commit of the step {entry}")
