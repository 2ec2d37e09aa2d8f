"""Shows every promise through every door: HTTP requests, commands of the program, and workflow documents in YAML.

A check of a promise is written once and runs through each door against the built server. The result is one line of JSON with the
doors through which each promise was shown, the reasons for the others, and the checks that failed.

Uses the Python standard library only.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
import time
import traceback

import doorkit
from doorkit import CHECKS, EMPTY, Cli, Failed, Http, World
from served import Database, Server, made_key

import doors_data, doors_documents, doors_durable, doors_flows, doors_runs  # noqa: E401,F401  they register their checks

DOORS = {"http": Http, "cli": Cli}
PROMISES = [f"{section}{number}" for section, count in {"A": 11, "B": 23, "C": 9, "D": 17, "E": 13, "F": 10, "G": 11}.items() for number in range(1, count + 1)]
THREADS = 8


class Site:
    """A server with its folder, and what its checks share."""

    def __init__(self, options, store):
        self.program, self.store = options.stepwell, store
        self.folder = tempfile.mkdtemp(prefix="stepwell-doors-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.settings = {"STEPWELL_LOG__FILTER": "warn", "STEPWELL_SERVER__REQUESTS_PER_SECOND": "0", "STEPWELL_DATABASE__URL": "sqlite:doors.sqlite"}
        self.settings.update(doors_flows.settings(self.folder))
        self.settings["STEPWELL_SECRETS__FOLDER"] = os.path.join(self.folder, "secrets")
        self.database = Database(options.bench, self.log) if store == "postgres" else None
        if self.database:
            self.settings.update(self.database.settings())
        with open(options.contract) as contract:
            self.operations = doorkit.operations(json.load(contract))
        with open(options.reference) as reference:
            self.commands = doorkit.commands(reference.read())
        self.server = Server(self.program, self.folder, self.settings, self.log)

    def begin(self):
        doors_flows.prepare(self)
        self.key = made_key(self.program, self.folder, self.settings)
        self.server.start()

    def restart(self):
        """Kills the server and starts it again."""
        self.server.kill()
        self.server.start()

    def other_key(self, *permissions, **more):
        return made_key_over_http(self, permissions, more)

    def end(self, keep):
        self.server.end()
        if self.database:
            self.database.end()
        self.log.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def made_key_over_http(site, permissions, more):
    """Creates an API key with these permissions, and returns its secret."""
    world = World(site, Http)
    words = [permission if ":" in permission else f"workflow:{permission}" for permission in permissions]
    return world.ok("createApiKey", name=world.fresh("key"), permissions=words, **more)["secret"]


def shown(site, check, name):
    """Runs a check through a door. Returns the number of documents that it published, and what failed."""
    world = World(site, DOORS[name])
    try:
        check.function(world)
        return world.published, None
    except Failed as failed:
        lines = [frame.lineno for frame in traceback.extract_tb(failed.__traceback__) if frame.name == check.function.__name__]
        return world.published, f"line {lines[0] if lines else '?'}: {failed}"
    except Exception:
        return world.published, traceback.format_exc()


def run(options, store):
    site, results, began = Site(options, store), {}, time.monotonic()
    chosen = [check for check in CHECKS if not options.only or set(check.promises) & set(options.only.split(","))]
    try:
        site.begin()
        jobs = [(check, name) for check in chosen for name in check.doors]
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            together = [(check, name, pool.submit(shown, site, check, name)) for check, name in jobs if not check.alone]
            done = [(check, name, job.result()) for check, name, job in together]
        done += [(check, name, shown(site, check, name)) for check, name in jobs if check.alone]
        for check, name, (published, failure) in done:
            for promise in check.promises:
                found = results.setdefault(promise, {"doors": set(), "failures": []})
                if failure:
                    found["failures"].append(f"{promise} through {name} ({check.function.__name__}): {failure}")
                else:
                    found["doors"].update([name] + (["yaml"] if published and check.yaml else []))
    finally:
        site.end(keep=any(found["failures"] for found in results.values()))
    return results, len(done), time.monotonic() - began


def table(results):
    """Returns the doors of each promise, with the reason why one is missing, and the cells without either."""
    cells, missing = {}, []
    for promise in PROMISES:
        cells[promise] = {}
        for door in ["yaml", "http", "cli"]:
            reason = EMPTY.get((promise, door)) or EMPTY.get((promise, "*"))
            if door in results.get(promise, {"doors": ()})["doors"]:
                cells[promise][door] = True
                if reason:
                    missing.append(f"{promise} {door} is shown, but has a reason not to be: {reason}")
            elif reason:
                cells[promise][door] = reason
            else:
                missing.append(f"{promise} {door} has neither a check nor a reason")
        # Tests of the library show this door; the proof knows them.
        reason = EMPTY.get((promise, "rust")) or EMPTY.get((promise, "*"))
        if reason:
            cells[promise]["rust"] = reason
    return cells, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stepwell", required=True)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--contract", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "postgres"])
    parser.add_argument("--only", help="promises to check, separated by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results, checks, seconds = run(options, options.store)
    cells, missing = table(results)
    failures = sorted({failure for found in results.values() for failure in found["failures"]})
    for failure in failures:
        print(failure, file=sys.stderr)
    print(json.dumps({
        "workload": "doors", "store": options.store, "promises": len(PROMISES), "checks": checks, "failed": len(failures),
        "missing": missing, "seconds": round(seconds, 1), "order": PROMISES, "cells": cells,
    }))


if __name__ == "__main__":
    main()
