"""A server and a database as child processes."""

import json
import os
import signal
import subprocess
import urllib.parse


def environment(settings):
    """Returns the environment of this process without other Stepwell settings, plus these settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_") and name != "DATABASE_URL"}
    return {**own, **settings}


class Server:
    """One server process, always a child of this process."""

    def __init__(self, program, folder, settings, log, other=None):
        """`other` is the command of another server to start, for example one with a planted fault."""
        self.program, self.folder, self.settings, self.log = program, folder, settings, log
        self.command = other.split() if other else [program, "server", "start"]
        self.address, self.child = None, None

    def start(self):
        self.child = subprocess.Popen(
            [*self.command, "--listen", "127.0.0.1:0"],
            cwd=self.folder, env=environment(self.settings), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )
        line = self.child.stdout.readline().strip()
        if not line.startswith("http://"):
            raise SystemExit(f"the server printed `{line}` instead of its address: see {self.log.name}")
        self.address = line.removeprefix("http://")

    def send(self, number):
        if self.child.poll() is not None:
            raise SystemExit(f"the server exited by itself with {self.child.returncode}: see {self.log.name}")
        self.child.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        self.child.wait()

    def end(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


class Database:
    """A temporary PostgreSQL server, run by `stepwell-bench`, which kills only a server that it has started itself."""

    def __init__(self, bench, log):
        self.child = subprocess.Popen([bench, "db-control"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.place = json.loads(self.child.stdout.readline() or "{}")
        if not self.place:
            raise SystemExit(f"the database did not start: see {log.name}")

    def url(self, role):
        fields = dict(field.split("=", 1) for field in self.place[role].split())
        fields = {name: value.strip("'") for name, value in fields.items()}
        name = fields.pop("dbname")
        return f"postgresql:///{name}?{urllib.parse.urlencode(fields)}"

    def settings(self):
        """Returns the settings of a server that uses the database with the role of the engine."""
        return {
            "STEPWELL_DATABASE__URL": self.url("engine"), "STEPWELL_DATABASE__MIGRATE_URL": self.url("owner"),
            "STEPWELL_DATABASE__SCHEMA": self.place["schema"],
        }

    def order(self, order):
        self.child.stdin.write(order + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline().strip()
        if not answer:
            raise SystemExit("`stepwell-bench db-control` has ended")
        return answer

    def end(self):
        self.child.stdin.close()
        self.child.wait()


def made_key(program, folder, settings, permissions=("view", "read", "manage", "publish", "admin"), name="client", role=None, user=None):
    """Creates an API key directly in the store and returns its secret."""
    words = [word for permission in permissions for word in ("--permission", permission if ":" in permission else f"workflow:{permission}")]
    words += (["--role", role] if role else []) + (["--user", user] if user else [])
    command = [program, "apikey", "create", name, "--json", "--database-url", settings["STEPWELL_DATABASE__URL"], *words]
    made = subprocess.run(command, cwd=folder, env=environment(settings), capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"cannot create an API key: {made.stderr}")
    return json.loads(made.stdout)["secret"]
