"""Checks of data (slots, keys and links: C1 to D17), through any door."""

import concurrent.futures
import http.client
import json
import os
import subprocess

from doorkit import empty, expect, promise, same
from served import environment

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 4, "examples", "workflows")


def calls(*steps):
    """Returns a document that calls these actions in order and returns their results. A failed call gives its error."""
    lines = [
        f"  - {{ id: c{at}, type: action.call, action: {action}, onError: continue, input: {json.dumps(value, ensure_ascii=False)} }}"
        for at, (action, value) in enumerate(steps)
    ]
    results = ", ".join(f"{{ $expr: vars.c{at} }}" for at in range(len(steps)))
    return "name: NAME\nsteps:\n" + "\n".join(lines) + f"\n  - {{ id: done, type: control.return, value: [{results}] }}\n"


def called(w, *steps):
    """Runs a workflow that calls these actions, and returns their results."""
    return result(w, w.publish(calls(*steps)))


def result(w, workflow, input=None, **more):
    """Runs a workflow that must complete, and returns its result."""
    return ended(w, w.start(workflow, input, **more))


def ended(w, run):
    """Waits until a run has ended, which must be completed, and returns its result."""
    shown = w.until(run, "completed", "failed")
    expect(shown["status"] == "completed", f"the run did not complete: {shown}")
    return shown["result"]


def failed(found, code, part=""):
    """Expects that a call failed with this code (None: with any) and that its message contains this part."""
    error = (found or {}).get("error") or {"code": "none", "message": ""}
    expect(found and "error" in found and error["code"] == (code or error["code"]) and part in error["message"],
           f"{found} is no error `{code}` with `{part}`")


def as_caller(w, *permissions):
    """Returns the secret of a new key with these permissions in the world's tenant."""
    return w.ok("createApiKey", name=w.fresh("caller"), permissions=[*permissions])["secret"]


def absent(w, *place):
    """Expects that a key of a namespace has no value."""
    w.no(404, "getKey", namespace=place[0], key=place[1])


def value(w, *place):
    return w.ok("getKey", namespace=place[0], key=place[1])["value"]


def slot(key, **more):
    return {"scope": "workflow", "key": key, **more}


def entity(id, type="task"):
    return {"type": type, "id": id}


def at_once(count, function):
    """Calls a function from several threads at the same time, and returns the results."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [job.result() for job in [pool.submit(function, at) for at in range(count)]]


class Watch:
    """The events of a watched key or slot."""

    def __init__(self, w, path, words):
        self.cli = w.door.name == "cli"
        if self.cli:
            own = environment({"STEPWELL_SERVER": "http://" + w.server.address, "STEPWELL_API_KEY": w.key})
            words = [w.program, *words, "--json"]
            self.child = subprocess.Popen(words, cwd=w.folder, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        else:
            self.connection = http.client.HTTPConnection(w.server.address, timeout=30)
            self.connection.request("GET", path, headers={"Authorization": "Bearer " + w.key})
            self.answer = self.connection.getresponse()
            expect(self.answer.status == 200, f"{path} is answered with {self.answer.status}")

    def next(self):
        """Returns the next event. Waits for it."""
        while True:
            line = self.child.stdout.readline() if self.cli else self.answer.readline().decode()
            expect(line, "the stream has ended")
            text = line.strip() if self.cli else line.removeprefix("data: ").strip() if line.startswith("data: ") else ""
            if text:
                return json.loads(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.cli:
            self.child.kill()
            self.child.wait()
            self.child.stdout.close()
        else:
            self.connection.close()


SESSION = """name: NAME
steps:
  - { id: before, type: action.call, action: state.get, input: { scope: session, key: n } }
  - { id: set, type: action.call, action: state.set, input: { scope: session, key: n, value: 5 } }
  - { id: go, type: wait.signal, signal: GO }
  - { id: below, type: workflow.call, workflow: CHILD }
  - { id: read, type: vars.set, values: { n: { $expr: session.n } } }
  - { id: delete, type: action.call, action: state.delete, input: { scope: session, key: n } }
  - { id: after, type: action.call, action: state.get, input: { scope: session, key: n, initial: 7 } }
  - { id: done, type: control.return, value: [{ $expr: vars.before.found }, { $expr: vars.below }, { $expr: vars.n }, { $expr: vars.after.value }] }
"""


@promise("C1")
def session_slots_are_in_the_snapshot_and_private_to_the_run(w):
    child = w.publish(calls(("state.get", {"scope": "session", "key": "n"})))
    workflow = w.publish(SESSION.replace("CHILD", child))
    runs = [w.start(workflow) for _ in range(2)]
    for run in runs:
        rests = w.until(run, "waiting")["version"]
        snapshots = [w.ok("showRunVersion", run=run, version=version)["state"].get("session", {}) for version in (rests - 1, rests)]
        same(snapshots, [{}, {"n": 5}], "the session before and after the step")
        w.send(run, "GO")
        nothing = [{"found": False, "value": None, "revision": None}]
        same(w.until(run, "completed")["result"], [False, nothing, 5, 7])


TREE = """name: NAME
steps:
  - { id: set, type: action.call, action: state.set, input: { scope: execution, key: total, value: 1 } }
  - { id: below, type: workflow.call, workflow: CHILD }
  - { id: get, type: action.call, action: state.get, input: { scope: execution, key: total } }
  - { id: count, type: action.call, action: state.increment, input: { scope: workflow, key: count } }
  - { id: done, type: control.return, value: { tree: { $expr: vars.get.value }, count: { $expr: vars.count.value } } }
"""


@promise("C2")
def a_tree_shares_execution_slots_and_a_workflow_shares_its_slots(w):
    add = "{ id: add, type: action.call, action: state.increment, input: { scope: execution, key: total, by: 10 } }"
    child = w.publish(f"name: NAME\nsteps:\n  - {{ id: all, type: control.parallel, branches: [[{add}], [{add.replace('add', 'more')}]] }}\n")
    workflow = w.publish(TREE.replace("CHILD", child))
    first, second = w.done(workflow), w.done(workflow)
    same([first["result"], second["result"]], [{"tree": 21, "count": 1}, {"tree": 21, "count": 2}])
    below = w.ok("listRuns", parent=first["id"])["items"][0]["id"]
    for run in (first["id"], below):
        same(w.ok("getExecutionSlot", run=run, key="total")["value"], 21, "the slot of the tree")
    w.no(404, "getWorkflowSlot", workflow=child, key="count")
    w.ok("deleteRun", run=below)
    same(w.ok("getExecutionSlot", run=first["id"], key="total")["value"], 21, "the slot after the child was deleted")
    w.ok("deleteRun", run=first["id"])
    w.ok("startRun", workflow=child, id=first["id"])
    same(w.until(first["id"], "completed")["status"], "completed")
    same(w.ok("getExecutionSlot", run=first["id"], key="total")["value"], 20, "the slot of a later run with the same id")
    same(w.ok("getWorkflowSlot", workflow=workflow, key="count")["value"], 2, "the slot of the workflow")
    w.ok("deleteWorkflowSlot", workflow=workflow, key="count")
    same(result(w, workflow)["count"], 1, "the count after the slot was deleted")


@promise("C3")
def an_initial_value_applies_only_before_the_first_write_or_delete(w):
    for scope in ("execution", "workflow"):
        here = {"scope": scope, "key": "a", "initial": 7}
        there = {**here, "key": "b"}
        found = called(w, ("state.get", here), ("state.increment", here), ("state.delete", {"scope": scope, "key": "a"}), ("state.get", here),
                       ("state.delete", {"scope": scope, "key": "b"}), ("state.get", there), ("state.increment", there))
        same([one.get("value", one.get("deleted")) for one in found], [7, 8, True, None, False, None, 1], f"the values in scope {scope}")
        same([found[0]["found"], found[3]["found"], found[5]["found"]], [True, False, False])
    here = {"workflow": w.fresh("flow"), "key": "a"}
    w.no(404, "getWorkflowSlot", **here)
    same(w.ok("getWorkflowSlot", initial="[7]", **here), {"key": "a", "value": [7], "revision": 0})
    w.ok("appendWorkflowSlot", item=8, initial=[7], **here)
    same(w.ok("getWorkflowSlot", initial="[1]", **here)["value"], [7, 8])
    w.ok("deleteWorkflowSlot", workflow=here["workflow"], key="b")
    w.no(404, "getWorkflowSlot", workflow=here["workflow"], key="b", initial="[7]")


OPERATIONS = [
    ("get", {"key": "n"}, {"found": False, "value": None}),
    ("get", {"key": "n", "initial": 5}, {"found": True, "value": 5}),
    ("increment", {"key": "n", "initial": 5}, {"value": 6}),
    ("decrement", {"key": "n", "by": 2.5}, {"value": 3.5}),
    ("set", {"key": "n", "value": {"a": 1, "b": {"x": 1}}}, {"created": False}),
    ("merge", {"key": "n", "fields": {"b": {"y": 2}}}, {"created": False}),
    ("get", {"key": "n"}, {"found": True, "value": {"a": 1, "b": {"y": 2}}}),
    ("update", {"key": "n", "expression": "value.a + args.x", "args": {"x": 10}}, {"value": 11}),
    ("delete", {"key": "n"}, {"deleted": True}),
    ("increment", {"key": "n"}, {"value": 1}),
    ("append", {"key": "l", "item": "one"}, {"created": True}),
    ("append", {"key": "l", "item": None}, {"created": False}),
    ("append", {"key": "l", "item": 3}, {"created": False}),
    ("remove_last", {"key": "l"}, {"found": True, "item": 3}),
    ("remove_first", {"key": "l"}, {"found": True, "item": "one"}),
    ("get", {"key": "l"}, {"found": True, "value": [None]}),
]
# What the doors call these operations. An update is a read and a write that names the revision, a decrement adds a negative number.
NAMES = {"get": "get", "increment": "increment", "set": "set", "merge": "merge", "delete": "delete", "append": "append",
         "remove_first": "removeFirst", "remove_last": "removeLast"}


@promise("C4")
def every_operation_works_in_every_scope(w):
    scopes = ("session", "execution", "workflow")
    found = called(w, *((f"state.{name}", {"scope": scope, **more}) for scope in scopes for name, more, _ in OPERATIONS))
    found = [{name: part for name, part in one.items() if name != "revision"} for one in found]
    for at, scope in enumerate(scopes):
        same(found[at * len(OPERATIONS):][:len(OPERATIONS)], [wanted for _, _, wanted in OPERATIONS], f"the results in scope {scope}")
    run = w.start(w.publish(calls(("state.get", slot("n")))))
    for scope, place in (("Execution", {"run": run}), ("Workflow", {"workflow": w.fresh("flow")})):
        for name, more, wanted in OPERATIONS[2:]:
            if name == "decrement":
                name, more = "increment", {**more, "by": -more["by"]}
            if name == "update":
                seen = w.ok(f"get{scope}Slot", key=more["key"], **place)
                name, more, wanted = "set", {"key": "n", "value": seen["value"]["a"] + 10, "match": seen["revision"]}, {"created": False}
            found = w.ok(f"{NAMES[name]}{scope}Slot", **place, **more) or {"deleted": True}
            wanted = {part: it for part, it in wanted.items() if name != "get" or part != "found"}
            same({part: found.get(part) for part in wanted}, wanted, f"{name} of {scope}")


UPDATE = """name: NAME
steps:
  - id: add
    type: action.call
    action: state.update
    onError: continue
    input: { scope: workflow, key: n, expression: value + 1, initial: 0, max_retries: { $expr: payload.attempts } }
  - { id: done, type: control.return, value: { $expr: 'vars.add.error.code ?? "added"' } }
"""
MANY = """name: NAME
steps:
  - id: all
    type: control.forEach
    items: { $expr: "[1..8]" }
    parallel: true
    saveAs: ends
    body: [{ id: one, type: workflow.call, workflow: CHILD, input: { attempts: { $expr: payload.attempts } } }]
  - { id: done, type: control.return, value: { $expr: vars.ends } }
"""


@promise("C5")
def updates_compare_and_set_and_other_writes_do_not_conflict(w):
    update = w.publish(UPDATE)
    many = w.publish(MANY.replace("CHILD", update))
    same(result(w, many, {"attempts": 10}), ["added"] * 8, "eight updates at once, each with ten attempts")
    n = {"workflow": update, "key": "n"}
    same([w.ok("getWorkflowSlot", **n)[part] for part in ("value", "revision")], [8, 8])
    ends = []
    while "conflict" not in ends and len(ends) < 80:
        ends += result(w, many, {"attempts": 1})
        same(w.ok("getWorkflowSlot", **n)["value"], 8 + ends.count("added"), "the number of updates")
    same(set(ends), {"added", "conflict"}, "the ends of updates with one attempt")
    before = w.ok("getWorkflowSlot", **n)
    at_once(6, lambda at: w.ok("incrementWorkflowSlot", by=10, **n))
    after = w.ok("getWorkflowSlot", **n)
    same([after["value"] - before["value"], after["revision"] - before["revision"]], [60, 6], "the change by six increments at once")
    w.no(412, "setWorkflowSlot", value=0, match=before["revision"], **n)
    w.ok("deleteWorkflowSlot", match=after["revision"], **n)
    w.no(412, "setWorkflowSlot", value=0, match=after["revision"], **n)
    same(w.ok("setWorkflowSlot", value=0, createOnly=True, **n), {"revision": after["revision"] + 2, "created": True})


@promise("C6")
def a_watcher_sees_the_changes_of_others(w):
    workflow = w.publish(calls(("state.set", slot("n", value="by a run"))))
    n = {"workflow": workflow, "key": "n"}
    w.ok("setWorkflowSlot", value="first", **n)
    with Watch(w, f"/v1/state/workflow/{workflow}/n/watch", ["state", "watch", workflow, "n"]) as watch:
        same(watch.next(), {"found": True, "value": "first", "revision": 1})
        result(w, workflow)
        same(watch.next(), {"found": True, "value": "by a run", "previous": "first", "revision": 2})
        seen = [2]
        at_once(4, lambda at: [w.ok("setWorkflowSlot", value=f"{at} {turn}", **n) for turn in range(3)])
        while seen[-1] < 14:
            event = watch.next()
            seen.append(event["revision"])
        same([seen, event["value"]], [sorted(set(seen)), w.ok("getWorkflowSlot", **n)["value"]], "the revisions and the newest value")
        w.ok("deleteWorkflowSlot", **n)
        same(watch.next(), {"found": False, "previous": event["value"], "revision": 15})
    space = w.fresh("space")
    with Watch(w, f"/v1/kv/{space}/k/watch", ["kv", "watch", space, "k"]) as watch:
        same(watch.next(), {"found": False, "revision": 0})
        called(w, ("store.set", {"namespace": space, "key": "k", "value": [1]}))
        same(watch.next(), {"found": True, "value": [1], "revision": 1})


WORK = """name: NAME
steps:
  - { id: work, type: action.call, action: doors.work, retry: { attempts: 2, delay: 0 } }
  - { id: done, type: control.return, value: { $expr: vars.work } }
"""


def increment(key, **more):
    return {"action": "store.increment", "input": {"namespace": "data", "key": key}, **more}


@promise("C7")
def staged_writes_commit_once_with_their_step(w):
    own = w.other_tenant()
    own.ok("putAction", name="doors.work")
    run = own.start(own.publish(WORK))
    task = own.task("doors.work")
    own.ok("failTask", task=task["id"], fence=task["fence"], error={"code": "down", "message": "Try again."})
    again = own.task("doors.work")
    same([again["attempt"], again["idempotencyKey"]], [2, task["idempotencyKey"]], "the second attempt")
    wrong = {"action": "store.increment", "input": {"namespace": "data", "key": "word"}}
    own.ok("setKey", namespace="data", key="word", value="no number")
    refused = own.ok("completeTask", task=again["id"], fence=again["fence"], output={}, writes=[increment("n"), wrong])
    same(refused["outcome"], "failed", "the outcome with a write that cannot be made")
    absent(own, "data", "n")
    if own.show(run)["status"] == "failed":
        own.ok("retryRun", run=run)
    last = own.task("doors.work")
    slots = {"action": "state.append", "input": {"scope": "execution", "key": "texts", "item": "done"}}
    done = {"task": last["id"], "fence": last["fence"], "output": {"text": "done"}, "writes": [increment("n", saveAs="count"), slots]}
    same([own.ok("completeTask", **done)["outcome"] for _ in range(2)], ["completed"] * 2, "the outcome of the same completion twice")
    same(ended(own, run), {"text": "done", "count": {"value": 1, "revision": 1}})
    same([value(own, "data", "n"), own.ok("getExecutionSlot", run=run, key="texts")["value"]], [1, ["done"]])


NEXT = """name: NAME
steps:
  - { id: work, type: action.call, action: doors.work }
  - { id: next, type: action.call, action: transform, input: { count: { $expr: vars.work.count.value } } }
  - { id: done, type: control.return, value: { $expr: vars.next.count } }
"""


@promise("C7")
def the_result_of_a_staged_write_is_there_for_the_next_step_at_once(w):
    own = w.other_tenant()
    own.ok("putAction", name="doors.work")
    run = own.start(own.publish(NEXT))
    task = own.task("doors.work")
    own.ok("completeTask", task=task["id"], fence=task["fence"], output={}, writes=[increment("n", saveAs="count")])
    same(own.until(run, "completed", "failed", seconds=10).get("result"), 1)


COUNT = """name: NAME
steps:
  - { id: look, type: action.call, action: state.get, input: { scope: workflow, key: stop, initial: false } }
  - id: rounds
    type: control.while
    condition: not(vars.look.value)
    saveAs: counts
    result: { $expr: vars.add.value }
    body:
      - { id: add, type: action.call, action: state.increment, input: { scope: workflow, key: n } }
      - { id: look2, type: action.call, action: state.get, input: { scope: workflow, key: stop, initial: false }, saveAs: look }
      - { id: pause, type: wait.sleep, for: PT0.005S }
  - { id: done, type: control.return, value: { $expr: vars.counts } }
"""


@promise("C7", alone=True)
def an_increment_is_applied_once_across_crashes(w):
    workflow = w.publish(COUNT)
    n = {"workflow": workflow, "key": "n"}
    run, reached = w.start(workflow), 0
    for _ in range(3):
        def further():
            found = w.call("getWorkflowSlot", **n)
            return found.value["value"] if not found.refused and found.value["value"] > reached + 5 else None
        reached = w.wait(further, f"the count is above {reached + 5}")
        w.site.restart()
    w.ok("setWorkflowSlot", workflow=workflow, key="stop", value=True)
    counts = w.until(run, "completed", "failed").get("result")
    same(counts, list(range(1, len(counts or []) + 1)), "the results of the increments")
    expect(len(counts) >= reached > 15, f"{len(counts)} rounds after a count of {reached}")
    same(w.ok("getWorkflowSlot", **n)["value"], len(counts), "the count")


@promise("C8")
def slots_are_reached_from_outside_but_not_those_of_a_session(w):
    run = w.start(w.publish(SESSION.replace("CHILD", w.fresh("child"))))
    w.until(run, "waiting")
    w.ok("setExecutionSlot", run=run, key="total", value={"a": 1})
    w.ok("mergeExecutionSlot", run=run, key="total", fields={"b": 2})
    listed = w.ok("listExecutionSlots", run=run)["items"]
    same([(one["key"], one["value"]) for one in listed], [("total", {"a": 1, "b": 2})], "the slots of the run, without the session's")
    w.no(404, "getExecutionSlot", run=run, key="n")
    workflow = w.publish(calls(("state.get", slot("price")), ("state.set", slot("price", value=8))))
    w.ok("setWorkflowSlot", workflow=workflow, key="price", value=7)
    same(result(w, workflow)[0], {"found": True, "value": 7, "revision": 1}, "the slot in the run")
    same([(one["key"], one["value"]) for one in w.ok("listWorkflowSlots", workflow=workflow)["items"]], [("price", 8)])
    w.no(422, "getWorkflowSlot", workflow="stepwell.apikeys", key="x")
    w.no(422, "setWorkflowSlot", workflow="stepwell.apikeys", key="x", value=1)
    if w.door.name == "cli":
        same(w.door.command(["state", "get-of-session", run, "n"]).status, 2, "the exit code of a verb for session slots")
    else:
        same(w.door.request("GET", f"/v1/state/session/{run}/n", None, {"Authorization": "Bearer " + w.key}).status, 404)


@promise("C9")
def keys_of_slots_are_percent_encoded_and_limited(w):
    own = w.other_tenant()
    workflow, odd = own.publish(calls(("state.set", {"scope": "execution", "key": "ü/:% a", "value": 1}))), "a:b/ü %"
    run = own.done(workflow)["id"]
    own.ok("setWorkflowSlot", workflow=workflow, key=odd, value=1)
    subjects = [row["subject"] for row in own.ok("listAudit", limit=200)["items"] if row["operation"] == "state.set"]
    for subject in (f"state:execution:{run}:%C3%BC%2F%3A%25%20a", f"state:workflow-scope:default:{workflow}:a%3Ab%2F%C3%BC%20%25"):
        expect(subject in subjects, f"{subject} is not in {subjects}")
    same(own.ok("getWorkflowSlot", workflow=workflow, key=odd)["value"], 1)
    own.ok("setWorkflowSlot", workflow=workflow, key="ü" * 256, value=1)
    own.no(400, "setWorkflowSlot", workflow=workflow, key="ü" * 257, value=1)
    on = lambda key, text="x": ("state.set", {"scope": "session", "key": key, "value": text})
    found = called(own, on("a", "x" * 32000), on("b", "x" * 1000), on("b", "x" * 100), on("k" * 257), on(""), ("state.set", slot("k" * 257, value=1)))
    same([found[at].get("created") for at in (0, 2)], [True, True], "the writes within 32 KiB")
    failed(found[1], "invalidResult", "session_bytes")
    for one in found[3:]:
        expect("error" in one and "key" in one["error"]["message"], f"{one} does not refuse the key")
    many = "{ id: all, type: control.forEach, items: { $expr: '[1..257]' }, itemVar: n, saveAs: ends, body: [{ id: set, type: action.call, "
    many += "action: state.set, onError: continue, input: { scope: session, key: { $expr: $string(n) }, value: 1 } }] }"
    ends = result(own, own.publish(f"name: NAME\nsteps:\n  - {many}\n  - {{ id: done, type: control.return, value: {{ $expr: vars.ends }} }}\n"))
    same(["error" in one for one in ends], [False] * 256 + [True], "the writes of 257 keys")
    failed(ends[256], "invalidResult", "session_keys")


@promise("D1")
def a_key_belongs_to_its_tenant_and_namespace(w):
    one, two, key = w.fresh("free form: ü/"), w.fresh("space"), "same key"
    other = w.other_tenant()
    absent(w, one, key)
    w.ok("setKey", namespace=one, key=key, value="one")
    other.ok("setKey", namespace=one, key=key, value="of another tenant")
    found = called(w, ("store.set", {"namespace": two, "key": key, "value": "two"}), ("store.get", {"namespace": one, "key": key}))
    same([found[0]["revision"], found[1]["value"]], [1, "one"])
    same([value(w, one, key), value(w, two, key), value(other, one, key)], ["one", "two", "of another tenant"])
    same(called(other, ("store.get", {"namespace": one, "key": key}))[0]["value"], "of another tenant")
    same(other.ok("listKeyNamespaces")["items"], [{"namespace": one, "keyCount": 1}])


@promise("D2")
def get_gives_value_type_revision_and_expiry(w):
    space = w.fresh("space")
    one, nothing = {"namespace": space, "key": "k"}, {"namespace": space, "key": "other"}
    found = called(w, ("store.get", one), ("store.set", {**one, "value": None}), ("store.get", one),
                   ("store.set", {**one, "value": "x", "value_type": "string", "ttl_seconds": 600}), ("store.get", one))
    same(found[0], {"found": False, "value": None, "value_type": None, "revision": None, "expires_at": None})
    same(found[2], {"found": True, "value": None, "value_type": "json", "revision": 1, "expires_at": None}, "a null")
    expires = found[4].pop("expires_at")
    same(found[4], {"found": True, "value": "x", "value_type": "string", "revision": 2})
    shown = w.ok("getKey", **one)
    same([shown[part] for part in ("key", "value", "valueType", "revision", "expiresAt")], ["k", "x", "string", 2, expires])
    for kind, it in (("number", 1.5), ("boolean", False), ("json", None)):
        w.ok("setKey", namespace=space, key=kind, value=it, valueType=kind)
        shown = w.ok("getKey", namespace=space, key=kind)
        same([shown["value"], shown["valueType"], shown["revision"], shown.get("expiresAt")], [it, kind, 1, None])
    w.no(404, "getKey", **nothing)


@promise("D3", "D4")
def revisions_never_restart_and_an_expired_key_is_absent(w):
    space = w.fresh("space")
    one, short = {"namespace": space, "key": "k"}, {"namespace": space, "key": "short"}
    w.no(412, "setKey", value=1, match=1, **one)
    same(w.ok("setKey", value=1, createOnly=True, **one), {"revision": 1, "created": True})
    w.no(412, "setKey", value=2, createOnly=True, **one)
    same(w.ok("setKey", value=2, match=1, ttlSeconds=600, **one), {"revision": 2, "created": False})
    expires = w.ok("getKey", **one)["expiresAt"]
    w.no(412, "setKey", value=3, match=1, **one)
    w.ok("setKey", value=3, keepTtl=True, **one)
    same([w.ok("getKey", **one)[part] for part in ("value", "revision", "expiresAt")], [3, 3, expires], "the key with its old expiry")
    w.ok("setKey", value=4, **one)
    same(w.ok("getKey", **one).get("expiresAt"), None, "the expiry after a set without one")
    w.ok("deleteKey", **one)
    absent(w, space, "k")
    same(w.ok("setKey", value=5, createOnly=True, **one), {"revision": 6, "created": True}, "the first set after the delete")
    expiring = lambda **more: {**short, "value": 10, **more}
    found = called(w, ("store.set", expiring(ttl_seconds=1)), ("store.increment", short), ("store.get", short), ("store.set", expiring(if_revision=1)),
                   ("store.set", expiring(if_revision=0)), ("store.set", {"namespace": space, "key": "none", "value": 1, "if_revision": 3}),
                   ("store.set", {"namespace": space, "key": "late", "value": 10, "ttl_seconds": 1}))
    same([found[0], found[1]], [{"revision": 1, "created": True}, {"value": 11, "revision": 2}])
    expect(found[2]["expires_at"], "the expiry is gone after an increment")
    for error in found[3:6]:
        failed(error, "conflict")
    w.wait(lambda: w.call("getKey", **short).refused and w.call("getKey", namespace=space, key="late").refused, "the keys have expired", 10)
    same([row["key"] for row in w.ok("listKeys", namespace=space)["items"]], ["k"], "the keys that have not expired")
    same(counted(w, space), 1, "the number of keys")
    w.no(412, "setKey", value=1, match=2, **short)
    later = called(w, ("store.get", short), ("store.list", {"namespace": space}), ("store.increment", {**short, "initial": 40}),
                   ("store.set", {"namespace": space, "key": "late", "value": 1, "if_revision": 0}), ("store.get", short))
    same([later[0]["found"], [row["key"] for row in later[1]["items"]]], [False, ["k"]], "the expired key in a run")
    same(later[2:4], [{"value": 41, "revision": 3}, {"revision": 2, "created": True}], "the first writes after the expiry")
    same(later[4]["expires_at"], None, "the expiry after a write without one")


def counted(w, space):
    """Returns the number of keys of a namespace in the list of namespaces."""
    if w.door.name == "cli":
        rows = w.door.command(["kv", "namespaces", "--all"]).value["items"]
    else:
        rows, cursor = [], {}
        while cursor is not None:
            page = w.ok("listKeyNamespaces", limit=200, **cursor)
            rows, cursor = rows + page["items"], {"cursor": page["nextCursor"]} if page.get("nextCursor") else None
    return next((row["keyCount"] for row in rows if row["namespace"] == space), 0)


ADD = """name: NAME
steps:
  - id: all
    type: control.forEach
    items: { $expr: "[1..12]" }
    parallel: true
    saveAs: counts
    body: [{ id: add, type: action.call, action: store.increment, input: { namespace: SPACE, key: n, by: 2 } }]
  - { id: done, type: control.return, value: { $expr: '$sort(vars.counts.value)' } }
"""


@promise("D5")
def increments_are_exact_under_concurrency(w):
    space = w.fresh("space")
    n = {"namespace": space, "key": "n"}
    same(w.ok("incrementKey", **n), {"value": 1, "revision": 1}, "an increment of an absent key")
    same(w.ok("incrementKey", namespace=space, key="m", by=-2.5, initial=10), {"value": 7.5, "revision": 1})
    counts = at_once(8, lambda at: w.ok("incrementKey", by=3, **n)["value"])
    same(sorted(counts), [1 + 3 * at for at in range(1, 9)], "the results of eight increments at once")
    same(result(w, w.publish(ADD.replace("SPACE", space))), [25 + 2 * at for at in range(1, 13)], "the results in one run")
    w.ok("setKey", namespace=space, key="word", value="twelve")
    w.no(422, "incrementKey", namespace=space, key="word")
    w.ok("setKey", namespace=space, key="short", value=1, ttlSeconds=600)
    expires = w.ok("getKey", namespace=space, key="short")["expiresAt"]
    found = called(w, ("store.increment", {"namespace": space, "key": "word"}), ("store.increment", {"namespace": space, "key": "new", "initial": 5}),
                   ("store.increment", {"namespace": space, "key": "short"}))
    failed(found[0], None, "number")
    same(found[1:], [{"value": 6, "revision": 1}, {"value": 2, "revision": 2}])
    same(w.ok("getKey", namespace=space, key="short")["expiresAt"], expires, "the expiry after an increment")
    shown = w.ok("getKey", namespace=space, key="word")
    same([shown["value"], shown["revision"]], ["twelve", 1], "the value that is not a number")


PAGE = """name: NAME
steps:
  - { id: page, type: action.call, action: ACTION, input: { $expr: payload } }
  - { id: done, type: control.return, value: { $expr: vars.page } }
"""


@promise("D6")
def keys_are_deleted_and_listed_by_literal_prefix_in_stable_pages(w):
    space = w.fresh("space")
    keys = ["a%1", "a%2", "a%3", "a_1", "ab", "A%", "ä"]
    w.ok("changeData", changes=[{"op": "set", "namespace": space, "key": key, "value": key} for key in keys])
    for prefix in ("a%", "a_", "a", ""):
        found = [row["key"] for row in w.ok("listKeys", namespace=space, prefix=prefix)["items"]]
        same(found, sorted(key for key in keys if key.startswith(prefix)), f"the keys with the prefix `{prefix}`")
    lister = w.publish(PAGE.replace("ACTION", "store.list"))
    page = lambda **more: result(w, lister, {"namespace": space, "limit": 2, **more})
    first = page()
    w.ok("deleteKey", namespace=space, key=first["items"][1]["key"])
    w.ok("setKey", namespace=space, key="A$ before the cursor", value=1)
    rest = page(cursor=first["next_cursor"])
    rest = rest["items"] + page(cursor=rest["next_cursor"], limit=200)["items"]
    same([row["key"] for row in first["items"] + rest], sorted(keys), "the keys of all pages")
    if w.door.name == "cli":
        rows = w.door.command(["kv", "list", space, "--limit=2", "--all"]).value["items"]
    else:
        page = w.ok("listKeys", namespace=space, limit=3)
        rows = page["items"] + w.ok("listKeys", namespace=space, limit=200, cursor=page["nextCursor"])["items"]
    left = sorted([*keys, "A$ before the cursor"])
    left.remove(first["items"][1]["key"])
    same([row["key"] for row in rows], left, "the keys of all pages after the changes")
    w.no(400, "listKeys", namespace=space, limit=201)
    found = called(w, ("store.delete", {"namespace": space, "key": "ab"}), ("store.delete", {"namespace": space, "key": "ab"}),
                   ("store.list", {"namespace": space, "limit": 201}))
    same(found[:2], [{"deleted": True}, {"deleted": False}])
    failed(found[2], "invalid", "limit")
    same([counted(w, space), counted(w, w.fresh("space"))], [len(left) - 1, 0], "the number of keys")


PAGES = """name: NAME
steps:
  - { id: begin, type: vars.set, values: { more: true } }
  - id: pages
    type: control.while
    condition: vars.more
    saveAs: pages
    result: { $expr: 'vars.page.matches[].id' }
    body:
      - id: page
        type: action.call
        action: links.lookup
        input: { namespace: SPACE, from: { type: task, id: hub }, to_type: note, limit: 2, cursor: { $expr: vars.page.next_cursor } }
      - { id: on, type: vars.set, values: { more: { $expr: vars.page.next_cursor != null } } }
  - { id: done, type: control.return, value: { $expr: vars.pages } }
"""


@promise("D7")
def a_link_is_stored_once_and_found_from_both_ends(w):
    space = w.fresh("space")
    put = lambda source, target, **more: w.ok("putLink", namespace=space, **{"from": source, "to": target}, **more)
    made = put(entity(" a "), entity("b"), attributes={"x": 1, "y": 2})
    same(made["created"], True)
    same(put(entity("a"), entity("b"), relation="related", attributes={"x": 3}), {"linkId": made["linkId"], "created": False}, "the same link")
    put(entity("a"), entity("b"), relation="blocks")
    put(entity("a"), entity("a"))
    put(entity("odd: %_/ü"), entity("a", "note"))
    look = lambda **more: [(row["type"], row["id"], row["relation"]) for row in w.ok("lookUpLinks", namespace=space, type="task", **more)["items"]]
    same(look(id="a"), [("task", "a", "related"), ("task", "b", "blocks"), ("task", "b", "related")], "the links of `a`")
    same(look(id="a", relation="related", direction="either"), [("task", "a", "related"), ("task", "b", "related")], "a link to itself")
    same(look(id="b", direction="reverse"), [("task", "a", "blocks"), ("task", "a", "related")], "the reverse links of `b`")
    same([look(id="b"), look(id="odd: %_/ü", toType="task"), look(id="odd: %_/ü", toType="note")], [[], [], [("note", "a", "related")]])
    same(w.ok("lookUpLinks", namespace=space, type="task", id="a", relation="related")["items"][1]["attributes"], {"x": 3}, "the attributes")
    same(len(w.ok("listLinks", namespace=space, fromType="task", toType="note")["items"]), 1, "the links to notes")
    w.no(400, "lookUpLinks", namespace=space, type="task", id="a", limit=201)
    w.no(400, "putLink", namespace=space, **{"from": entity("x" * 257), "to": entity("b")})
    w.no(422, "deleteLinks", namespace=space)
    notes = [f"n{at}" for at in range(5)]
    w.ok("changeData", changes=[{"op": "link", "namespace": space, "from": entity("hub"), "to": entity(note, "note")} for note in notes])
    same(result(w, w.publish(PAGES.replace("SPACE", space))), [notes[:2], notes[2:4], notes[4:]], "the pages that a loop goes through")
    here = {"namespace": space}
    found = called(
        w, ("links.upsert", {**here, "from": entity("a"), "to": entity("c")}),
        ("links.lookup", {**here, "from": entity("c"), "direction": "reverse"}), ("links.lookup", {**here, "from": entity("hub"), "to_type": "task"}),
        ("links.list", {**here, "from_type": "task", "to_type": "note"}),
        ("links.delete", {**here, "from": entity("hub"), "to": entity("n0", "note")}), ("links.delete", here),
    )
    same([found[0]["created"], [one["id"] for one in found[1]["matches"]], found[2]["matches"], len(found[3]["items"])], [True, ["a"], [], 6])
    same(found[4], {"deleted_count": 1})
    failed(found[5], None, "`from` or `to`")
    same(w.ok("deleteLinks", namespace=space, toType="task", toId="b", relation="blocks")["deletedCount"], 1)
    same(w.ok("deleteLinks", namespace=space, fromType="task", fromId="a")["deletedCount"], 3, "the number of deleted links of `a`")
    same(w.ok("deleteLinks", namespace=space, fromType="task", fromId="a")["deletedCount"], 0)


@promise("D7")
def types_may_be_spelt_left_and_right_type_in_documents(w):
    here = {"namespace": w.fresh("space")}
    w.ok("putLink", **here, **{"from": entity("a"), "to": entity("b", "note")})
    found = called(w, ("links.lookup", {**here, "from": entity("a"), "right_type": "note"}), ("links.list", {**here, "left_type": "note"}))
    same([len(found[0]["matches"]), found[1]["items"]], [1, []])


@promise("D7")
def a_page_of_links_has_100_by_default(w):
    space = w.fresh("space")
    w.ok("changeData", changes=[{"op": "link", "namespace": space, "from": entity("hub"), "to": entity(f"{at:03}")} for at in range(101)])
    found = called(w, ("links.lookup", {"namespace": space, "from": entity("hub")}))[0]["matches"]
    shown = w.ok("lookUpLinks", namespace=space, type="task", id="hub")["items"]
    same([len(found), len(shown)], [100, 100], "the number of links on a page in a run and from outside")


@promise("D8")
def a_value_over_256_kib_is_refused_before_any_write(w):
    space, fits = w.fresh("space"), 256 * 1024 - 2
    big = {"namespace": space, "key": "big"}
    same(w.ok("setKey", value="x" * fits, **big)["revision"], 1)
    w.no(422, "setKey", value="y" * (fits + 1), **big)
    shown = w.ok("getKey", **big)
    same([shown["revision"], len(shown["value"]), shown["value"][0]], [1, fits, "x"], "the value after the refused one")
    ends = {"from": entity("a"), "to": entity("b")}
    if w.door.name == "cli":
        words = ["link", "put", space, json.dumps(ends["from"]), json.dumps(ends["to"]), "--attributes=" + w.door.as_json("x" * (fits + 1))]
        same(w.door.command(words).status, 6, "the exit code for too large attributes")
    else:
        w.no(422, "putLink", namespace=space, attributes="x" * (fits + 1), **ends)
    if w.door.name == "http":
        batch = [{"op": "set", "namespace": space, "key": "small", "value": 1}, {"op": "set", **big, "value": "y" * (fits + 1)}]
        w.no(422, "changeData", changes=batch)
    found = called(w, ("store.set", {**big, "value": "y" * (fits + 1)}), ("links.upsert", {"namespace": space, "attributes": "x" * (fits + 1), **ends}),
                   ("store.set", {**big, "value": "z" * fits}))
    for error in found[:2]:
        failed(error, None, "limit")
    same(found[2], {"revision": 2, "created": False})
    same([w.ok("listLinks", namespace=space)["items"], counted(w, space)], [[], 1], "what the refused writes left")


@promise("D5", "D8", "D17")
def a_write_that_cannot_be_made_fails_its_action_with_invalid(w):
    here = {"namespace": w.fresh("space")}
    w.ok("setKey", key="word", value="twelve", **here)
    found = called(w, ("store.increment", {**here, "key": "word"}), ("store.increment", {**here, "key": "n", "by": -(2**63)}),
                   ("store.increment", {**here, "key": "n", "by": -1}), ("store.set", {**here, "key": "big", "value": "x" * 256 * 1024}))
    codes = [one.get("error", {}).get("code") for one in found]
    same(codes, ["invalid", None, "invalid", "invalid"], "the codes of no number, an overflow and a value over the limit")


@promise("D9")
def several_changes_are_one_transaction(w):
    own = w.other_tenant()
    own.ok("setKey", namespace="data", key="rate", value=1)
    edge = {"namespace": "data", "from": entity("a"), "to": entity("b")}
    transfer = lambda revision: [
        {"op": "check", "namespace": "data", "key": "rate", "revision": revision}, {"op": "set", "namespace": "data", "key": "from", "value": 90},
        {"op": "increment", "namespace": "data", "key": "to", "by": 10}, {"op": "link", **edge},
    ]
    own.no(412, "changeData", changes=transfer(2))
    own.no(422, "changeData", changes=[*transfer(1), {"op": "increment", "namespace": "data", "key": "from"}, {"op": "unlink", "namespace": "data"}])
    same([own.ok("listKeys", namespace="data")["items"][0]["key"], own.ok("listLinks", namespace="data")["items"]], ["rate", []])
    found = own.ok("changeData", changes=transfer(1))["results"]
    same(found[:3], [{"op": "check", "revision": 1}, {"op": "set", "revision": 1, "created": True}, {"op": "increment", "value": 10, "revision": 1}])
    own.ok("putAction", name="doors.work")
    run = own.start(own.publish(WORK.replace(", retry: { attempts: 2, delay: 0 }", "")))
    same_time = lambda seen: [
        increment("to", saveAs="to"), {"action": "links.delete", "input": edge, "saveAs": "links"},
        {"action": "store.set", "input": {"namespace": "data", "key": "from", "value": 80, "if_revision": seen}, "saveAs": "from"},
    ]
    task = own.task("doors.work")
    refused = own.ok("completeTask", task=task["id"], fence=task["fence"], output={}, writes=same_time(7))
    same([refused["error"]["code"], value(own, "data", "to"), len(own.ok("listLinks", namespace="data")["items"])], ["conflict", 10, 1])
    own.ok("retryRun", run=run)
    task = own.task("doors.work")
    own.ok("completeTask", task=task["id"], fence=task["fence"], output={}, writes=same_time(1))
    wanted = {"to": {"value": 11, "revision": 2}, "links": {"deleted_count": 1}, "from": {"revision": 2, "created": False}}
    same([ended(own, run), value(own, "data", "from")], [wanted, 80], "the results of one transaction in a run")


LOOP = """name: NAME
steps:
  - id: all
    type: control.forEach
    items: [1, 2, 3, 4, 5]
    saveAs: counts
    body: [{ id: add, type: action.call, action: store.increment, input: { namespace: SPACE, key: loop } }]
  - id: once
    type: action.call
    action: store.increment
    onError: continue
    input: { namespace: SPACE, key: once, by: { $expr: payload.by }, idempotency_key: SPACE }
  - { id: done, type: control.return, value: [{ $expr: vars.counts.value }, { $expr: vars.once }] }
"""


@promise("D10")
def a_key_makes_a_write_happen_once_and_a_loop_writes_every_time(w):
    space = w.fresh("space")
    loop = w.publish(LOOP.replace("SPACE", space))
    same(result(w, loop, {"by": 7}), [[1, 2, 3, 4, 5], {"value": 7, "revision": 1}], "the first run")
    same(result(w, loop, {"by": 7}), [[6, 7, 8, 9, 10], {"value": 7, "revision": 1}], "another run with the same key")
    failed(result(w, loop, {"by": 8})[1], "keyReused")
    same([value(w, space, "loop"), value(w, space, "once")], [15, 7], "the values after three runs")
    one, once = {"namespace": space, "key": "k"}, w.fresh("key")
    add = lambda by: [{"op": "increment", "namespace": space, "key": "k", "by": by}]
    once, other, done = w.fresh("key"), w.other_tenant(), [{"op": "increment", "value": 2, "revision": 1}]
    same([w.ok("changeData", changes=add(2), key=once)["results"] for _ in range(2)], [done, done], "the same request twice")
    w.no(422, "changeData", changes=add(3), key=once)
    same(other.ok("changeData", changes=add(2), key=once)["results"], done, "the same key in another tenant")
    same([w.ok("startRun", workflow=loop, input={"by": 7}, key=once)["created"] for _ in range(2)], [True, False], "starts with the same key")
    same(value(w, space, "k"), 2, "the value after requests with one key")


TWICE = """name: NAME
steps:
  - id: all
    type: control.forEach
    items: [1, 2]
    body: [{ id: work, type: action.call, action: doors.work, retry: { attempts: 1, delay: 0 } }]
"""


@promise("D10")
def every_attempt_of_a_call_has_the_same_idempotency_key(w):
    own = w.other_tenant()
    own.ok("putAction", name="doors.work")
    run, keys = own.start(own.publish(TWICE)), []
    for end in ("failTask", "completeTask", "failTask", "completeTask"):
        task = own.task("doors.work")
        keys.append(task["idempotencyKey"])
        more = {"error": {"code": "down", "message": "Try again."}} if end == "failTask" else {}
        own.ok(end, task=task["id"], fence=task["fence"], **more)
    own.until(run, "completed")
    expect(keys[0] == keys[1] != keys[2] == keys[3], f"the keys of two attempts in two rounds are {keys}")


@promise("D11")
def data_needs_permissions_and_stays_in_its_tenant(w):
    space, other = w.fresh("space"), w.other_tenant()
    reader, writer, viewer = (as_caller(w, "workflow:" + name) for name in ("read", "manage", "view"))
    place, ends = {"namespace": space, "key": "k"}, {"from": entity("a"), "to": entity("b")}
    w.ok("setKey", value="secret", **place)
    w.ok("putLink", namespace=space, **ends)
    w.ok("setWorkflowSlot", workflow=space, key="k", value=1)
    same(w.ok("getKey", as_key=reader, **place)["value"], "secret")
    same(w.ok("incrementKey", as_key=writer, namespace=space, key="n")["value"], 1)
    reads = [("getKey", place), ("listKeys", {"namespace": space}), ("lookUpLinks", {"namespace": space, **entity("a")}), ("listKeyNamespaces", {}),
             ("getWorkflowSlot", {"workflow": space, "key": "k"})]
    writes = [("setKey", {**place, "value": 0}), ("deleteKey", place), ("putLink", {"namespace": space, **ends}),
              ("changeData", {"changes": [{"op": "delete", **place}]}), ("deleteWorkflowSlot", {"workflow": space, "key": "k"})]
    for keys, operations in (((viewer, writer), reads), ((viewer, reader), writes)):
        for key in keys:
            for operation, arguments in operations:
                w.no(403, operation, as_key=key, **arguments)
    for caller in (viewer, reader, writer):
        publisher = as_caller(w, "workflow:publish", *(["workflow:read"] if caller == reader else ["workflow:manage"] if caller == writer else []))
        steps = calls(("store.get", place), ("store.set", {"namespace": space, "key": "own", "value": 1}))
        found = result(w, w.publish(steps, as_key=publisher))
        same([one.get("error", {}).get("code") for one in found], ["denied" if caller != reader else None, "denied" if caller != writer else None])
    for operation, arguments in (("getKey", place), ("getWorkflowSlot", {"workflow": space, "key": "k"})):
        other.no(404, operation, **arguments)
    other.no(404, "deleteKey", **place)
    same([other.ok(operation, **more)["items"] for operation, more in (reads[1], reads[2], reads[3])], [[], [], []], "what another tenant sees")
    found = called(other, ("store.get", place), ("store.list_namespaces", {}), ("links.delete", {"namespace": space, "from": entity("a")}))
    same([found[0]["found"], found[1]["namespaces"], found[2]], [False, [], {"deleted_count": 0}], "what a run of another tenant sees")
    same([value(w, *place.values()), len(w.ok("listLinks", namespace=space)["items"])], ["secret", 1], "the data after the other tenant's writes")


@promise("D12")
def every_write_leaves_an_audit_row(w):
    own = w.other_tenant()
    one, edge = {"namespace": "data", "key": "k"}, {"from": entity("a"), "to": entity("b")}
    own.ok("setKey", value=1, **one)
    own.ok("incrementKey", **one)
    own.no(412, "setKey", value=1, match=1, **one)
    own.ok("deleteKey", **one)
    own.ok("putLink", namespace="data", relation="mirrors", **edge)
    own.ok("deleteLinks", namespace="data", fromType="task", fromId="a")
    own.ok("changeData", changes=[{"op": "set", **one, "value": 1}, {"op": "increment", "namespace": "data", "key": "n"}])
    run = own.done(own.publish(calls(
        ("store.set", {**one, "value": 2}), ("store.set", {**one, "value": 2, "if_revision": 1}), ("links.upsert", {"namespace": "data", **edge}),
        ("state.increment", slot("n")), ("store.get", one),
    )))
    rows = [row for row in own.ok("listAudit", limit=200)["items"] if row["operation"].split(".")[0] in ("store", "links", "state")]
    rows = [row for row in rows if "stepwell." not in row["subject"]]
    key, link, name = "store:data:k", "link:data:task:a:task:b:", run["workflow"]
    wanted = [
        ("store.set", key), ("store.increment", key), ("store.delete", key), ("links.upsert", link + "mirrors"), ("links.delete", link + "mirrors"),
        ("store.set", key), ("store.increment", "store:data:n"), ("store.set", key), ("links.upsert", link + "related"),
        ("state.increment", f"state:workflow-scope:default:{name}:n"),
    ]
    same([(row["operation"], row["subject"]) for row in rows], wanted, "the audited writes")
    same([row.get("run") for row in rows], [None] * 7 + [run["id"]] * 3, "the runs of the writes")
    same({row["actor"] for row in rows}, {"apikey:client"}, "the actors of the writes")
    same(rows[5]["commit"], rows[6]["commit"], "the commits of two changes in one transaction")


@promise("D13")
def rows_outlive_the_run_that_made_them(w):
    space = w.fresh("space")
    one, ends = {"namespace": space, "key": "k"}, {"from": entity("a"), "to": entity("b")}
    run = w.done(w.publish(calls(("store.set", {**one, "value": 1}), ("links.upsert", {"namespace": space, **ends}))))["id"]
    w.ok("deleteRun", run=run)
    w.no(404, "showRun", run=run)
    same([w.ok("getKey", **one)[part] for part in ("value", "createdByRun")], [1, run], "the key")
    w.ok("setKey", value=2, **one)
    same([w.ok("getKey", **one)[part] for part in ("value", "createdByRun")], [2, run], "the key after another write")
    same([row["createdByRun"] for row in w.ok("listLinks", namespace=space)["items"]], [run], "the link")
    found = called(w, ("store.list", {"namespace": space}), ("links.list", {"namespace": space}))
    same([rows["items"][0]["created_by_run"] for rows in found], [run, run], "the rows in another run")


@promise("D14")
def the_sweeper_makes_tombstones_and_changes_no_answer(w):
    space, swept = w.fresh("space"), []
    one = {"namespace": space, "key": "k"}

    def sweep():
        key = w.fresh("key")
        called(w, ("store.set", {"namespace": space, "key": key, "value": 1, "ttl_seconds": 0.05}))
        swept.append(w.ok("cleanUp")["expiredCells"])
        return swept[-1]

    same(called(w, ("store.set", {**one, "value": "gone", "ttl_seconds": 0.001}), ("store.get", one))[0]["revision"], 1)
    w.wait(lambda: w.call("getKey", **one).refused, "the key has expired")
    w.wait(sweep, "a cleanup makes tombstones of expired keys")
    while w.ok("cleanUp").get("more"):
        pass
    absent(w, space, "k")
    w.no(412, "setKey", value=1, match=1, **one)
    found = called(w, ("store.get", one), ("store.set", {**one, "value": "new", "if_revision": 0}))
    same([found[0]["found"], found[1]], [False, {"revision": 2, "created": True}], "the key after the cleanup")
    same(value(w, space, "k"), "new")


def emit(w, name, data):
    """Emits an event."""
    if w.door.name == "cli":
        done = w.door.command(["event", "emit", name, json.dumps(data)], key=w.key)
    else:
        event = {"specversion": "1.0", "id": w.fresh("event"), "source": "/doors", "type": name, "data": data}
        headers = {"Authorization": "Bearer " + w.key, "Content-Type": "application/cloudevents+json"}
        done = w.door.request("POST", "/v1/events", json.dumps(event).encode(), headers)
    expect(not done.refused, f"the event was refused: {done}")


REVERSE = """name: NAME
steps:
  - id: find
    type: action.call
    action: links.lookup
    input: { namespace: project-task-mirror, from: { type: project_task, id: { $expr: payload.task_id } }, direction: reverse }
  - { id: done, type: control.return, value: { $expr: 'vars.find.matches.id' } }
"""


@promise("D15")
def tasks_mirror_one_to_many_none_and_reverse(w):
    own = w.other_tenant()
    for name in ("projects.create_task", "projects.update_task"):
        own.ok("putAction", name=name)
    for name in ("link-setup", "task-mirror"):
        with open(os.path.join(EXAMPLES, name + ".yaml"), encoding="utf-8") as document:
            own.publish(document.read(), name)

    def work(action, output):
        task = own.task(action)
        own.ok("completeTask", task=task["id"], fence=task["fence"], output=output)
        return task["input"]

    for copy in ("t-2", "t-3"):
        emit(own, "PROJECT_TASK_CREATED", {"task_id": "t-1", "mirror_project_id": "p-" + copy, "name": "Dig"})
        same(work("projects.create_task", {"task_id": copy}), {"project_id": "p-" + copy, "name": "Dig"}, "the new copy")
    complete = lambda workflow: len(own.ok("listRuns", workflow=workflow, status="completed")["items"])
    own.wait(lambda: complete("link-setup") == 2, "both copies are linked")
    attributes = {"fieldMap": {"name": "name", "description": "description"}}
    links = own.ok("listLinks", namespace="project-task-mirror", relation="mirrors")["items"]
    same([(row["from"]["id"], row["to"]["id"], row["attributes"]) for row in links], [("t-1", "t-2", attributes), ("t-1", "t-3", attributes)])
    emit(own, "PROJECT_TASK_UPDATED", {"task_id": "t-1", "changes": {"name": "Dig deeper"}})
    same([work("projects.update_task", {}) for _ in range(2)], [{"task_id": copy, "name": "Dig deeper"} for copy in ("t-2", "t-3")], "the updates")
    own.wait(lambda: complete("task-mirror") == 1, "the change is mirrored")
    emit(own, "PROJECT_TASK_UPDATED", {"task_id": "t-9", "changes": {"name": "Fill"}})
    own.wait(lambda: complete("task-mirror") == 2, "the change of a task without copies has no effect")
    same(own.ok("listTasks")["items"], [], "the tasks that are left")
    reverse = {"namespace": "project-task-mirror", "type": "project_task", "id": "t-3", "direction": "reverse"}
    same([row["id"] for row in own.ok("lookUpLinks", **reverse)["items"]], ["t-1"], "the task that is mirrored")
    same(result(own, own.publish(REVERSE), {"task_id": "t-2"}), "t-1", "the task that a run finds")


empty("D16", "*", "the layout of the tables of PostgreSQL, which no request shows")


@promise("D17")
def the_actions_have_the_documented_shapes_and_exact_integers(w):
    own = w.other_tenant()
    here, most, odd = {"namespace": "data"}, 2**63 - 1, 2**53 + 1
    ends = {"from": entity("a"), "to": entity("b", "note")}
    run = own.done(own.publish(calls(
        ("store.set", {**here, "key": "k", "value": odd, "value_type": "number"}), ("store.get", {**here, "key": "k"}),
        ("store.increment", {**here, "key": "n", "by": most - 1}), ("store.increment", {**here, "key": "n"}),
        ("store.increment", {**here, "key": "low", "by": -(2**63)}), ("store.increment", {**here, "key": "low", "by": -1}),
        ("store.list", here), ("store.list_namespaces", {}), ("store.delete", {**here, "key": "k"}),
        ("links.upsert", {**here, **ends, "attributes": {"x": odd}}), ("links.lookup", {**here, "from": entity("a")}), ("links.list", here),
        ("links.list_namespaces", {}), ("links.list_types", here), ("links.list_relations", here),
        ("links.delete", {**here, "to": entity("b", "note")}),
    )))
    found = dict(enumerate(run["result"]))
    same(found[0], {"revision": 1, "created": True})
    same(found[1], {"found": True, "value": odd, "value_type": "number", "revision": 1, "expires_at": None})
    same([found[2], found[3]], [{"value": most - 1, "revision": 1}, {"value": most, "revision": 2}], "the integers")
    same(found[4], {"value": -(2**63), "revision": 1})
    failed(found[5], None, "64-bit")
    row = found[6]["items"][0]
    same([sorted(found[6]), [one["key"] for one in found[6]["items"]]], [["items"], ["k", "low", "n"]])
    same(sorted(row), ["created_at", "created_by_run", "expires_at", "key", "revision", "updated_at", "value", "value_type"])
    same([row["value"], row["value_type"], row["created_by_run"], found[6]["items"][1]["value_type"]], [odd, "number", run["id"], "number"])
    same(found[7]["namespaces"], [{"namespace": "data", "key_count": 3}])
    same([found[8], sorted(found[9]), found[9]["created"]], [{"deleted": True}, ["created", "link_id"], True])
    match = {"link_id": found[9]["link_id"], "type": "note", "id": "b", "relation": "related", "attributes": {"x": odd}}
    same(found[10], {"matches": [match]})
    link = found[11]["items"][0]
    same(sorted(link), ["attributes", "created_at", "created_by_run", "from", "link_id", "relation", "to", "updated_at"])
    same(found[12]["namespaces"], [{"namespace": "data", "link_count": 1}])
    same([found[13]["items"], found[14]["items"]], [[{"name": "note", "count": 1}, {"name": "task", "count": 1}], [{"name": "related", "count": 1}]])
    same(found[15], {"deleted_count": 1})
    own.ok("incrementKey", namespace="data", key="top", by=2**64 - 2)
    same(own.ok("incrementKey", namespace="data", key="top"), {"value": 2**64 - 1, "revision": 2}, "the largest integer")
    own.no(422, "incrementKey", namespace="data", key="top")
    own.ok("putLink", namespace="data", **ends)
    same([own.ok("listLinkTypes", namespace="data")["items"], own.ok("listLinkRelations", namespace="data")["items"]],
         [[{"type": "note", "endCount": 1}, {"type": "task", "endCount": 1}], [{"relation": "related", "linkCount": 1}]])
    actions = {one["name"] for one in own.ok("listActions")["items"]}
    wanted = {"store." + name for name in ("get", "set", "delete", "increment", "list", "list_namespaces")}
    wanted |= {"links." + name for name in ("upsert", "lookup", "delete", "list", "list_namespaces", "list_types", "list_relations")}
    same(sorted(wanted - actions), [], "the actions that are missing")
