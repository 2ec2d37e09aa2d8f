"""A server of one's own: a child of this process, with settings of its own."""

import json
import os
import signal
import subprocess


def environment(settings):
    """That of this process with these settings, and no others of Stepwell's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_") and name != "DATABASE_URL"}
    return {**own, **settings}


class Server:
    """One process of the server: always a child of this one."""

    def __init__(self, program, folder, settings, log):
        self.program, self.folder, self.settings, self.log = program, folder, settings, log
        self.address, self.child = None, None

    def start(self):
        self.child = subprocess.Popen(
            [self.program, "server", "start", "--listen", "127.0.0.1:0"],
            cwd=self.folder, env=environment(self.settings), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )
        line = self.child.stdout.readline().strip()
        if not line.startswith("http://"):
            raise SystemExit(f"the server did not say where it listens, but `{line}`: see {self.log.name}")
        self.address = line.removeprefix("http://")

    def send(self, number):
        if self.child.poll() is not None:
            raise SystemExit(f"the server ended by itself with {self.child.returncode}: see {self.log.name}")
        self.child.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        self.child.wait()

    def end(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def made_key(program, folder, settings, permissions=("view", "read", "manage", "publish", "admin"), name="client"):
    """The secret of a key, made on the store itself."""
    words = [word for permission in permissions for word in ("--permission", permission if ":" in permission else f"workflow:{permission}")]
    command = [program, "apikey", "create", name, "--json", "--database-url", settings["STEPWELL_DATABASE__URL"], *words]
    made = subprocess.run(command, cwd=folder, env=environment(settings), capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"no API key was made: {made.stderr}")
    return json.loads(made.stdout)["secret"]
