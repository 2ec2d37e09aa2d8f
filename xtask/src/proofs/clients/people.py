"""Answers waits at random, as permitted and other people, twice and late, and checks that exactly the permitted first answers count.

Every run asks two questions with the same signal, one after the other. For each question, several people answer at the same time
through different doors: the answer route, signals with and without the wait, and the command line. Some requests are sent twice, and some name a question that already has its answer.

The client knows who may answer. From the responses it computes what must have happened, and compares that with the history, the
timeline and the audit trail of every run.

With `--plant`, the collected facts are changed in several ways before the comparison. Every such lie must be found.

Uses the Python standard library only.
"""

import argparse
import collections
import concurrent.futures
import copy
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from served import Server, environment, made_key

DOCUMENT = """name: ask
steps:
  - { id: one, type: human.task, signal: say, title: One, answerers: [role:lead, user:ann], form: &form { type: object, properties: { by: { type: string } }, required: [by] } }
  - { id: two, type: human.task, signal: say, title: Two, answerers: [role:lead, user:ann], form: *form }
"""
# Name, permissions, role and user of each person, and whether a question names the person.
PEOPLE = [
    ("ann", ("answer",), None, "ann", True),
    ("max", ("answer",), "lead", "max", True),
    ("pam", ("view", "manage"), "lead", "pam", True),
    ("joe", ("view", "manage"), "clerk", "joe", False),
    ("eve", ("answer",), "clerk", "eve", False),
    ("tom", ("view",), None, None, False),
]
DOORS = ["answer", "named", "plain", "cli"]
TRIES = 5


class Person:
    def __init__(self, name, key, permissions, is_named):
        self.name, self.key, self.is_named, self.actor = name, key, is_named, f"apikey:{name}"
        self.manages = "manage" in permissions


class Client:
    """One connection per thread."""

    def __init__(self, address):
        self.address, self.local = address, threading.local()

    def ask(self, method, path, key, body=None, headers=None, again=False):
        connection = getattr(self.local, "connection", None)
        if connection is None:
            connection = self.local.connection = http.client.HTTPConnection(self.address, timeout=60)
        sent = {"Authorization": "Bearer " + key, "Content-Type": "application/json", **(headers or {})}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            data = answer.read()
        except (BrokenPipeError, http.client.RemoteDisconnected, ConnectionResetError) as error:
            # The server had closed the idle connection, so it has not read the request.
            connection.close()
            self.local.connection = None
            if again or not isinstance(error, BrokenPipeError):
                raise
            return self.ask(method, path, key, body, headers, again=True)
        except (OSError, http.client.HTTPException):
            connection.close()
            self.local.connection = None
            raise
        return answer.status, json.loads(data) if data else {}, answer.getheader("Idempotency-Replayed") == "true"


class Proof:
    def __init__(self, options):
        self.options, self.dice = options, random.Random(options.seed)
        self.folder = tempfile.mkdtemp(prefix="stepwell-people-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.settings = {"STEPWELL_DATABASE__URL": "sqlite:people.sqlite", "STEPWELL_SERVER__AUTH_FAILURES_PER_MINUTE": "0"}
        self.people = [
            Person(name, made_key(options.stepwell, self.folder, self.settings, permissions, name, role, user), permissions, is_named)
            for name, permissions, role, user, is_named in PEOPLE
        ]
        self.admin = made_key(options.stepwell, self.folder, self.settings, name="root")
        self.server = Server(options.stepwell, self.folder, self.settings, self.log)
        self.server.start()
        self.client = Client(self.server.address)
        self.files = {}
        for person in self.people:
            self.files[person.name] = os.path.join(self.folder, person.name + ".key")
            with open(self.files[person.name], "w") as file:
                file.write(person.key)
        self.sent, self.by_door = [], collections.Counter()

    def must(self, status, method, path, body=None, headers=None):
        got, said, _ = self.client.ask(method, path, self.admin, body, headers)
        if got != status:
            raise SystemExit(f"{method} {path}: {got} {said}")
        return said

    def publish(self):
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        headers = {"Authorization": "Bearer " + self.admin, "Content-Type": "application/yaml"}
        connection.request("POST", "/v1/workflows/ask/versions?activate=true", DOCUMENT, headers)
        answer = connection.getresponse()
        if answer.status != 201:
            raise SystemExit(f"cannot publish: {answer.status} {answer.read()!r}")

    def wait_of(self, run, after=None):
        """Returns the open wait of a run, other than `after`."""
        for _ in range(500):
            items = self.must(200, "GET", f"/v1/waits?run={run}")["items"]
            if items and items[0]["id"] != after:
                return items[0]
            time.sleep(0.01)
        raise SystemExit(f"run {run} has no other wait than {after}")

    def planned(self, wait, late):
        """Draws the answers to one question: by whom, through which door, with which key, and to which wait.

        A plain signal names no wait, so one for the first question could answer the second. Only the second gets them.
        """
        drawn, doors = [], DOORS[:3] if late else DOORS[:2]
        for number in range(TRIES):
            person = self.dice.choice(self.people)
            door = "cli" if self.dice.random() < self.options.cli else self.dice.choice(doors)
            target = late if late and door != "plain" and self.dice.random() < 0.25 else wait
            key = f"{wait['id']}-{number}" if self.dice.random() < 0.5 else None
            try_ = {"run": wait["run"], "wait": target["id"], "activation": target["activation"], "person": person, "door": door, "key": key, "payload": {"by": f"{person.name}-{number}"}, "late": target is late}
            drawn.append(try_)
            if self.dice.random() < 0.3:
                drawn.append({**try_, "double": True})
        # A permitted person must answer, or the run never goes on.
        sure = self.dice.choice([person for person in self.people if person.is_named])
        drawn.append({"run": wait["run"], "wait": wait["id"], "activation": wait["activation"], "person": sure, "door": "answer", "key": None, "payload": {"by": sure.name + "-sure"}, "late": False})
        return drawn

    def send(self, try_):
        person, payload = try_["person"], try_["payload"]
        headers = {"Idempotency-Key": try_["key"]} if try_["key"] else {}
        if try_["door"] == "cli":
            command = [self.options.stepwell, "wait", "answer", try_["wait"], "--input", json.dumps(payload), "--server", f"http://{self.server.address}", "--api-key-file", self.files[person.name]]
            command += ["--idempotency-key", try_["key"]] if try_["key"] else []
            done = subprocess.run(command, cwd=self.folder, env=environment({}), capture_output=True, text=True)
            return {**try_, "status": {0: 200, 3: 404, 4: 409, 5: 403}.get(done.returncode, 500), "said": {"text": done.stderr}, "replayed": None}
        if try_["door"] == "answer":
            path, body = f"/v1/waits/{try_['wait']}/answer", {"input": payload}
        else:
            name = f"?forWait={try_['activation']}" if try_["door"] == "named" else ""
            path, body = f"/v1/runs/{try_['run']}/signals/say{name}", payload
        status, said, replayed = self.client.ask("POST", path, person.key, body, headers)
        return {**try_, "status": 200 if status == 204 else status, "said": said, "replayed": replayed}

    def ask_all(self):
        began = 0
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            while began < self.options.answers:
                runs = [self.must(201, "POST", "/v1/runs", {"workflow": "ask"})["id"] for _ in range(10)]
                waits, late = {run: self.wait_of(run) for run in runs}, {}
                for question in range(2):
                    tries = [try_ for run in runs for try_ in self.planned(waits[run], late.get(run))]
                    self.dice.shuffle(tries)
                    self.sent += pool.map(self.send, tries)
                    began += len(tries)
                    late = waits
                    if question == 0:
                        waits = dict(zip(runs, pool.map(lambda run: self.wait_of(run, late[run]["id"]), runs)))
        for try_ in self.sent:
            self.by_door[try_["door"]] += 1

    def facts(self):
        """Reads history, timeline and audit trail of every run."""
        runs = sorted({try_["run"] for try_ in self.sent})
        facts = {}
        for run in runs:
            facts[run] = {
                "status": self.must(200, "GET", f"/v1/runs/{run}?wait=20s")["status"],
                "history": [row["entry"] for row in self.must(200, "GET", f"/v1/runs/{run}/history?limit=200")["items"]],
                "timeline": self.must(200, "GET", f"/v1/runs/{run}/timeline?limit=200")["items"],
                "audit": [],
            }
        cursor = ""
        while True:
            page = self.must(200, "GET", f"/v1/audit?limit=200{cursor}")
            for row in page["items"]:
                if row.get("run") in facts and row["operation"] == "run.answer":
                    facts[row["run"]]["audit"].append(row)
            if "nextCursor" not in page:
                return facts
            cursor = "&cursor=" + page["nextCursor"]

    def end(self):
        self.server.end()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def judge(sent, facts):
    """Returns everything that contradicts the promise."""
    findings = []
    by_wait = collections.defaultdict(list)
    for try_ in sent:
        by_wait[(try_["run"], try_["wait"])].append(try_)
        person, status, code = try_["person"], try_["status"], try_["said"].get("code")
        what = f"{person.name} by {try_['door']} on {try_['wait']}: {status} {code}"
        if status == 200 and not person.is_named:
            findings.append(f"accepted without being named: {what}")
        if status == 200 and try_["door"] in ("named", "plain") and not person.manages:
            findings.append(f"a signal without `workflow:manage`: {what}")
        if status not in (200, 403, 404, 409):
            findings.append(f"unexpected: {what} {try_['said']}")
        if status == 404 or (status == 403 and person.is_named and try_["door"] in ("answer", "cli")):
            findings.append(f"refused although named: {what}")
        if status == 409 and code == "answered" and not try_["said"].get("params", {}).get("by"):
            findings.append(f"the first answer is not named: {what}")
    for run, fact in facts.items():
        if fact["status"] != "completed":
            findings.append(f"run {run} is {fact['status']}")
        counted = [entry for entry in fact["history"] if entry["action"].startswith("__resolve_wait")]
        if len(counted) != 2:
            findings.append(f"run {run} has {len(counted)} answers")
        waits = list(dict.fromkeys(try_["wait"] for try_ in sent if try_["run"] == run and not try_["late"]))
        shown = [(item.get("actor"), item["version"]) for item in fact["timeline"] if item["type"] == "entry" and item["action"].startswith("__resolve_wait")]
        if shown != [(entry.get("actor"), entry["version"]) for entry in counted]:
            findings.append(f"run {run}: the timeline differs from the history: {shown}")
        trail = [(row.get("actor"), row["detail"].get("wait")) for row in fact["audit"]]
        if trail != [(entry.get("actor"), wait) for entry, wait in zip(counted, waits)]:
            findings.append(f"run {run}: the audit trail has {trail}")
        for entry, wait in zip(counted, waits):
            tries = by_wait[(run, wait)]
            named = {try_["person"].actor for try_ in tries if try_["person"].is_named}
            if entry.get("actor") not in named:
                findings.append(f"wait {wait} was answered by {entry.get('actor')}")
                continue
            same = [try_ for try_ in tries if try_["person"].actor == entry["actor"] and try_["payload"] == entry.get("payload")]
            plain = [try_ for try_ in sent if try_["run"] == run and try_["door"] == "plain" and try_["person"].actor == entry["actor"] and try_["payload"] == entry.get("payload")]
            if not any(try_["status"] == 200 for try_ in same + plain):
                findings.append(f"wait {wait}: the answer that counts was not accepted: {entry}")
            for try_ in tries:
                is_winner = try_["person"].actor == entry["actor"] and try_["payload"] == entry.get("payload")
                is_second = try_["status"] == 200 and not is_winner
                # A plain signal names no wait, so it may have answered the other question.
                if is_second and try_["door"] != "plain":
                    findings.append(f"wait {wait} has a second answer: {try_['person'].name} by {try_['door']} {try_['payload']}")
                first = try_["said"].get("params", {}).get("by")
                if try_["said"].get("code") == "answered" and first != entry["actor"]:
                    findings.append(f"wait {wait}: the refusal names {first}, the first was {entry['actor']}")
    return findings


def lies(sent, facts):
    """Returns changed copies of the facts, by the name of the lie."""
    found = {}

    def tell(name, change):
        others, told = [dict(try_) for try_ in sent], copy.deepcopy(facts)
        change(others, told)
        found[name] = (others, told)

    run = next(iter(facts))
    answers = lambda told: [entry for entry in told[run]["history"] if entry["action"].startswith("__resolve_wait")]
    index = lambda rule: next(number for number, try_ in enumerate(sent) if rule(try_))
    refused = index(lambda try_: try_["status"] == 403 and not try_["person"].is_named)
    late = index(lambda try_: try_["status"] == 409 and try_["person"].is_named and try_["door"] == "answer")
    won = [index(lambda try_: try_["run"] == run and try_["status"] == 200 and try_["payload"] == entry["payload"]) for entry in answers(facts)]
    tell("an answer by another person was accepted", lambda others, _: others[refused].update(status=200))
    tell("a second answer was accepted", lambda others, _: others[late].update(status=200, said={}, payload={"by": "another"}))
    tell("a permitted answer was refused", lambda others, _: others[late].update(status=403))
    tell("a permitted answer was lost", lambda others, _: [try_.update(status=409) for try_ in others if try_["run"] == run and try_["payload"] == sent[won[0]]["payload"]])
    tell("the history names another person", lambda _, told: answers(told)[0].update(actor="apikey:joe"))
    tell("the history names no person", lambda _, told: answers(told)[1].pop("actor"))
    tell("the history has another payload", lambda _, told: answers(told)[0].update(payload={"by": "another"}))
    tell("the history has a third answer", lambda _, told: told[run]["history"].append(answers(told)[0]))
    tell("the audit trail misses an answer", lambda _, told: told[run]["audit"].pop())
    tell("the audit trail names another wait", lambda _, told: told[run]["audit"][0]["detail"].update(wait="another"))
    tell("the timeline names another person", lambda _, told: next(item for item in told[run]["timeline"] if item["action"].startswith("__resolve_wait")).update(actor="apikey:joe"))
    tell("a run did not end", lambda _, told: told[run].update(status="waiting"))
    return found


def main():
    parser = argparse.ArgumentParser(description="Answers waits at random and checks that exactly the permitted first answers count.")
    parser.add_argument("--stepwell", required=True, help="path of the program `stepwell`")
    parser.add_argument("--answers", type=int, default=1000, help="number of answers")
    parser.add_argument("--cli", type=float, default=0.1, help="share of the answers that the command line sends")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="seed of the random choices")
    parser.add_argument("--plant", action="store_true", help="also change the facts; every lie must be found")
    parser.add_argument("--json", action="store_true", help="print the JSON result only")
    given = parser.parse_args()
    given.stepwell = os.path.abspath(given.stepwell)
    began = time.monotonic()
    proof = Proof(given)
    try:
        proof.publish()
        proof.ask_all()
        facts = proof.facts()
    finally:
        proof.end()
    findings = judge(proof.sent, facts)
    planted = lies(proof.sent, facts) if given.plant else {}
    missed = [name for name, (sent, told) in planted.items() if not judge(sent, told)]
    named = sum(try_["person"].is_named for try_ in proof.sent)
    print(json.dumps({
        "workload": "people", "seed": given.seed, "answers": len(proof.sent), "permitted": named, "others": len(proof.sent) - named,
        "late": sum(try_["late"] for try_ in proof.sent), "doubled": sum("double" in try_ for try_ in proof.sent), "waits": 2 * len(facts), "doors": dict(proof.by_door),
        "findings": len(findings), "lies": len(planted), "missed": missed, "seconds": round(time.monotonic() - began, 1),
    }))
    for finding in findings[:40]:
        print(finding, file=sys.stderr)
    return 1 if findings or missed else 0


if __name__ == "__main__":
    sys.exit(main())
