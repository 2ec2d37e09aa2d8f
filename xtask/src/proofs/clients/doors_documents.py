"""Checks of documents, through any door."""

import json
import os

from doorkit import Http, empty, expect, promise, same
from doors_durable import ASK, audited, key, remote


def emit(w, name, data, id, source="shop"):
    """Emits an event and returns whether it is new."""
    if w.door.name == "cli":
        reply = w.door.command(["event", "emit", name, json.dumps(data), "--source", source, "--id", id], key=w.key)
    else:
        event = {"specversion": "1.0", "type": name, "source": source, "id": id, "data": data}
        headers = {"Authorization": "Bearer " + w.key, "Content-Type": "application/cloudevents+json"}
        reply = w.door.request("POST", "/v1/events", json.dumps(event).encode(), headers)
    expect(not reply.refused, f"the event was refused: {reply}")
    return reply.value["created"]


def local(w, words, text, operation, **more):
    """Sends a document with an operation, which is a command on a file through the command line."""
    if w.door.name == "http":
        return w.door.send(w.operations[operation], {"document": text, **more}, None, w.key)
    words = [*words, w.file(text), "--json"]
    if "input" in more:
        words += ["--input", json.dumps(more["input"])]
    return w.door.command(words, json_output=False)


def problems(w, text):
    """Returns line, column and message of each problem of a document."""
    if w.door.name == "http":
        found = w.ok("validateDocument", document=text)
    else:
        found = w.door.command(["workflow", "validate", w.file(text), "--json"], json_output=False).value
    return [(one["line"], one["column"], one["message"]) for one in found["problems"]]


TRIGGERS = """name: NAME
triggers:
  - { id: paid, type: event, eventName: PAID-NAME, filter: event.cents > 0, input: { n: { $expr: event.cents } } }
  - { id: often, type: schedule, cron: '* * * * * *', input: { n: 2 } }
  - { id: shop, type: webhook, path: shop/NAME, input: { n: { $expr: event.body.n } } }
  - { id: by-hand, type: manual }
input: { type: object, required: [n], properties: { n: { type: integer } } }
steps:
  - { id: done, type: control.return, value: { $expr: payload.n } }
"""
PLACES = """name: NAME
initial: first
places: { first: { kind: step }, last: { kind: end, output: { $expr: context.n + 1 } } }
transitions: [{ id: go, from: first, to: last }]
"""


@promise("F1")
def a_document_is_a_whole_workflow_with_triggers_and_input(w):
    tenant = w.own_tenant()
    flow = w.publish(TRIGGERS)
    same([one["type"] for one in w.ok("listTriggers")["items"]], ["event", "schedule", "webhook", "manual"], "the triggers")
    w.no(422, "startRun", workflow=flow, input={"n": "text"})
    same(w.done(flow, {"n": 1})["result"], 1, "the result of a start by hand")
    emit(w, "PAID-" + flow, {"cents": 3}, "e-1")
    called = Http(w).request("POST", f"/hooks/{tenant}/shop/{flow}", b'{"n": 4}', {"Content-Type": "application/json"})
    same(called.status, 202, "the status of the webhook")
    fired = w.wait(lambda: w.ok("showSchedule", name=flow + "/often").get("lastRun"), "the schedule has started a run")
    w.ok("deactivateWorkflow", name=flow)
    logs = {trigger: w.wait(lambda: w.ok("listTriggerLog", workflow=flow, trigger=trigger)["items"], f"{trigger} has a log") for trigger in ["paid", "shop"]}
    runs = [fired, *(log[0]["run"] for log in logs.values())]
    same([w.until(run, "completed")["result"] for run in runs], [2, 3, 4], "the results of the schedule, the event and the webhook")
    places = w.publish(PLACES)
    same(w.done(places, {"n": 4})["result"], 5, "the result of places")
    json_ = {"name": places, "initial": "first", "transitions": [{"id": "go", "from": "first", "to": "last"}]}
    json_["places"] = {"first": {"kind": "step"}, "last": {"kind": "end", "output": {"$expr": "context.n + 1"}}}
    same(w.ok("publishVersion", document=json.dumps(json_), name=places)["created"], False, "the same workflow as JSON is a new version")


STEPS = """name: NAME
steps:
  - { id: start, type: vars.set, values: { total: 0 } }
  - id: choose
    type: control.if
    condition: payload.n > 2
    then: [{ id: big, type: vars.set, values: { size: big } }]
    else: [{ id: small, type: vars.set, values: { size: small } }]
  - id: each
    type: control.forEach
    items: { $expr: '[1..10]' }
    itemVar: i
    body:
      - { id: even, type: control.continue, condition: i % 2 = 0 }
      - { id: stop, type: control.break, condition: i > 6 }
      - { id: add, type: vars.set, values: { total: { $expr: vars.total + i } } }
  - id: together
    type: control.forEach
    parallel: 2
    items: { $expr: '[1..5]' }
    itemVar: i
    saveAs: squares
    result: { $expr: i * i }
    body: [{ id: square, type: action.call, action: transform, input: { i: { $expr: i } } }]
  - id: loop
    type: control.while
    condition: true
    indexVar: r
    body:
      - { id: out, type: control.break, condition: r >= 3 }
      - { id: round, type: vars.set, values: { rounds: { $expr: r } } }
  - id: attempt
    type: control.try
    body: [{ id: oops, type: control.fail, code: broken }]
    catch: { as: problem, codes: [broken], steps: [{ id: note, type: vars.set, values: { caught: { $expr: problem.code } } }] }
  - id: again
    type: action.call
    action: ACTION
    retry: { attempts: 1, delay: 1s }
    onError: [{ id: gaveUp, type: vars.set, values: { gaveUp: { $expr: error.code } } }]
  - { id: late, type: wait.signal, signal: NEVER, timeout: 1s, onTimeout: [{ id: gone, type: vars.set, values: { late: true } }] }
  - { id: skipped, type: control.fail, condition: payload.n < 0 }
  - id: both
    type: control.parallel
    saveAs: both
    branches: { a: [{ id: left, type: vars.set, values: { left: 1 } }], b: [{ id: right, type: vars.set, values: { right: 2 } }] }
  - { id: rest, type: wait.sleep, for: 1s }
  - id: paid
    type: wait.event
    eventName: PAID-NAME
    correlation: { event: event.order, run: payload.n }
    filter: event.cents > 5
    timeout: 1h
  - { id: ask, type: human.task, title: Go on?, form: { type: object, required: [ok] } }
  - { id: sub, type: workflow.call, workflow: CHILD, input: { n: { $expr: vars.total } } }
  - { id: done, type: control.return, value: { $expr: vars } }
"""


@promise("F2")
def every_kind_of_step_does_what_it_says(w):
    w.own_tenant()
    action = remote(w)
    child = w.publish("name: NAME\nsteps:\n  - { id: done, type: control.return, value: { $expr: payload.n * 2 } }\n")
    flow = w.publish(STEPS.replace("CHILD", child).replace("ACTION", action))
    run = w.start(flow, {"n": 3})
    for _ in range(2):
        task = w.task(action)
        w.ok("failTask", task=task["id"], fence=task["fence"], error={"code": "down", "message": "no"})
    for number, data in enumerate([{"order": 4, "cents": 9}, {"order": 3, "cents": 1}, {"order": 3, "cents": 7}]):
        emit(w, "PAID-" + flow, data, f"e-{number}")
    w.wait(lambda: "ask" in w.show(run)["places"], "the run asks")
    w.no(422, "signalRun", run=run, name="ask", body={})
    w.send(run, "ask", {"ok": True})
    same(w.until(run, "completed", "failed").get("result"), {
        "total": 9, "size": "big", "squares": [1, 4, 9, 16, 25], "rounds": 2, "caught": "broken", "gaveUp": "down", "late": True, "left": 1, "right": 2,
        "both": [1, 2], "paid": {"order": 3, "cents": 7}, "ask": {"ok": True}, "sub": 18,
    }, "the result of all steps")


POLICIES = """name: NAME
steps:
  - id: race
    type: control.parallel
    complete: first
    saveAs: race
    branches:
      - [{ id: fast, type: control.fail, code: down }]
      - [{ id: never, type: wait.signal, signal: NEVER }]
      - [{ id: good, type: vars.set, values: { good: 1 } }]
  - id: some
    type: control.forEach
    items: [1, 0, 1, 1]
    parallel: true
    tolerate: 25%
    saveAs: some
    body: [{ id: one, type: action.call, action: transform, input: { n: { $expr: item } } }, { id: zero, type: control.fail, condition: item = 0, code: zero }]
  - id: most
    type: control.try
    body: [{ id: both, type: control.parallel, complete: 2, branches: [[{ id: x, type: control.fail, code: bad }], [{ id: y, type: vars.set, values: { y: 1 } }]] }]
    catch: [{ id: few, type: vars.set, values: { few: { $expr: error.code } } }]
  - id: block
    type: control.if
    condition: true
    retry: { attempts: 9, delay: 100ms, factor: 1.5, jitter: equal, budget: 300ms }
    onError: [{ id: spent, type: vars.set, values: { spent: { $expr: error.code } } }]
    then: [{ id: busy, type: control.fail, code: busy }]
  - id: ask
    type: wait.signal
    signal: ANSWER
    heartbeat: 1h
    timeout: P2D
    onError: [{ id: told, type: vars.set, values: { told: { $expr: error.message } } }]
  - { id: done, type: control.return, value: { $expr: '[vars.race.status, vars.some.status, vars.few, vars.spent, vars.told]' } }
"""


@promise("F2")
def steps_complete_early_tolerate_failures_and_can_be_failed_from_outside(w):
    run = w.start(w.publish(POLICIES), {})
    w.wait(lambda: "ask" in w.show(run)["places"], "the run asks")
    wait = w.ok("listWaits", run=run)["items"][0]
    due = w.ok("heartbeatWait", wait=wait["id"])["due"]
    expect(due > wait["due"], f"the heartbeat does not extend the wait: {due}, before: {wait['due']}")
    w.ok("failWait", wait=wait["id"], code="lost", message="it is lost")
    w.no(409, "answerWait", wait=wait["id"], input=1)
    same(w.until(run, "completed", "failed").get("result"), [
        "failed", "ended", "completed", "completed", "failed", "completed", "completed", "tooManyFailures", "busy", "it is lost",
    ], "the result of the policies")


NAMES = """name: NAME
steps:
  - { id: first, type: action.call, action: transform, input: { a: { $expr: payload.a }, gone: { $expr: payload.gone } } }
  - { id: second, type: action.call, action: transform, input: { b: 2 }, saveAs: deep.second }
  - id: loop
    type: control.forEach
    items: [7]
    itemVar: item
    saveAs: loop
    body: [{ id: in, type: vars.set, values: { in: { $expr: '[item, locals.item]' } } }]
  - { id: bad, type: control.fail, code: broken, onError: [{ id: kept, type: vars.set, values: { kept: { $expr: error.code } } }] }
  - { id: flow, type: vars.set, values: { flow: { $expr: meta.workflow } } }
  - { id: call, type: action.call, action: ACTION, input: { token: { $secret: TOKEN } } }
  - { id: ask, type: human.task }
  - { id: undefined, type: vars.set, values: { x: { $expr: payload.gone } } }
"""


@promise("F3")
def expressions_read_the_run_and_secrets_are_never_shown(w):
    tenant = w.own_tenant()
    folder, secret = os.path.join(w.folder, "secrets", tenant), "s3cret-" + tenant
    os.makedirs(folder)
    with open(os.path.join(folder, "TOKEN"), "w", encoding="utf-8") as file:
        file.write(secret)
    action = remote(w, secretFields=["/token"])
    run = w.start(w.publish(NAMES.replace("ACTION", action)), {"a": 1})
    task = w.task(action)
    same(task["input"], {"token": secret}, "the input that the worker gets")
    w.ok("completeTask", task=task["id"], fence=task["fence"], output={"echo": f"<{secret}>"})
    w.until(run, "waiting")
    w.send(run, "ask")
    failed = w.until(run, "failed")
    expect("payload.gone" in failed["error"]["message"], f"the error does not name the missing part: {failed['error']}")
    same(failed["context"]["vars"], {
        "first": {"a": 1}, "deep": {"second": {"b": 2}}, "loop": [[7, 7]], "in": [7, 7], "kept": "broken", "flow": failed["workflow"],
        "call": {"echo": "<***>"}, "ask": None,
    }, "the variables")
    shown = [json.dumps(w.ok(operation, run=run)) for operation in ["listHistory", "listTimeline", "showRun", "exportRun"]]
    shown.append(json.dumps(w.ok("listAudit", limit=200)))
    expect(not any(secret in text for text in shown), "the secret is shown")
    expect("TOKEN" in shown[0], f"the name of the secret is not in the history: {shown[0]}")
    elsewhere = f"steps:\n  - {{ id: a, type: action.call, action: {action}, input: {{ other: {{ $secret: TOKEN }} }} }}\n"
    expect("secret" in w.no(422, "publishVersion", name=w.fresh("flow"), document=elsewhere), "a secret in another field was not refused as such")


EXPRESSION = "name: NAME\nsteps:\n  - { id: ask, type: human.task }\n  - { id: count, type: vars.set, values: { x: { $expr: 'EXPR' } } }\n"


@promise("F4")
def expressions_are_bounded_and_errors_name_step_expression_and_missing_part(w):
    def evaluated(text):
        if w.door.name == "http":
            return w.call("evaluateExpression", expression=text, input={"a": {}})
        return w.door.command(["expr", "eval", text, "--input", '{"a": {}}', "--json"], json_output=False)

    same(evaluated("$sum([1..9]) + $count($keys($))").value["result"], 46, "a small expression")
    for text in ["[1..9000000]", "(" * 70 + "1" + ")" * 70, "($f := function($n) { $f($n) }; $f(1))", "$eval(\"1\")", "1 +"]:
        reply = evaluated(text)
        expect(reply.refused and reply.status == w.door.expected(422), f"`{text[:40]}` was not refused: {reply}")
    missing = ("payload.n.deep + 1", ["`count`", "`payload.n.deep + 1`", "`payload.n.deep`"])
    for text, parts in [missing, ("$count([1..payload.n.most])", ["`count`", "1..payload.n"])]:
        run = w.start(w.publish(EXPRESSION.replace("EXPR", text)), {"n": {"most": 90000000}})
        w.send(run, "ask")
        error = w.until(run, "failed", "completed")["error"]
        expect(error["code"] == "expression" and all(part in error["message"] for part in parts), f"the error of `{text}` is {error}")


WRONG = """name: NAME
steps:
  - { id: a, type: action.cal, action: log }
  - { id: b, type: vars.set, values: { x: { $expr: vars.lokup } } }
  - { id: lookup, type: vars.set, values: { lookup: 1 }, retri: 1 }
"""
ONE = "name: NAME\nsteps:\n  - { id: done, type: control.return, value: 1 }\n"


@promise("F5")
def versions_are_immutable_drafts_have_revisions_and_every_problem_is_reported(w):
    found = problems(w, WRONG)
    same([(line, column) for line, column, _ in found], [(3, 20), (4, 52), (5, 58)], "the places of the problems")
    for near, (_, _, message) in zip(["action.call", "lookup", "retry"], found):
        expect(f"did you mean `{near}`" in message, f"`{near}` is not suggested: {message}")
    flow = w.publish(ONE)
    said = w.no(422, "publishVersion", name=flow, document=WRONG.replace("NAME", flow))
    expect(all(f"{line}:{column}" in said for line, column, _ in found), f"publishing reports other problems: {said}")
    first = w.ok("showVersion", name=flow, number=1)
    run = w.start(flow)
    draft = w.ok("putDraft", name=flow, document=WRONG.replace("NAME", flow), createOnly=True)["revision"]
    w.no(412, "putDraft", name=flow, document=ONE, createOnly=True)
    w.no(428, "putDraft", name=flow, document=ONE)
    w.no(422, "publishDraft", name=flow, revision=draft)
    two = ONE.replace("NAME", flow).replace("value: 1", "value: 2")
    w.no(412, "putDraft", name=flow, document=two, match=draft + 1)
    same(w.ok("showDraft", name=flow)["text"], WRONG.replace("NAME", flow), "the draft after refused changes")
    newer = w.ok("putDraft", name=flow, document=two, match=draft)["revision"]
    w.no(412, "publishDraft", name=flow, revision=draft)
    same(w.ok("publishDraft", name=flow, revision=newer, activate=True)["version"], 2, "the number of the version")
    w.no(404, "showDraft", name=flow)
    same(w.ok("publishVersion", name=flow, document=two + "# the same\n")["created"], False, "a version with the same content")
    same(w.ok("showVersion", name=flow, number=1), first, "version 1 after version 2")
    same((w.until(run, "completed")["result"], w.done(flow)["result"]), (1, 2), "the results of both versions")


EFFECTS = """name: NAME
steps:
  - { id: up, type: action.call, action: store.increment, input: { namespace: NAME, key: a, by: { $expr: payload.n } } }
  - { id: call, type: action.call, action: http.request, input: { url: { $expr: '"https://shop.example.com/" & payload.n' } } }
  - { id: rest, type: wait.sleep, for: P30D }
  - { id: done, type: control.return, value: { $expr: vars.up.value } }
tests:
  - { name: it counts, input: { n: 3 }, mocks: { call: { output: { status: 200 } } }, expect: { result: 3, calls: [{ step: call }] } }
  - { name: it is wrong, input: { n: 3 }, mocks: { call: { output: { status: 200 } } }, expect: { result: 4 } }
"""


@promise("F6")
def the_simulator_shows_every_step_and_changes_nothing(w):
    w.own_tenant()
    flow = w.publish(EFFECTS)
    text = EFFECTS.replace("NAME", flow)
    shown = local(w, ["workflow", "simulate"], text, "simulateDocument", input={"n": 3}).value
    same((shown["outcome"], shown["result"]), ("completed", 3), "the simulated run")
    steps = {step["step"]: step for step in shown["steps"]}
    same((steps["up"]["input"], steps["up"]["output"]["value"]), ({"namespace": flow, "key": "a", "by": 3}, 3), "the input and output of a step")
    call = steps["call"]
    same((call["input"]["url"], call["output"], call["how"]), ("https://shop.example.com/3", None, "notMocked"), "a call without a mock")
    tested = local(w, ["workflow", "test"], text, "testDocument").value
    same([(case["name"], case["passed"]) for case in tested["cases"]], [("it counts", True), ("it is wrong", False)], "the test cases")
    same((w.ok("listKeys", namespace=flow)["items"], w.ok("listRuns", workflow=flow)["items"]), ([], []), "what the simulation left")


EVENTS = """name: NAME
trigger: { id: paid, type: event, eventName: PAID-NAME, filter: event.cents > 5 }
steps:
  - id: more
    type: wait.event
    eventName: MORE-NAME
    correlation: { event: event.order, run: payload.order }
  - { id: done, type: control.return, value: { $expr: vars.more.text } }
"""
SENDER = """name: NAME
steps:
  - { id: tell, type: action.call, action: event.emit, input: { name: PAID-FLOW, source: flow, id: e-1, data: { order: 3, cents: 7 } } }
"""


@promise("F7")
def an_event_is_accepted_once_and_reaches_each_trigger_and_wait_once(w):
    w.own_tenant()
    flow = w.publish(EVENTS)
    paid, more = "PAID-" + flow, "MORE-" + flow
    for order, text in [(1, "early"), (2, "other")]:
        same(emit(w, more, {"order": order, "text": text}, "m-1", source=text), True, "an event of another source with the same id")
    same([emit(w, paid, {"order": 1, "cents": 9}, "p-1") for _ in range(3)], [True, False, False], "an event that is sent three times")
    emit(w, paid, {"order": 2, "cents": 1}, "p-2")
    runs = lambda status: w.ok("listRuns", workflow=flow, status=status)["items"]
    first = w.wait(lambda: runs("completed"), "the event has started a run that got the earlier event")
    same([w.show(run["id"])["result"] for run in first], ["early"], "the results")
    logged = lambda: w.ok("listTriggerLog", workflow=flow, trigger="paid")["items"]
    w.wait(lambda: len(logged()) == 2, "both events are in the log")
    log = logged()
    same([(row["id"], row["outcome"], row["duplicates"]) for row in log], [("p-2", "filtered", 0), ("p-1", "started", 2)], "the log of the trigger")
    expect("cents" in json.dumps(log[0]), f"the log does not say why: {log[0]}")
    w.done(w.publish(SENDER.replace("FLOW", flow)))
    sent = w.wait(lambda: runs("waiting"), "the event of a workflow has started a run")[0]["id"]
    same([emit(w, more, {"order": 3, "text": "late"}, "m-2") for _ in range(2)], [True, False], "an event while the run waits")
    same(w.until(sent, "completed")["result"], "late", "the result of the run that waited")
    same(len(runs("completed")), 2, "the number of runs")
    same([entry["action"] for entry in w.history(sent)].count("__resolve_wait:more"), 1, "how often the wait was woken")


SPANS = """name: NAME
steps:
  - { id: none, type: wait.sleep, for: 0 }
  - { id: short, type: wait.sleep, for: 10ms }
  - { id: named, type: wait.sleep, forMs: 5 }
  - { id: nap, type: wait.sleep, for: { $expr: payload.length } }
  - { id: done, type: control.return, value: slept }
"""


@promise("F8")
def a_duration_has_a_unit_and_a_bare_number_is_refused_with_both_readings(w):
    for field in ["for: 1000", "for: 0.5", "for: '30'"]:
        number = field.removeprefix("for: ").strip("'")
        message = w.no(422, "publishVersion", name=w.fresh("flow"), document=SPANS.replace("NAME", "x").replace("for: 10ms", field))
        expect(f"{number}ms" in message and f"{number}s" in message, f"the message does not have both readings: {message}")
    flow = w.publish(SPANS)
    same(w.done(flow, {"length": "20ms"})["result"], "slept", "the result with units")
    failed = w.until(w.start(flow, {"length": 1000}), "failed")["error"]["message"]
    expect("`nap`" in failed and "1000ms" in failed and "1000s" in failed, f"the error does not name the step and both readings: {failed}")


DOUBTFUL = """name: NAME
steps:
  - id: safe
    type: control.try
    body: [{ id: put, type: action.call, action: store.set, input: { namespace: NAME, key: a, value: 1 } }]
    catch: { codes: [conflit], steps: [] }
  - { id: found, type: action.call, action: links.lookup, input: { namespace: NAME, from: { type: a, id: b } } }
  - { id: each, type: control.forEach, items: { $expr: vars.found.matches }, body: [{ id: tell, type: action.call, action: log, input: { message: x } }] }
  - { id: once, type: action.call, action: log, retry: { attempts: 0, delay: 1s }, input: { message: x } }
"""
MISSPELT = "name: NAME\nsteps:\n  - { id: put, type: action.call, action: store.sett, input: {} }\n"


@promise("F9")
def validation_warns_and_publishing_refuses_unknown_actions(w):
    flow = w.fresh("flow")
    codes = ["unraisedCode", "firstPageOnly", "noEffect"]
    published = w.ok("publishVersion", name=flow, document=DOUBTFUL.replace("NAME", flow))
    same([(one["code"], one["line"]) for one in published["warnings"]], list(zip(codes, [6, 8, 9])), "the warnings")
    flow = w.fresh("flow")
    text = MISSPELT.replace("NAME", flow)
    message = w.no(422, "publishVersion", name=flow, document=text)
    expect("did you mean `store.set`" in message, f"the nearest name is not suggested: {message}")
    draft = w.ok("putDraft", name=flow, document=text, createOnly=True)
    same((draft["valid"], [one["code"] for one in draft["warnings"]]), (True, ["unknownAction"]), "the stored draft")
    w.no(422, "publishDraft", name=flow, revision=draft["revision"])
    same(w.ok("publishDraft", name=flow, revision=draft["revision"], allowUnknownActions=True)["version"], 1, "the version")
    w.done(w.publish(DOUBTFUL))


NESTED = """name: NAME
steps:
  - id: rows
    type: control.forEach
    items: { $expr: payload.rows }
    itemVar: row
    saveAs: table
    body:
      - id: cells
        type: control.forEach
        parallel: 2
        items: { $expr: row }
        itemVar: cell
        saveAs: line
        body:
          - id: both
            type: control.parallel
            saveAs: pair
            branches: [[{ id: a, type: vars.set, values: { a: { $expr: cell + 1 } } }], [{ id: b, type: vars.set, values: { b: { $expr: cell + 2 } } }]]
  - id: outer
    type: control.while
    condition: r < 2
    indexVar: r
    saveAs: rounds
    body:
      - id: inner
        type: control.while
        condition: s < 2
        indexVar: s
        saveAs: inner
        result: { $expr: '[r, s]' }
        body: [{ id: nothing, type: control.if, condition: true, then: [{ id: set, type: vars.set, values: { s: 1 } }] }]
  - { id: done, type: control.return, value: { table: { $expr: vars.table }, rounds: { $expr: vars.rounds } } }
"""
LARGE = """name: NAME
steps:
  - { id: start, type: vars.set, values: { text: abcdefghabcdefgh } }
  - id: grow
    type: control.while
    condition: $length(vars.text) < 30000
    body: [{ id: twice, type: vars.set, values: { text: { $expr: vars.text & vars.text } } }]
  - id: many
    type: control.forEach
    items: { $expr: '[1..30]' }
    saveAs: many
    result: { $expr: vars.text }
    body: [{ id: none, type: vars.set, values: { none: 1 } }]
  - { id: copy, type: vars.set, values: { copy: { many: { $expr: vars.many } } } }
  - { id: pass, type: action.call, action: transform, input: { $expr: vars.copy } }
  - { id: done, type: control.return, value: { $expr: vars.pass.many } }
"""


@promise("F10")
def nested_blocks_return_their_lists_and_large_values_are_copied(w):
    done = w.done(w.publish(NESTED), {"rows": [[1, 2], [3], []]})
    same(done.get("result"), {"table": [[[2, 3], [3, 4]], [[4, 5]], []], "rounds": [[[0, 0], [0, 1]], [[1, 0], [1, 1]]]}, "the nested lists")
    large = w.done(w.publish(LARGE))
    same((large.get("error"), len(large.get("result", [])), len(json.dumps(large.get("result")))), (None, 30, 30 * (32768 + 4)), "the large value")
    for block in ["control.if, condition: true, then", "control.try, catch: [], body"]:
        found = problems(w, f"name: x\nsteps:\n  - {{ id: i, type: {block}: [{{ id: a, type: vars.set, values: {{ b: 1 }} }}], saveAs: x }}\n")
        expect(len(found) == 1 and "`saveAs` has no effect" in found[0][2], f"`saveAs` of a block without a result: {found}")


PEOPLE = """name: NAME
steps:
  - { id: ask, type: human.task, signal: say, answerers: [role:lead, user:ann], form: &form { type: object, required: [ok] } }
  - { id: two, type: human.task, signal: say, answerers: [user:ann], form: *form }
  - { id: go, type: wait.signal, signal: GO }
  - { id: work, type: action.call, action: ACTION, retry: 1 }
  - { id: sub, type: workflow.call, workflow: CHILD }
"""


@promise("G1")
def every_start_signal_answer_and_command_has_an_actor(w):
    w.own_tenant()
    action, child = remote(w), w.publish(ONE)
    run = w.start(w.publish(PEOPLE.replace("ACTION", action).replace("CHILD", child)))
    w.until(run, "waiting")
    keys = {name: key(w, name, "workflow:manage", "workflow:view", "worker:" + action, user=name) for name in ["ann", "max"]}
    wait = w.ok("listWaits", run=run)["items"][0]
    w.ok("answerWait", as_key=keys["ann"], wait=wait["id"], input={"ok": 1})
    link = w.ok("createAnswerLink", as_key=keys["ann"], run=run)["token"]
    answer = json.dumps({"token": link, "input": {"ok": 2}}).encode()
    answered = Http(w).request("POST", "/v1/flows/resume", answer, {"Content-Type": "application/json"})
    expect(not answered.refused, f"the link was refused: {answered}")
    w.ok("signalRun", as_key=keys["max"], run=run, name="GO", body=None)
    w.ok("suspendRun", as_key=keys["max"], run=run, reason="a pause")
    w.ok("resumeRun", as_key=keys["max"], run=run)
    task = w.task(action)
    w.ok("failTask", as_key=keys["ann"], task=task["id"], fence=task["fence"], error={"code": "down", "message": "no"})
    task = w.task(action)
    w.ok("completeTask", as_key=keys["max"], task=task["id"], fence=task["fence"], output=1)
    w.until(run, "completed")
    actors = {entry["action"]: entry.get("actor") for entry in w.history(run)}
    linked = actors.pop("__resolve_wait:two")
    expect(linked.startswith("link:") and linked.endswith(":user:ann"), f"the actor of the link is {linked}")
    wanted = {"__start": "apikey:client", "__resolve_wait:ask": "apikey:ann", "__resolve_wait:go": "apikey:max", "__auto:work": "apikey:max"}
    same({action: actors[action] for action in wanted}, wanted, "the actors in the history")
    rows = [(row["operation"], row["actor"]) for row in audited(w, run)]
    for row in [
        ("run.start", "apikey:client"), ("run.answer", "apikey:ann"), ("run.answer", linked), ("run.signal", "apikey:max"), ("run.suspend", "apikey:max"),
        ("run.resume", "apikey:max"), ("task.fail", "apikey:ann"), ("task.complete", "apikey:max"), ("run.start", f"run:{run}"),
    ]:
        expect(rows.count(row) == 1, f"{row} is not once in the audit trail {rows}")
    line = w.ok("listTimeline", run=run, limit=200)["items"]
    same([row["error"]["code"] for row in line if row["type"] == "attempt"], ["down"], "the failed tries in the timeline")
    commands = [row["action"] for row in line if row["type"] == "command" and row["actor"] == "apikey:max"]
    same(commands, ["run.suspend", "run.resume", "task.complete"], "the commands in the timeline")
    same([row["version"] for row in line if row["type"] == "entry"], list(range(w.show(run)["version"] + 1)), "the entries in the timeline")
    sub = w.ok("listRuns", parent=run)["items"][0]["id"]
    same(w.history(sub)[0]["actor"], f"run:{run}", "the actor of a start by the parent")
    often = w.publish(ONE.replace("steps:", "triggers: [{ id: often, type: schedule, cron: '* * * * * *' }]\nsteps:"))
    fired = w.wait(lambda: w.ok("showSchedule", name=often + "/often").get("lastRun"), "the schedule has started a run")
    w.ok("deactivateWorkflow", name=often)
    same(w.history(fired)[0]["actor"], f"schedule:{often}/often", "the actor of a start by the schedule")


@promise("G2")
def only_the_named_people_answer_and_an_administrator_needs_a_reason(w):
    w.own_tenant()
    flow = w.publish(PEOPLE.split("  - { id: go")[0])
    run = w.start(flow)
    w.until(run, "waiting")
    ann, lead = key(w, "ann", "workflow:answer", user="ann"), key(w, "max", "workflow:answer", roles=["clerk", "lead"])
    eve, manager = key(w, "eve", "workflow:answer", user="eve", roles=["clerk"]), key(w, "pam", "workflow:manage", "workflow:view", user="pam")
    wait = w.ok("listWaits", run=run)["items"][0]
    mine = lambda who: [one["place"] for one in w.ok("listWaits", as_key=who)["items"]]
    same([mine(ann), mine(lead), mine(eve)], [["ask"], ["ask"], []], "the waits that each one sees")
    for who in [eve, manager, w.key]:
        w.no(403, "answerWait", as_key=who, wait=wait["id"], input={"ok": 1})
    for who in [manager, w.key]:
        w.no(403, "signalRun", as_key=who, run=run, name="say", body={"ok": 1})
        w.no(403, "createAnswerLink", as_key=who, run=run, answerer="user:ann")
    w.no(403, "claimWait", as_key=eve, wait=wait["id"])
    for operation in ["showRun", "cancelRun", "listHistory", "listRuns", "listKeyNamespaces", "startRun"]:
        more = {"run": run} if operation in ["showRun", "cancelRun", "listHistory"] else {"workflow": flow} if operation == "startRun" else {}
        w.no(403, operation, as_key=ann, **more)
    same(w.show(run)["version"], 0, "the version after refused answers")
    w.ok("claimWait", as_key=ann, wait=wait["id"], lease="1h")
    expect("apikey:ann" in w.no(409, "answerWait", as_key=lead, wait=wait["id"], input={"ok": 1}), "the claim does not name its owner")
    w.ok("releaseWait", as_key=ann, wait=wait["id"])
    w.ok("answerWait", as_key=lead, wait=wait["id"], input={"ok": 1})
    same([mine(ann), mine(lead)], [["two"], []], "the waits after the first answer")
    wait = w.wait(lambda: w.ok("listWaits", run=run)["items"], "the second question")[0]
    w.no(403, "answerWait", as_key=lead, wait=wait["id"], input={"ok": 1})
    w.ok("answerWait", wait=wait["id"], input={"ok": 2}, reason="ann is ill")
    w.until(run, "completed")
    row = audited(w, run, "run.answer")[-1]
    found = (row["actor"], row["detail"]["reason"], row["detail"]["for"])
    same(found, ("apikey:client", "ann is ill", ["user:ann"]), "the audited answer for another person")


SAME = """name: NAME
steps:
  - { id: one, type: human.task, signal: say }
  - { id: two, type: human.task, signal: say }
  - { id: go, type: wait.signal, signal: GO }
  - { id: done, type: control.return, value: { $expr: '[vars.one, vars.two, vars.go]' } }
"""


@promise("G3")
def an_answer_belongs_to_one_wait_and_a_second_one_names_the_first(w):
    run = w.start(w.publish(SAME))
    w.until(run, "waiting")
    wait = w.ok("listWaits", run=run)["items"][0]
    w.ok("answerWait", wait=wait["id"], input="first")
    for said in [
        w.no(409, "answerWait", wait=wait["id"], input="second"),
        w.no(409, "signalRun", run=run, name="say", body="second", forWait=wait["activation"]),
        w.no(409, "showWait", wait=wait["id"]),
    ]:
        expect("apikey:client" in said and "answered" in said, f"the refusal does not name the first answer: {said}")
    w.ok("answerWait", wait=wait["id"], input="first")
    shown = w.show(run)
    same((shown["places"], shown["bufferedSignals"]), (["two"], 0), "the run after a second answer")
    same(w.send(run, "GO", "early")["outcome"], "buffered", "a plain signal that nothing takes yet")
    wait = w.ok("listWaits", run=run)["items"][0]
    w.ok("answerWait", wait=wait["id"], input="other")
    same(w.until(run, "completed")["result"], ["first", "other", "early"], "the answers")


empty("G4", "*", "not yet: only signals and migrations have a preview, the other commands have none")

FAILING = """name: NAME
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: NAME, key: n } }
"""


@promise("G5")
def a_bulk_command_is_one_audited_command_per_run(w):
    w.own_tenant()
    flow = w.publish(FAILING)
    w.ok("setKey", namespace=flow, key="n", value="no number")
    runs = sorted(w.start(flow) for _ in range(3))
    for run in runs:
        w.until(run, "failed")
    other = w.publish(SAME)
    asleep = w.start(other)
    w.publish(SAME.replace("id: done", "id: over"), name=other)
    numbers = lambda shown: [shown[field] for field in ("total", "done", "failed", "skipped")]

    def bulk(command, **more):
        shown = w.ok("startBulk", command=command, **more)
        return w.wait(lambda: (lambda shown: shown if "endedAt" in shown else None)(w.ok("showBulk", bulk=shown["id"])), f"{command} has ended")

    same(numbers(bulk("retry", filter={"workflow": flow}, dryRun=True)), [3, 3, 0, 0], "the dry run")
    w.ok("setKey", namespace=flow, key="n", value=0)
    shown = bulk("retry", filter={"workflow": flow}, reason="repaired")
    same((shown["status"], numbers(shown)), ("completed", [3, 3, 0, 0]), "the retry")
    for run in runs:
        w.until(run, "completed")
        found = [(row["actor"], row["detail"]["bulk"], row["detail"]["reason"]) for row in audited(w, run, "run.retry")]
        same(found, [("apikey:client", shown["id"], "repaired")], "the audited retries of a run")
    same(w.ok("getKey", namespace=flow, key="n")["value"], 3, "the number of executions")
    results = w.ok("listBulkResults", bulk=shown["id"])["items"]
    same(sorted((one["run"], one["outcome"]) for one in results), [(run, "done") for run in runs], "the results")
    same(w.ok("listBulk")["items"][0]["id"], shown["id"], "the newest bulk command")
    w.no(409, "cancelBulk", bulk=shown["id"])
    w.no(422, "startBulk", command="cancel", filter={})
    w.no(403, "startBulk", as_key=key(w, "manager", "workflow:manage", "workflow:view"), command="delete", runs=runs)
    same(numbers(bulk("suspend", runs=[asleep])), [1, 1, 0, 0], "the suspension")
    same(numbers(bulk("resume", runs=[asleep, runs[0]])), [2, 1, 0, 1], "the resumption, with a run that has ended")
    same(numbers(bulk("signal", runs=[asleep], signal="say", payload=7)), [1, 1, 0, 0], "the signal")
    same(numbers(bulk("migrate", runs=[asleep], toVersion=2)), [1, 1, 0, 0], "the migration")
    same(numbers(bulk("cancel", runs=[asleep])), [1, 1, 0, 0], "the cancellation")
    same(numbers(bulk("delete", runs=[asleep])), [1, 1, 0, 0], "the deletion")
    w.no(404, "showRun", run=asleep)


PRIVATE = """name: NAME
steps:
  - { id: put, type: action.call, action: document.put, input: { key: a, kind: note, body: { $expr: payload.name } } }
  - { id: slot, type: action.call, action: state.set, input: { scope: execution, key: name, value: { $expr: payload.name } } }
  - { id: keep, type: action.call, action: store.set, input: { namespace: { $expr: payload.space }, key: kept, value: 1 } }
  - { id: ask, type: human.task }
"""


@promise("G6")
def a_deleted_run_leaves_only_the_fact_and_the_actor(w):
    w.own_tenant()
    run = w.start(w.publish(PRIVATE), {"name": "Ann Example", "space": "g6"})
    w.until(run, "waiting")
    w.no(409, "deleteRun", run=run)
    w.no(403, "deleteRun", as_key=key(w, "manager", "workflow:manage", "workflow:view"), run=run)
    same(w.ok("getExecutionSlot", run=run, key="name")["value"], "Ann Example", "the slot before the deletion")
    w.ok("patchRun", run=run, fields={"vars": {"name": "Ann Example"}})
    w.send(run, "ask", "Ann Example")
    w.until(run, "completed")
    w.ok("deleteRun", run=run)
    for operation in ["showRun", "listHistory", "listTimeline", "listDocuments"]:
        w.no(404, operation, run=run)
    same((w.call("getExecutionSlot", run=run, key="name").value or {}).get("found", False), False, "the slot after the deletion")
    same(w.ok("getKey", namespace="g6", key="kept")["value"], 1, "the key that the run wrote")
    rows = [(row["operation"], row["actor"]) for row in audited(w, run)]
    expect(("run.start", "apikey:client") in rows and rows[-1] == ("run.delete", "apikey:client"), f"the audit trail is {rows}")
    kept = [row for row in audited(w, run) if "Ann Example" in json.dumps(row)]
    same(kept, [], "the rows of the audit trail with data of the deleted run")


@promise("G6")
def a_live_run_is_deleted_only_by_force(w):
    run = w.start(w.publish("name: NAME\nsteps: [{ id: go, type: wait.signal, signal: GO }]\n"))
    w.until(run, "waiting")
    expect("force" in str(w.no(409, "deleteRun", run=run)), "the refusal does not say what to do")
    dry = w.ok("deleteRun", run=run, force=True, tree=True, dryRun=True)
    same((dry["dryRun"], [row["id"] for row in dry["runs"]]), (True, [run]), "the dry run")
    same(w.show(run)["status"], "waiting", "the status after the dry run")
    same(w.ok("deleteRun", run=run, force=True, reason="privacy")["dryRun"], False, "the deletion")
    w.no(404, "showRun", run=run)


empty("G7", "*", "not yet: a version keeps its content, but not comments, tests and the order of fields")
empty("G8", "*", "not yet: there is no visual editor")
empty("G9", "*", "not yet: there are no browser sessions")
empty("G10", "*", "not yet: there is no Studio to translate")
