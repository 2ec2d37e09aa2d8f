"""Everything that a tenant can do over the API, as one script. Two tenants run it with the same ids, names and keys.

The names of a lane begin with its tag, so that several lanes of one tenant do not disturb each other. Every value contains the
tenant's mark, so that a value of the other tenant can be recognized.
"""

import base64
import hashlib
import hmac
import json
import time
import urllib.parse
import uuid

YAML = "application/yaml"
CLOUD_EVENT = "application/cloudevents+json"


def documents(tag, mark, base):
    """Returns the workflow documents of a lane. The two tenants publish other content under the same names."""
    count = f"{{ id: count, type: action.call, action: store.increment, input: {{ namespace: {tag}, key: {{ $expr: payload.name }}, by: {base} }} }}"
    return {
        "bell": f"""
shadows: {{ whose: {{ path: payload.whose, type: string }} }}
steps:
  - {{ id: go, type: wait.signal, signal: GO }}
  - {count}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: vars.go }}, n: {{ $expr: vars.count.value }} }} }}
""",
        "plain": f"steps: [{{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: payload }} }} }}]\n",
        "order": f"""
trigger: {{ id: paid, type: event, eventName: {tag}.paid, correlation: event.order }}
steps: [{{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: payload }} }} }}]
""",
        "parcel": f"""
steps:
  - {{ id: seen, type: wait.event, eventName: {tag}.seen, correlation: {{ event: event.parcel, run: payload.parcel }} }}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: vars.seen }} }} }}
""",
        "hook": f"""
trigger: {{ id: in, type: webhook, path: {tag}/in, secret: {{ $secret: HOOK }} }}
steps: [{{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: payload.body }} }} }}]
""",
        "loud": f"""
steps:
  - {{ id: shout, type: action.call, action: {tag}.shout, input: {{ text: {{ $expr: payload.whose }} }}, saveAs: said }}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, said: {{ $expr: vars.said }} }} }}
""",
        "child": f"""
steps:
  - {{ id: go, type: wait.signal, signal: GO }}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: vars.go }} }} }}
""",
        "parent": f"""
steps:
  - {{ id: both, type: workflow.call, workflow: {tag}-child, input: {{ whose: {mark} }} }}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, child: {{ $expr: vars.both }} }} }}
""",
        **{f"form-{strategy}": f"""
strategy: {strategy}
shadows: {{ whose: {{ path: payload.whose, type: string }} }}
steps:
  - id: ask
    type: human.task
    title: {mark}
    form: {{ type: object, required: [n], properties: {{ n: {{ type: integer }} }} }}{heartbeat}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: vars.ask }} }} }}
""" for strategy, heartbeat in (("durable", "\n    heartbeat: 1h"), ("handle", ""), ("sealed", ""))},
        "loop": f"""
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: payload.items }}
    saveAs: got
    body: [{{ id: one, type: vars.set, values: {{ last: {{ $expr: item }} }} }}]
  - {{ id: go, type: wait.signal, signal: GO }}
  - {{ id: done, type: control.return, value: {{ whose: {mark}, got: {{ $expr: '$count(vars.got)' }} }} }}
""",
        "strict": f"""
initial: open
envelope: true
places: {{ open: {{ kind: step }}, shut: {{ kind: end, output: {{ whose: {mark} }} }} }}
signals: {{ ADD: {{}} }}
transitions:
  - {{ id: add, from: open, to: shut, on: {{ signal: ADD }}, action: {{ name: store.increment, input: {{ namespace: {tag}, key: {tag}-strict, by: {base} }} }} }}
""",
    }


class Stuck(Exception):
    """A request did not have its effect in time."""


class Neighbour:
    """The script of one tenant in one lane. `ask` sends the requests of the script."""

    def __init__(self, ask, tag, mark, base, tenant, secret):
        self.ask, self.tag, self.mark, self.base, self.tenant, self.secret = ask, tag, mark, base, tenant, secret

    def id(self, name):
        """Returns an id that both tenants use."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.tag} {name}"))

    def flow(self, name):
        return f"{self.tag}-{name}"

    def input(self, name):
        return {"whose": self.mark, "name": f"{self.tag}-{name}", "base": self.base}

    def start(self, workflow, name, once=None, **more):
        body = {"workflow": self.flow(workflow), "id": self.id(name), "input": self.input(name), **more}
        return self.ask("startRun", body=body, once=once or f"{self.tag}-start-{name}")["id"]

    def settled(self, run, *statuses, place=None):
        """Waits until a run has one of these states. Such a request is not part of the comparison."""
        until = time.monotonic() + self.ask.patience
        while time.monotonic() < until:
            shown = self.ask.quietly("showRun", {"run": run})
            if shown.get("status") in statuses and (place is None or place in shown["places"]):
                return shown
            time.sleep(0.01)
        raise Stuck(f"{self.tag}: run {run} is {shown}, not {statuses}")

    def ended(self, run, status="completed"):
        self.settled(run, status)
        return self.ask("showRun", {"run": run})

    def until(self, what, found):
        until = time.monotonic() + self.ask.patience
        while time.monotonic() < until:
            if found():
                return
            time.sleep(0.01)
        raise Stuck(f"{self.tag}: {what} did not happen")

    def go(self, run, number=0, **more):
        return self.ask("signalRun", {"run": run, "name": "GO"}, body={"by": self.mark, "n": self.base + number}, **more)

    def run(self):
        for part in (self.identity, self.publishes, self.drafts, self.bundles, self.stateless, self.runs, self.repairs, self.bulks, self.versions, self.tree,
                     self.follows, self.keys, self.slots, self.links, self.events, self.waits_for_events, self.hooks, self.schedules, self.work,
                     self.flows, self.tasks_of_people, self.columns, self.credentials, self.tenants, self.trail):
            part()

    # Catalogue.

    def identity(self):
        self.ask("whoami")
        self.ask("listSealingKeys")
        self.ask("metrics", want=(403,))

    def publishes(self):
        self.ask("putEventType", {"name": f"{self.tag}.paid"}, body={"about": self.mark, "schema": {"type": "object"}, "correlation": "event.order"})
        self.ask("showEventType", {"name": f"{self.tag}.paid"})
        self.ask("putEventType", {"name": f"{self.tag}.gone"}, body={"about": self.mark})
        self.ask("listEventTypes", mine=True)
        self.ask("deleteEventType", {"name": f"{self.tag}.gone"})
        self.ask("showEventType", {"name": f"{self.tag}.gone"}, want=(404,))
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        for name in ("shout", "gone"):
            self.ask("putAction", {"name": f"{self.tag}.{name}"}, body={"about": self.mark, "input": schema})
        self.ask("showAction", {"name": f"{self.tag}.shout"})
        self.ask("listActions", mine=True)
        self.ask("deleteAction", {"name": f"{self.tag}.gone"})
        self.ask("showAction", {"name": f"{self.tag}.gone"}, want=(404,))
        for name, text in documents(self.tag, self.mark, self.base).items():
            self.ask("publishVersion", {"name": self.flow(name)}, query={"activate": "true", "note": self.mark}, body=text, kind=YAML)

    def drafts(self):
        name = {"name": self.flow("bell")}
        text = documents(self.tag, self.mark, self.base)["bell"].replace("steps:\n", f"steps:\n  - {{ id: note, type: vars.set, values: {{ note: {self.mark} }} }}\n")
        self.ask("putDraft", name, body=f"steps: [{{ {self.mark}", kind=YAML, headers={"If-None-Match": "*"})
        draft = self.ask("showDraft", name)
        self.ask("publishDraft", name, body={"revision": draft["revision"]}, want=(422,))
        draft = self.ask("putDraft", name, body=text, kind=YAML, match=draft["revision"])
        self.ask("showWorkflow", name)
        self.ask("publishDraft", name, body={"revision": draft["revision"], "note": self.mark})
        draft = self.ask("putDraft", name, body=text, kind=YAML, headers={"If-None-Match": "*"})
        self.ask("deleteDraft", name, match=draft["revision"])
        self.ask("showDraft", name, want=(404,))
        self.ask("listVersions", name)
        self.ask("listLimits", name)
        for number in (1, 2):
            self.ask("showVersion", {**name, "number": number})
        self.ask("diffVersions", name, query={"from": 1, "to": 2})
        self.ask("drawWorkflow", name, query={"version": 2})
        self.ask("showWorkflow", name)
        self.ask("listWorkflows", query={"prefix": self.tag + "-"})
        plain, body = {"name": self.flow("plain")}, {"workflow": self.flow("plain"), "input": self.input("plain")}
        self.ask("deactivateWorkflow", plain)
        self.ask("startRun", body=body, want=(409,))
        self.ask("activateVersion", plain, body={"version": 1})
        self.ask("archiveWorkflow", plain)
        self.ask("startRun", body=body, want=(409,))
        self.ask("restoreWorkflow", plain)
        self.ask("showWorkflow", plain)

    def bundles(self):
        bundle = self.ask("exportWorkflows", query={"name": self.flow("plain"), "format": "json"})
        self.ask("importWorkflows", query={"dryRun": "true"}, body=bundle)
        self.ask("importWorkflows", query={"activate": "true", "note": self.mark}, body=bundle)

    def stateless(self):
        text = f"steps: [{{ id: done, type: control.return, value: {{ $expr: payload.whose }} }}]\ntests: [{{ name: {self.mark}, input: {{ whose: {self.mark} }}, expect: {{ result: {self.mark} }} }}]\n"
        self.ask("validateDocument", query={"name": self.flow("bell")}, body=text, kind=YAML)
        self.ask("simulateDocument", body={"name": self.flow("bell"), "document": text, "input": {"whose": self.mark}})
        self.ask("testDocument", body={"name": self.flow("bell"), "document": text})
        self.ask("evaluateExpression", body={"expression": "whose & '!'", "input": {"whose": self.mark}})
        self.ask("runStateless", body={"workflow": self.flow("loop"), "input": {"items": [self.mark]}})

    # Runs.

    def runs(self):
        run = self.start("bell", "one")
        self.start("bell", "one")
        changed = {**self.input("one"), "base": 0}
        self.ask("startRun", body={"workflow": self.flow("bell"), "id": run, "input": changed}, once=f"{self.tag}-start-one", want=(422,))
        self.settled(run, "waiting")
        self.ask("showRun", {"run": run})
        # The waits of both tenants look the same here. `tasks_of_people` compares some that differ.
        wait = self.ask.quietly("listWaits", query={"run": run})["items"][0]
        self.ask("listRuns", query={"workflow": self.flow("bell")})
        self.ask("countRuns", query={"workflow": self.flow("bell")})
        self.ask("findRuns", query={"prefix": run})
        self.ask("shortenRunIds", body={"runs": [run]})
        self.ask("diagnoseRun", {"run": run})
        self.ask("drawRun", {"run": run})
        self.ask("listTransitions", {"run": run})
        self.go(run, query={"dryRun": "true", "forWait": wait["activation"]})
        self.go(run, query={"forWait": wait["activation"]}, once=f"{self.tag}-go")
        self.go(run, query={"forWait": wait["activation"]}, once=f"{self.tag}-go")
        self.ended(run)
        self.go(run, query={"forWait": wait["activation"]}, number=1, once=f"{self.tag}-late", want=(409,))
        self.ask("showRun", {"run": run}, query={"wait": "10s"})
        for row in self.ask("listHistory", {"run": run})["items"]:
            self.ask("showRunVersion", {"run": run, "version": row["version"]})
        self.ask("diffRun", {"run": run}, query={"from": 0, "to": row["version"]})
        self.ask("exportRun", {"run": run}, query={"name": self.mark})
        self.ask("deleteRun", {"run": run})
        self.ask("showRun", {"run": run}, want=(404,))
        changed = self.start("bell", "changed")
        self.settled(changed, "waiting")
        self.ask("suspendRun", {"run": changed}, body={"reason": self.mark}, once=f"{self.tag}-suspend")
        self.ask("showRun", {"run": changed})
        self.ask("patchRun", {"run": changed}, body={"fields": {"vars": {"patched": self.mark}}, "reason": self.mark}, once=f"{self.tag}-patch")
        self.ask("resumeRun", {"run": changed}, body={"reason": self.mark}, once=f"{self.tag}-resume")
        self.settled(changed, "waiting")
        self.go(changed)
        self.ended(changed)
        items = [{"whose": self.mark, "number": self.base + number, "text": "x" * 40} for number in range(40)]
        loop = self.ask("startRun", body={"workflow": self.flow("loop"), "id": self.id("loop"), "input": {"items": items}})["id"]
        self.settled(loop, "waiting", place="go")
        # A long list is a hidden document of the run.
        self.ask("listDocuments", {"run": loop})
        self.go(loop)
        self.ended(loop)
        both = {"workflow": self.flow("bell"), "id": self.id("both"), "input": self.input("both"), "signal": {"name": "GO", "id": f"{self.tag}-first", "payload": {"by": self.mark}}}
        self.ask("startRun", body=both, once=f"{self.tag}-both")
        self.ended(self.id("both"))
        cancelled = self.start("bell", "cancelled")
        self.settled(cancelled, "waiting")
        self.ask("cancelRun", {"run": cancelled}, body={"reason": self.mark}, once=f"{self.tag}-cancel")
        self.ended(cancelled, "cancelled")
        self.ask("listHistory", {"run": cancelled})

    def repairs(self):
        """Fails a transition, then drops its signal, retries it and moves the run."""
        key = {"namespace": self.tag, "key": f"{self.tag}-strict"}
        runs = [self.start("strict", name) for name in ("dismissed", "retried", "moved")]
        self.ask("setKey", key, body={"value": self.mark})
        for run in runs:
            self.settled(run, "waiting")
            self.ask("signalRun", {"run": run, "name": "ADD"}, body={"by": self.mark})
            self.ended(run, "failed")
        dismissed, retried, moved = runs
        self.ask("dismissRun", {"run": dismissed}, body={"reason": self.mark}, once=f"{self.tag}-dismiss")
        self.settled(dismissed, "waiting")
        self.ask("showRun", {"run": dismissed})
        self.ask("setKey", key, body={"value": 1})
        self.ask("retryRun", {"run": retried}, body={"reason": self.mark}, once=f"{self.tag}-retry")
        self.ended(retried)
        self.ask("moveRun", {"run": moved}, body={"to": "shut", "reason": self.mark}, once=f"{self.tag}-move")
        self.ended(moved)
        self.ask("getKey", key)

    def bulks(self):
        """Starts several runs with one request, and executes commands on all of them."""
        starts = [{"workflow": self.flow("bell"), "id": self.id(f"bulk-{number}"), "input": self.input("bulk"), "key": f"{self.tag}-bulk-{number}"} for number in range(3)]
        runs = [item["id"] for item in self.ask("startRuns", body={"starts": starts})["items"]]
        for run in runs:
            self.settled(run, "waiting")
        suspend = {"command": "suspend", "runs": runs, "reason": self.mark}
        bulk = self.ask("startBulk", query={"wait": "30s"}, body=suspend, once=f"{self.tag}-bulk-suspend")["id"]
        self.ask("showBulk", {"bulk": bulk})
        self.ask("listBulkResults", {"bulk": bulk})
        self.ask("cancelBulk", {"bulk": bulk}, want=(409,))
        cancel = {"command": "cancel", "filter": {"workflow": self.flow("bell"), "status": ["suspended"]}, "reason": self.mark}
        self.ask("startBulk", query={"wait": "30s"}, body=cancel, once=f"{self.tag}-bulk-cancel")
        self.ask("listBulk", mine=True)
        for run in runs:
            self.ended(run, "cancelled")

    def versions(self):
        """Migrates a run to another version and forks it."""
        run = self.start("bell", "older")
        self.settled(run, "waiting")
        self.ask("migrateRun", {"run": run}, body={"version": 2, "dryRun": True})
        self.ask("migrateRun", {"run": run}, body={"version": 2, "reason": self.mark}, once=f"{self.tag}-migrate")
        self.settled(run, "waiting")
        fork = self.ask("forkRun", {"run": run}, body={"version": 1, "reason": self.mark}, once=f"{self.tag}-fork")["id"]
        self.settled(fork, "waiting")
        self.ask("showRun", {"run": fork})
        self.go(fork)
        self.ended(fork)
        self.ask("showRun", {"run": run})
        self.go(run)
        self.ended(run)

    def tree(self):
        """Runs a child, which shares slots with its parent."""
        parent = self.start("parent", "parent")
        self.until("the child starts", lambda: self.ask.quietly("listRuns", query={"parent": parent, "status": "waiting"})["items"])
        child = self.ask("listRuns", query={"parent": parent})["items"][0]["id"]
        self.go(child)
        self.ended(parent)
        self.ended(child)
        lonely = self.start("parent", "lonely")
        self.until("the child starts", lambda: self.ask.quietly("listRuns", query={"parent": lonely, "status": "waiting"})["items"])
        self.ask("cancelRun", {"run": lonely}, body={"reason": self.mark})
        self.ended(lonely, "cancelled")
        self.until("the child is cancelled", lambda: self.ask.quietly("listRuns", query={"parent": lonely, "status": "cancelled"})["items"])
        self.ask("listRuns", query={"parent": lonely})

    def follows(self):
        run = self.start("bell", "followed")
        self.settled(run, "waiting")
        with self.ask.stream("followRun", {"run": run}) as stream:
            self.go(run)
            self.ended(run)
            stream.rest()

    # Data.

    def keys(self):
        key = {"namespace": self.tag, "key": "k"}
        with self.ask.stream("watchKey", key) as stream:
            stream.until('"found": false')
            self.ask("setKey", key, body={"value": self.mark}, once=f"{self.tag}-k", headers={"If-None-Match": "*"})
            self.ask("setKey", key, body={"value": self.mark}, once=f"{self.tag}-k", headers={"If-None-Match": "*"})
            stream.until(self.mark)
            self.ask("setKey", key, body={"value": self.base, "ttlSeconds": 3600}, match=1)
            stream.until(str(self.base))
        self.ask("setKey", key, body={"value": 0}, match=1, want=(412,))
        self.ask("incrementKey", key, body={"by": 1}, once=f"{self.tag}-add")
        self.ask("incrementKey", key, body={"by": 1}, once=f"{self.tag}-add")
        self.ask("getKey", key)
        changes = [
            {"op": "check", "namespace": self.tag, "key": "k", "revision": 3},
            {"op": "set", "namespace": self.tag, "key": "two", "value": self.mark},
            {"op": "increment", "namespace": self.tag, "key": "k", "by": 2},
            {"op": "delete", "namespace": self.tag, "key": "two"},
            {"op": "link", "namespace": self.tag, "from": {"type": "a", "id": "x"}, "to": {"type": "b", "id": "data"}, "attributes": {"whose": self.mark}},
        ]
        self.ask("changeData", body={"changes": changes}, once=f"{self.tag}-data")
        self.ask("changeData", body={"changes": changes}, once=f"{self.tag}-data")
        self.ask("changeData", body={"changes": changes[:1]}, want=(409, 412))
        self.ask("listKeys", {"namespace": self.tag})
        self.ask("listKeys", {"namespace": self.tag}, query={"prefix": "k", "limit": 1})
        self.ask("listKeyNamespaces", mine=True)
        self.ask("deleteKey", key, once=f"{self.tag}-del")
        self.ask("getKey", key, want=(404,))

    def slots(self):
        run = self.start("bell", "slots")
        self.settled(run, "waiting")
        self.slots_of("Execution", {"run": run})
        self.slots_of("Workflow", {"workflow": self.flow("bell")})
        self.go(run)
        self.ended(run)

    def slots_of(self, kind, owner):
        def of(key):
            return {**owner, "key": key}

        with self.ask.stream(f"watch{kind}Slot", of("s")) as stream:
            stream.until('"found": false')
            self.ask(f"set{kind}Slot", of("s"), body={"value": {"whose": self.mark}}, once=f"{self.tag}-{kind}")
            stream.until(self.mark)
        self.ask(f"merge{kind}Slot", of("s"), body={"fields": {"base": self.base}}, once=f"{self.tag}-{kind}-merge")
        self.ask(f"get{kind}Slot", of("s"))
        for number in range(3):
            self.ask(f"append{kind}Slot", of("list"), body={"item": {"whose": self.mark, "number": number}}, once=f"{self.tag}-{kind}-{number}")
        self.ask(f"removeFirst{kind}Slot", of("list"), once=f"{self.tag}-{kind}-first")
        self.ask(f"removeLast{kind}Slot", of("list"), once=f"{self.tag}-{kind}-last")
        self.ask(f"increment{kind}Slot", of("n"), body={"by": self.base}, once=f"{self.tag}-{kind}-n")
        self.ask(f"list{kind}Slots", owner)
        self.ask(f"delete{kind}Slot", of("n"), once=f"{self.tag}-{kind}-gone")
        self.ask(f"get{kind}Slot", of("n"), want=(404,))
        self.ask(f"list{kind}Slots", owner)

    def links(self):
        space = {"namespace": self.tag}
        for number in range(3):
            body = {"from": {"type": "order", "id": "x"}, "to": {"type": "person", "id": str(number)}, "relation": "of", "attributes": {"whose": self.mark}}
            self.ask("putLink", space, body=body, once=f"{self.tag}-link-{number}")
        self.ask("listLinks", space)
        self.ask("lookUpLinks", space, query={"type": "order", "id": "x"})
        self.ask("listLinkTypes", space)
        self.ask("listLinkRelations", space)
        self.ask("listLinkNamespaces", mine=True)
        ends = {"fromType": "order", "fromId": "x", "toType": "person", "toId": "1"}
        self.ask("deleteLinks", space, query=ends, once=f"{self.tag}-unlink")
        self.ask("deleteLinks", space, query=ends, once=f"{self.tag}-unlink")
        self.ask("listLinks", space)

    # Events, webhooks and schedules.

    def emit(self, name, id, data, **more):
        event = {"specversion": "1.0", "id": id, "source": f"urn:{self.tag}", "type": f"{self.tag}.{name}", "data": data}
        return self.ask("emitEvents", body=event, kind=CLOUD_EVENT, **more)["event"]

    def delivered(self, event):
        self.until("an event is delivered", lambda: self.ask.quietly("showEvent", {"event": event})["delivered"])
        return self.ask("showEvent", {"event": event})

    def events(self):
        event = self.emit("paid", "1", {"order": "o-1", "whose": self.mark})
        started = self.delivered(event)["triggers"][0]["run"]
        self.ended(started)
        self.emit("paid", "1", {"order": "o-1", "whose": self.mark})
        # The number of duplicates is written after the answer.
        self.until("a duplicate is counted", lambda: self.ask.quietly("showEvent", {"event": event})["duplicates"] == 1)
        # An event with the same correlation starts no second run.
        self.delivered(self.emit("paid", "2", {"order": "o-1", "whose": self.mark}))
        self.ask("listRuns", query={"workflow": self.flow("order")})
        self.ask("listTriggers", mine=True)
        paid = {"workflow": self.flow("order"), "trigger": "paid"}
        self.ask("listTriggerLog", paid)
        self.ask("pauseTrigger", paid, body={"reason": self.mark}, keep=lambda paused: paused["reason"])
        self.ask("resumeTrigger", paid)
        self.ended(self.ask("runTrigger", paid, body={"input": self.input("hand")}, keep=lambda started: started["created"])["id"])
        batch = [{"specversion": "1.0", "id": f"b{number}", "source": f"urn:{self.tag}", "type": f"{self.tag}.paid", "data": {"order": f"b{number}", "whose": self.mark}} for number in range(2)]
        for item in self.ask("emitEvents", body=batch, kind="application/cloudevents-batch+json")["items"]:
            self.delivered(item["event"])

    def waits_for_events(self):
        run = self.ask("startRun", body={"workflow": self.flow("parcel"), "id": self.id("parcel"), "input": {"parcel": "p-1"}})["id"]
        self.settled(run, "waiting")
        self.ask.quietly("listWaits", query={"run": run})
        self.delivered(self.emit("seen", "p-1", {"parcel": "p-1", "whose": self.mark}))
        self.ended(run)
        # An event that is accepted before its wait opens.
        self.delivered(self.emit("seen", "p-2", {"parcel": "p-2", "whose": self.mark}))
        self.ended(self.ask("startRun", body={"workflow": self.flow("parcel"), "id": self.id("early"), "input": {"parcel": "p-2"}})["id"])

    def hooks(self):
        path = {"tenant": self.tenant, "path": f"{self.tag}/in"}
        body, moment = json.dumps({"whose": self.mark}), str(int(time.time()))
        signed = base64.b64encode(hmac.new(self.secret, b".".join([b"call-1", moment.encode(), body.encode()]), hashlib.sha256).digest()).decode()
        headers = {"webhook-id": "call-1", "webhook-timestamp": moment, "webhook-signature": "v1," + signed}
        event = self.ask("callHook", path, body=body, kind="application/json", headers=headers)["items"][0]["event"]
        started = self.delivered(event)["triggers"][0]["run"]
        self.ended(started)
        self.ask("callHook", path, body=body, kind="application/json", headers=headers)
        forged = {**headers, "webhook-id": "call-2"}
        self.ask("callHook", path, body=body, kind="application/json", headers=forged, want=(401,))

    def schedules(self):
        name = {"name": self.flow("nightly")}
        self.ask("putSchedule", name, body={"cron": "0 3 * * *", "workflow": self.flow("plain"), "input": self.input("nightly")})
        self.ask("showSchedule", name)
        self.ask("listSchedules", mine=True)
        self.ask("pauseSchedule", name, body={"reason": self.mark}, keep=lambda paused: paused["reason"])
        self.ask("resumeSchedule", name)
        self.ended(self.ask("runSchedule", name, body={"input": self.input("hand")}, keep=lambda started: started["created"])["id"])
        self.ask("deleteSchedule", name)
        self.until("a schedule is off", lambda: self.ask.quietly("showSchedule", name)["off"])
        self.ask("showSchedule", name)
    # Remote workers and flows.

    def poll(self):
        body = {"actions": [f"{self.tag}.shout"], "worker": self.mark}
        [task] = self.ask("pollTasks", query={"wait": "20s"}, body=body)["tasks"]
        return {"task": task["id"]}, {"fence": task["fence"]}

    def work(self):
        run = self.start("loud", "loud")
        self.settled(run, "waiting", "running", place="shout")
        self.until("a task is queued", lambda: self.ask.quietly("listTasks", query={"action": f"{self.tag}.shout"})["items"])
        task, fence = self.poll()
        self.ask("heartbeatTask", task, body={**fence, "note": self.mark})
        self.ask("listTasks", query={"action": f"{self.tag}.shout"})
        self.ask("releaseTask", task, body=fence)
        task, fence = self.poll()
        self.ask("completeTask", task, body={**fence, "output": {"whose": self.mark}})
        self.ended(run)
        run = self.start("loud", "hoarse")
        task, fence = self.poll()
        self.ask("failTask", task, body={**fence, "error": {"code": "hoarse", "message": self.mark}, "final": True})
        self.ended(run, "failed")
        self.ask("completeTask", task, body={**fence, "output": 1}, want=(422,))

    def flows(self):
        for strategy in ("durable", "handle", "sealed"):
            form = self.flow(f"form-{strategy}")
            body = {"input": self.input(strategy)}
            asked = self.ask("startFlow", {"workflow": form}, body=body, once=f"{self.tag}-flow-{strategy}")
            token, answer = asked["token"], {"input": {"n": self.base}}
            self.ask("showFlow", headers={"X-Flow-Token": token})
            if strategy == "handle":
                self.ask("listHandles", query={"workflow": form})
                self.ask("listHandles", query={"workflow": form, "where": f"whose={self.mark}"})
                self.ask("showLink", {"token": token}, headers={"Accept": "application/json"})
                self.ask("showLink", {"token": token}, headers={"Accept": "text/html"})
                self.ask("answerLink", {"token": token}, body=answer, headers={"Accept": "application/json"}, once=f"{self.tag}-link")
                self.ask("answerLink", {"token": token}, body=answer, headers={"Accept": "application/json"}, once=f"{self.tag}-link")
                continue
            for _ in range(2):
                self.ask("resumeFlow", body={"token": token, **answer}, once=f"{self.tag}-answer-{strategy}")
        asked = self.ask("startFlow", {"workflow": self.flow("form-handle")}, body={"input": self.input("revoked")}, once=f"{self.tag}-flow-revoked")
        self.ask("revokeHandles", body={"flow": asked["flow"]})
        self.ask("showFlow", query={"token": asked["token"]}, want=(410,))
        self.ask("listHandles", query={"workflow": self.flow("form-handle")})

    def tasks_of_people(self):
        run = self.start("form-durable", "task")
        self.settled(run, "waiting")
        self.ask("listWaits", query={"workflow": self.flow("form-durable")})
        wait = self.ask("listWaits", query={"run": run})["items"][0]
        wait = {"wait": f"{run}.{wait['activation']}"}
        self.ask("showWait", wait)
        self.ask("claimWait", wait, body={"lease": "PT1H"})
        self.ask("releaseWait", wait)
        link = self.ask("createAnswerLink", {"run": run}, body={"ttl": "PT1H"}, once=f"{self.tag}-link-task")
        self.ask("heartbeatWait", wait)
        self.ask("heartbeatLink", {"token": link["token"]})
        self.ask("answerWait", wait, body={"input": {"n": self.base}}, once=f"{self.tag}-task")
        self.ask("answerWait", wait, body={"input": {"n": 7}}, once=f"{self.tag}-second", want=(409,))
        self.ended(run)
        self.ask("listTimeline", {"run": run})
        run = self.start("form-durable", "failed-task")
        self.settled(run, "waiting")
        wait = self.ask("listWaits", query={"run": run})["items"][0]
        self.ask("failWait", {"wait": f"{run}.{wait['activation']}"}, body={"code": "hoarse", "message": self.mark}, once=f"{self.tag}-fail")
        self.ended(run, "failed")
        run = self.start("form-durable", "failed-link")
        self.settled(run, "waiting")
        link = self.ask("createAnswerLink", {"run": run}, body={"ttl": "PT1H"}, once=f"{self.tag}-link-failed")
        self.ask("failLink", {"token": link["token"]}, body={"code": "hoarse", "message": self.mark})
        self.ended(run, "failed")

    def columns(self):
        workflow = self.flow("bell")
        run = self.start("bell", "column")
        self.settled(run, "waiting")
        self.ask("listRuns", query={"workflow": workflow, "where": f"whose={self.mark}"})
        self.ask("healColumns", body={"workflow": workflow, "batch": 100})
        self.ask("listRuns", query={"workflow": workflow, "where": f"whose={self.mark}"})
        self.go(run)
        self.ended(run)

    # Administration.

    def credentials(self):
        made = self.ask("createApiKey", body={"name": f"{self.tag}-{self.mark}", "permissions": ["workflow:view"]})
        self.ask("whoami", headers={"Authorization": "Bearer " + made["secret"]})
        rotated = self.ask("rotateApiKey", {"id": made["id"]}, body={"overlap": "0s"})
        self.ask("whoami", headers={"Authorization": "Bearer " + rotated["secret"]})
        self.ask("listApiKeys", mine=True)
        self.ask("revokeApiKey", {"id": made["id"]})
        self.ask("listApiKeys", mine=True)

    def tenants(self):
        """The routes of tenants belong to the server's own tenant."""
        other = {"tenant": self.id("tenant")}
        self.ask("listTenants", want=(403,))
        self.ask("createTenant", body={"name": self.tag, "id": other["tenant"]}, want=(403,))
        for path in ({"tenant": self.tenant}, other):
            self.ask("showTenant", path, want=(403,))
            self.ask("updateTenant", path, body={"name": self.mark}, match=1, want=(403,))
            self.ask("createTenantApiKey", path, body={"name": self.mark, "permissions": ["workflow:view"]}, want=(403,))
            self.ask("deleteTenant", path, match=1, want=(403,))

    def trail(self):
        self.ask("listAudit", mine=True)

    # After all lanes: a schedule that fires, and lists of the whole tenant.

    def tick(self):
        name = {"name": self.flow("tick")}
        self.ask("putSchedule", name, body={"cron": "* * * * * *", "workflow": self.flow("plain"), "input": self.input("tick")}, keep=lambda put: put["name"])
        self.until("a schedule fires", lambda: self.ask.quietly("showSchedule", name)["fired"])
        self.ask("deleteSchedule", name)
        self.until("a schedule is off", lambda: self.ask.quietly("showSchedule", name)["off"])
        shown = self.ask("showSchedule", name, keep=lambda shown: {field: shown[field] for field in ("input", "workflow", "off")})
        self.settled(shown["lastRun"], "completed")
        self.ask("showRun", {"run": shown["lastRun"]}, keep=lambda run: run["result"]["got"])

    def close(self):
        plain = documents(self.tag, self.mark, self.base)["plain"]
        self.ask("publishVersion", {"name": self.flow("plain")}, query={"activate": "true"}, body=plain, kind=YAML)
        self.tick()
        self.ask("cleanUpHandles", body={"retention": "0s"}, keep=lambda _: None)
        self.until("everything is sealed", lambda: not self.ask.quietly("cleanUp")["more"])
        self.ask("cleanUp", keep=lambda _: None)
        self.until("the audit trail is sealed", lambda: self.ask.quietly("verifyAudit")["unsealed"] == 0)
        self.ask("verifyAudit", keep=lambda found: (found["sound"], found["faults"]))
        self.ask("listAuditSeals", keep=lambda page: bool(page["items"]))
        self.ask("diagnose", query={"deep": "true"}, keep=lambda found: [finding for finding in found["findings"] if finding["kind"] not in ("runsFailed",)])
        for operation in ("listRuns", "listWaits", "listTasks", "listWorkflows", "listKeyNamespaces", "listLinkNamespaces", "listEventTypes", "listActions",
                          "listSchedules", "listTriggers", "listHandles", "listApiKeys"):
            self.ask.all(operation)
        # All lanes count their changes in one cell, in any order.
        self.ask.all("listAudit", without="stepwell.catalogue:changes")


def quoted(text):
    return urllib.parse.quote(str(text), safe="")
