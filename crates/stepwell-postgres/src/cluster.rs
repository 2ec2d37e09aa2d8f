//! Throwaway PostgreSQL clusters from the installed binaries, for tests and measurements.
//!
//! A server is never started directly, but by a supervisor: a small shell script that outlives a killed test and cleans
//! up after it. The server is reached only through a socket in its own directory, never over the network.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// The port in the socket's name.
pub const PORT: u16 = 5432;

/// The superuser of every cluster. It needs no password.
pub const ADMIN: &str = "stepwell_admin";

/// The directory of the server's programs on Debian, with one subdirectory for each version.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";

/// Maximum time for a server to start or to end.
const LIMIT: Duration = Duration::from_secs(30);

/// Maximum time to wait for other processes that start or stop the shared server.
const SHARED_LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

/// The longest socket path that Linux accepts, in bytes.
const LONGEST_SOCKET: usize = 107;

/// Settings for tests, where only speed matters: the data need not survive a crash.
const SHARED_SETTINGS: &[(&str, &str)] = &[
    ("fsync", "off"),
    ("synchronous_commit", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "400"),
    ("shared_buffers", "128MB"),
    ("autovacuum", "on"),
];

/// The common part of both supervisors.
///
/// The supervisor's stdin stays open as descriptor 9 for as long as it or one of its helpers runs, but is not passed to
/// the server. A signal is sent repeatedly, because a process that a shell starts in the background ignores INT and
/// QUIT until it installs handlers. The parent id shows that a process is ours. The command line would not do: it is
/// empty while the process executes another program.
const SUPERVISOR: &str = r#"
folder=$1 owner=$2 as=$3 programs=$4
shift 4
server=$folder/server
data=$server/data
pid= over=
trap 'over=1' HUP INT TERM
exec 9<&0 </dev/null
cd /

ours() {
    [ -n "$pid" ] || return 1
    if [ ! -e /proc/self/stat ]; then kill -0 "$pid" 2>/dev/null; return; fi
    read -r _ _ state parent _ 2>/dev/null <"/proc/$pid/stat" && [ "$parent" = $$ ] && [ "$state" != Z ]
}

prepare() {
    mkdir "$server" || return 1
    [ -z "$owner" ] || chown "$owner" "$server" || return 1
    $as "$programs/initdb" -D "$data" -A trust -U stepwell_admin --no-sync --locale=C -E UTF8 >/dev/null
}

start() {
    $as "$programs/postgres" -D "$data" "$@" </dev/null 9<&- &
    pid=$!
    echo "$pid" >"$folder/started"
}

stop() {
    looks=0
    while ours; do
        if [ "$looks" -lt 200 ]; then kill -QUIT "$pid"; else kill -KILL "$pid"; fi 2>/dev/null
        looks=$((looks + 1))
        sleep 0.05
    done
    [ -z "$pid" ] || wait "$pid"
    # Only a killed server leaves this file, and its shared memory with it.
    [ ! -e "$data/postmaster.pid" ] || ipcrm -m "$(sed -n '7s/.* //p' "$data/postmaster.pid")" 2>/dev/null
}
"#;

/// The supervisor for one process, which sends orders through a pipe. When the pipe closes, the process has ended.
const OWN_SUPERVISOR: &str = r#"
prepare || { rm -rf "$folder"; exit 1; }
while [ -z "$over" ] && read -r order <&9; do
    if [ "$order" = start ] && ! ours; then
        # A postmaster that is dead but not waited for still counts as running to the next one.
        [ -z "$pid" ] || wait "$pid"
        start "$@"
    fi
done
stop
rm -rf "$folder"
"#;

/// The supervisor for all processes that hold a shared lock on `users.lock`. It ends some seconds after the last of
/// them.
///
/// The final check happens under `start.lock`, under which new processes take their shared lock. A check that fails for
/// any other reason than a held lock counts as unused: a missing server is better than one that never ends.
const SHARED_SUPERVISOR: &str = r#"
command -v flock >/dev/null || { echo "the program flock is missing: install util-linux" >&2; exit 1; }

unused() {
    flock -n -x "$folder/users.lock" true
    [ "$?" -ne 1 ]
}

prepare || { rm -rf "$server"; exit 1; }
start "$@"
idle=0
while [ -z "$over" ]; do
    sleep 1
    ours || break
    if unused; then idle=$((idle + 1)); else idle=0; fi
    [ "$idle" -ge 4 ] || continue
    exec 8>>"$folder/start.lock"
    if flock -n -x 8 && unused; then break; fi
    exec 8>&-
done
stop
rm -rf "$server"
"#;

/// A running PostgreSQL server that is thrown away after use.
#[derive(Debug)]
pub struct Cluster {
    socket_dir: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The server stays while any process holds this lock.
    Shared {
        _users: File,
    },
    Own {
        supervisor: Supervisor,
        orders: Option<ChildStdin>,
    },
}

impl Cluster {
    /// Returns the cluster that all processes of this user and checkout share, and starts it if needed. It is not
    /// durable.
    pub fn shared() -> Result<Cluster, String> {
        let programs = find_programs()?;
        let uid = own_uid()?;
        let folder = shared_folder(&programs, uid)?;
        let socket_dir = server_folder(&folder)?;
        let deadline = Instant::now() + SHARED_LIMIT;
        loop {
            let start = open_lock(&folder.join("start.lock"))?;
            wait_for_lock(|| start.try_lock(), "start.lock", &folder, deadline)?;
            let users = open_lock(&folder.join("users.lock"))?;
            wait_for_lock(|| users.try_lock_shared(), "users.lock", &folder, deadline)?;
            let alone = open_lock(&folder.join("supervisor.lock"))?;
            match alone.try_lock() {
                // There is no supervisor, so any existing files were left behind.
                Ok(()) => {
                    start_shared(&folder, &programs, &Account::of(uid)?, alone)?;
                    return Ok(Cluster { socket_dir, kind: Kind::Shared { _users: users } });
                }
                Err(TryLockError::WouldBlock) if ask(&socket_dir) == Answer::Welcome => {
                    return Ok(Cluster { socket_dir, kind: Kind::Shared { _users: users } });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(format!("cannot lock supervisor.lock in {}: {error}", folder.display()));
                }
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "the shared PostgreSQL in {} neither answers nor ends: read its log there, and kill its \
                     supervisor (the `sh` with that directory among its arguments) to get a new one",
                    folder.display()
                ));
            }
            drop((start, users));
            thread::sleep(PAUSE);
        }
    }

    /// Starts a cluster for this value alone. It is durable unless `settings` change that. It ends when the value is
    /// dropped, or when the process ends in any way.
    pub fn own(settings: &[(&str, &str)]) -> Result<Cluster, String> {
        let programs = find_programs()?;
        let account = Account::of(own_uid()?)?;
        let folder = tempfile::Builder::new().prefix("stepwell-pg-").tempdir().map_err(|error| {
            format!("cannot create a directory in {}: {error}", env::temp_dir().display())
        })?;
        let socket_dir = server_folder(folder.path())?;
        account.open_folder(folder.path())?;
        let script = [SUPERVISOR, OWN_SUPERVISOR].concat();
        let mut supervisor =
            Supervisor::start(&script, folder.path(), &programs, &account, settings, Stdio::piped())?;
        // From here on the supervisor removes the directory.
        let _ = folder.keep();
        let orders = supervisor.child.stdin.take();
        let mut cluster = Cluster { socket_dir, kind: Kind::Own { supervisor, orders } };
        cluster.restart()?;
        Ok(cluster)
    }

    /// Kills the server and all its processes without warning, and waits until they are gone. Fails for a shared
    /// cluster.
    pub fn kill(&mut self) -> Result<(), String> {
        match self.kind {
            Kind::Own { .. } => kill_server(&self.socket_dir.join("data")),
            Kind::Shared { .. } => Err(only_own("killed")),
        }
    }

    /// Starts the server again on the same data and waits until it has recovered. Fails for a shared cluster.
    pub fn restart(&mut self) -> Result<(), String> {
        let Kind::Own { supervisor, orders } = &mut self.kind else { return Err(only_own("restarted")) };
        let _ = fs::remove_file(supervisor.folder.join("started"));
        if let Some(orders) = orders {
            // If the supervisor has ended, the order cannot be written. `wait_until_up` then reports the reason.
            let _ = orders.write_all(b"start\n");
        }
        supervisor.wait_until_up(&self.socket_dir)
    }

    /// Accepts encrypted connections on `address`, one of the cluster's `listen_addresses`, with this certificate and
    /// key in PEM format. With `clients`, clients need a certificate of that authority. Unencrypted connections are
    /// accepted on the socket only. Fails for a shared cluster.
    pub fn serve_tls(
        &self,
        address: &str,
        certificate: &str,
        key: &str,
        clients: Option<&str>,
    ) -> Result<(), String> {
        if !self.is_own() {
            return Err(only_own("changed"));
        }
        let data = self.socket_dir.join("data");
        let wrong = |error: io::Error| format!("cannot configure TLS in {}: {error}", data.display());
        let owner = fs::metadata(&data).map_err(wrong)?;
        let checked = if clients.is_some() { " clientcert=verify-ca" } else { "" };
        let hosts = format!("local all all trust\nhostssl all all 127.0.0.0/8 trust{checked}\n");
        let authority = clients.unwrap_or(certificate);
        for (name, text) in [
            ("server.crt", certificate),
            ("server.key", key),
            ("clients.crt", authority),
            ("pg_hba.conf", hosts.as_str()),
        ] {
            let path = data.join(name);
            fs::write(&path, text).map_err(wrong)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(wrong)?;
            chown(&path, Some(owner.uid()), Some(owner.gid())).map_err(wrong)?;
        }
        let mut settings =
            OpenOptions::new().append(true).open(data.join("postgresql.conf")).map_err(wrong)?;
        settings.write_all(b"ssl = on\nssl_ca_file = 'clients.crt'\n").map_err(wrong)?;
        signal("HUP", &[postmaster(&data)?.0])?;
        let deadline = Instant::now() + LIMIT;
        while !has_tls(address) {
            if Instant::now() > deadline {
                return Err(format!("the server offers no TLS at {address} after {} s", LIMIT.as_secs()));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns the directory of the server's socket.
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// Returns a libpq connection string for `database` as the superuser.
    pub fn admin_config_string(&self, database: &str) -> String {
        self.config_string(ADMIN, database)
    }

    /// Returns a libpq connection string for `database` as `user`.
    pub fn config_string(&self, user: &str, database: &str) -> String {
        let host = quoted(&self.socket_dir.display().to_string());
        format!("host={host} port={PORT} user={} dbname={}", quoted(user), quoted(database))
    }

    /// Returns true if no other process uses this server.
    pub fn is_own(&self) -> bool {
        matches!(self.kind, Kind::Own { .. })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Kind::Own { supervisor, orders } = &mut self.kind {
            drop(orders.take());
            let _ = supervisor.child.wait();
            // In case the supervisor was killed.
            let _ = fs::remove_dir_all(&supervisor.folder);
        }
    }
}

fn only_own(what: &str) -> String {
    format!("the shared PostgreSQL cannot be {what}, because other processes use it: use `Cluster::own`")
}

/// The running script that supervises a server, and its log.
#[derive(Debug)]
struct Supervisor {
    child: Child,
    folder: PathBuf,
    /// Kept open, so that it can be read after the directory is removed.
    log: File,
}

impl Supervisor {
    fn start(
        script: &str,
        folder: &Path,
        programs: &Path,
        account: &Account,
        settings: &[(&str, &str)],
        input: Stdio,
    ) -> Result<Supervisor, String> {
        let wrong = |error: io::Error| {
            format!("cannot start the PostgreSQL supervisor for {}: {error}", folder.display())
        };
        let log_path = folder.join("log");
        let log = OpenOptions::new().read(true).append(true).create(true).open(log_path).map_err(wrong)?;
        log.set_len(0).map_err(wrong)?;
        let child = Command::new("sh")
            .args(["-c", script, "stepwell-postgres"])
            .arg(folder)
            .args([account.owner(), account.prefix()])
            .arg(programs)
            .args(arguments(&folder.join("server"), settings))
            .stdin(input)
            .stdout(log.try_clone().map_err(wrong)?)
            .stderr(log.try_clone().map_err(wrong)?)
            // Its own process group, because test runners and terminals kill whole groups.
            .process_group(0)
            .spawn()
            .map_err(wrong)?;
        Ok(Supervisor { child, folder: folder.to_path_buf(), log })
    }

    fn wait_until_up(&mut self, socket_dir: &Path) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if ask(socket_dir) == Answer::Welcome {
                return Ok(());
            }
            let problem = if matches!(self.child.try_wait(), Ok(Some(_))) || self.server_has_ended() {
                "did not start".to_owned()
            } else if Instant::now() > deadline {
                format!("does not accept connections after {} s", LIMIT.as_secs())
            } else {
                thread::sleep(PAUSE);
                continue;
            };
            let folder = self.folder.display();
            return Err(format!(
                "PostgreSQL in {folder} {problem}; the end of its log:\n{}",
                self.log_tail()
            ));
        }
    }

    /// Returns true if the server was started and has ended; false if that is unknown.
    fn server_has_ended(&self) -> bool {
        let Ok(started) = fs::read_to_string(self.folder.join("started")) else { return false };
        let Some(pid) = started.strip_suffix('\n').and_then(|pid| pid.parse().ok()) else { return false };
        Path::new("/proc/self/stat").exists() && living_parent(pid) != Some(self.child.id())
    }

    fn log_tail(&self) -> String {
        const LONGEST: u64 = 4000;
        let length = self.log.metadata().map_or(0, |found| found.len());
        let mut tail = vec![0; usize::try_from(length.min(LONGEST)).unwrap_or(0)];
        let read = self.log.read_at(&mut tail, length.saturating_sub(LONGEST)).unwrap_or(0);
        String::from_utf8_lossy(&tail[..read]).trim_end().to_owned()
    }
}

/// Returns the server's arguments. The last of several equal settings wins, so `settings` can override the fixed ones.
fn arguments(socket_dir: &Path, settings: &[(&str, &str)]) -> Vec<OsString> {
    let mut folder = OsString::from("unix_socket_directories=");
    folder.push(socket_dir);
    let fixed =
        ["listen_addresses=".to_owned(), format!("port={PORT}"), "unix_socket_permissions=0700".to_owned()];
    let settings = settings.iter().map(|(name, value)| format!("{name}={value}"));
    let all = fixed.into_iter().chain(settings).map(OsString::from).chain([folder]);
    all.flat_map(|setting| [OsString::from("-c"), setting]).collect()
}

/// Removes files that were left behind and starts the shared server. The caller holds `start.lock`. `alone` is the lock
/// that shows that there is a supervisor; it is passed on to the supervisor.
fn start_shared(folder: &Path, programs: &Path, account: &Account, alone: File) -> Result<(), String> {
    account.open_folder(folder)?;
    let server = folder.join("server");
    if server.exists() {
        if postmaster(&server.join("data")).is_ok() {
            kill_server(&server.join("data"))?;
        }
        fs::remove_dir_all(&server).map_err(|error| {
            format!("cannot remove {}, left by an earlier run: {error}", server.display())
        })?;
    }
    let _ = fs::remove_file(folder.join("started"));
    let script = [SUPERVISOR, SHARED_SUPERVISOR].concat();
    let mut supervisor =
        Supervisor::start(&script, folder, programs, account, SHARED_SETTINGS, Stdio::from(alone))?;
    supervisor.wait_until_up(&server)?;
    // The supervisor may end before this process, which must then wait for it, or it stays a zombie.
    thread::spawn(move || supervisor.child.wait());
    Ok(())
}

/// Returns the directory of the shared server. It is the same for all processes that would start the same server.
fn shared_folder(programs: &Path, uid: u32) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    let installed = fs::metadata(programs.join("postgres")).and_then(|found| found.modified()).ok();
    (env!("CARGO_MANIFEST_DIR"), programs, installed).hash(&mut hasher);
    (SUPERVISOR, SHARED_SUPERVISOR, SHARED_SETTINGS).hash(&mut hasher);
    let short = hasher.finish() & 0xffff_ffff;
    let folder = env::temp_dir().join(format!("stepwell-pg-{uid}-{short:08x}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!("cannot create {}: {error}", folder.display()));
        }
        _ => {}
    }
    // The temporary directory is shared by all users, so another user may have taken the name.
    match fs::symlink_metadata(&folder) {
        Ok(found) if found.is_dir() && found.uid() == uid => {}
        _ => return Err(format!("{} is not a directory of this user: remove it", folder.display())),
    }
    Ok(folder)
}

/// Returns the directory of the socket and the data, which the supervisor creates.
fn server_folder(folder: &Path) -> Result<PathBuf, String> {
    let server = folder.join("server");
    let length = server.join(format!(".s.PGSQL.{PORT}")).as_os_str().len();
    if length > LONGEST_SOCKET {
        return Err(format!(
            "a socket in {} would have a path of {length} bytes, more than {LONGEST_SOCKET}: \
             set TMPDIR to a shorter path",
            server.display()
        ));
    }
    Ok(server)
}

fn open_lock(path: &Path) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))
}

fn wait_for_lock(
    attempt: impl Fn() -> Result<(), TryLockError>,
    name: &str,
    folder: &Path,
    deadline: Instant,
) -> Result<(), String> {
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(error) => {
                return Err(format!(
                    "cannot get {name} in {} within {} s, does another test hang there? ({error})",
                    folder.display(),
                    SHARED_LIMIT.as_secs()
                ));
            }
        }
    }
}

/// The user that the server runs as.
struct Account {
    /// Another user and group if this process runs as root, because PostgreSQL refuses to run as root.
    other: Option<(u32, u32)>,
    /// `setpriv` can make the kernel end the server with its supervisor.
    ends_with_parent: bool,
}

impl Account {
    fn of(uid: u32) -> Result<Account, String> {
        let ends_with_parent = Command::new("setpriv")
            .args(["--pdeathsig", "QUIT", "true"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if uid != 0 {
            return Ok(Account { other: None, ends_with_parent });
        }
        if !ends_with_parent {
            return Err(
                "PostgreSQL does not run as root, and the program setpriv, which starts it as another user, \
                        is missing: apt-get install util-linux, or run this as another user"
                    .to_owned(),
            );
        }
        let other = ["postgres", "nobody"].into_iter().find_map(|name| {
            let ids = (id(&["-u", name])?, id(&["-g", name])?);
            (ids.0 != 0).then_some(ids)
        });
        if other.is_none() {
            return Err("PostgreSQL does not run as root, and there is neither a user postgres nor a user \
                        nobody: create one, or run this as another user"
                .to_owned());
        }
        Ok(Account { other, ends_with_parent })
    }

    /// Returns the owner as an argument for `chown`; empty if the owner need not change.
    fn owner(&self) -> String {
        self.other.map(|(user, group)| format!("{user}:{group}")).unwrap_or_default()
    }

    /// Returns the command that the server's command line is passed to; empty if none is needed.
    fn prefix(&self) -> String {
        match self.other {
            Some((user, group)) => {
                format!("setpriv --reuid={user} --regid={group} --clear-groups --pdeathsig QUIT")
            }
            None if self.ends_with_parent => "setpriv --pdeathsig QUIT".to_owned(),
            None => String::new(),
        }
    }

    /// Lets the server's user reach its part of the directory.
    fn open_folder(&self, folder: &Path) -> Result<(), String> {
        let mode = if self.other.is_some() { 0o755 } else { 0o700 };
        fs::set_permissions(folder, Permissions::from_mode(mode))
            .map_err(|error| format!("cannot set the permissions of {}: {error}", folder.display()))
    }
}

/// Returns the user id of this process. It is read from `/proc`, because every test would wait for the program `id`.
fn own_uid() -> Result<u32, String> {
    let told = fs::metadata("/proc/self").map(|found| found.uid()).ok();
    told.or_else(|| id(&["-u"]))
        .ok_or_else(|| "`id -u` does not return a user id: is the program `id` installed?".to_owned())
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Returns the directory of the server's programs: the newest version on Debian, otherwise the first in `PATH`.
fn find_programs() -> Result<PathBuf, String> {
    let versions = fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten().flatten();
    let mut numbered: Vec<(Vec<u32>, PathBuf)> = versions
        .filter_map(|entry| Some((version(entry.file_name().to_str()?)?, entry.path().join("bin"))))
        .collect();
    numbered.sort();
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = numbered.into_iter().rev().map(|(_, folder)| folder).chain(env::split_paths(&path));
    let complete = |folder: &PathBuf| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file());
    folders.into_iter().find(complete).ok_or_else(|| {
        format!(
            "the programs `initdb` and `postgres` are neither in {DEBIAN_VERSIONS}/*/bin nor in \
             PATH: install the PostgreSQL server, on Debian with `apt-get install postgresql`"
        )
    })
}

/// Parses a version such as `16` or `9.6`, so that 16 sorts after 9.6.
fn version(name: &str) -> Option<Vec<u32>> {
    name.split('.').map(|part| part.parse().ok()).collect()
}

#[derive(Debug, PartialEq)]
enum Answer {
    /// No server listens on the socket.
    Nobody,
    /// A server that is starting, recovering or ending.
    NotNow,
    Welcome,
}

/// Tries to begin a session. A server that recovers from a crash accepts connections, but no sessions.
fn ask(socket_dir: &Path) -> Answer {
    let Ok(mut stream) = UnixStream::connect(socket_dir.join(format!(".s.PGSQL.{PORT}"))) else {
        return Answer::Nobody;
    };
    let mut greeting = vec![0, 0, 0, 0, 0, 3, 0, 0];
    for word in ["user", ADMIN, "database", "postgres", ""] {
        greeting.extend_from_slice(word.as_bytes());
        greeting.push(0);
    }
    // The message is shorter than 256 bytes, so its length fits in the last byte.
    greeting[3] = u8::try_from(greeting.len()).unwrap_or(u8::MAX);
    let mut first = [0];
    let asked = stream
        .set_read_timeout(Some(Duration::from_secs(2)))
        .and_then(|()| stream.write_all(&greeting))
        .and_then(|()| stream.read_exact(&mut first));
    if asked.is_err() || first != *b"R" {
        return Answer::NotNow;
    }
    // Read to the end, so that the server does not log a lost client.
    let _ = stream.write_all(b"X\0\0\0\x04").and_then(|()| io::copy(&mut stream, &mut io::sink()));
    Answer::Welcome
}

/// Returns true if the server at `address` answers the request for an encrypted connection.
fn has_tls(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect((address, PORT)) else { return false };
    let mut answer = [0];
    let asked = stream
        .set_read_timeout(Some(Duration::from_secs(2)))
        .and_then(|()| stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]))
        .and_then(|()| stream.read_exact(&mut answer));
    asked.is_ok() && answer == *b"S"
}

/// Kills the server on `data` with all its processes, and waits until they have released the shared memory.
fn kill_server(data: &Path) -> Result<(), String> {
    let (pid, segment) = postmaster(data)?;
    // Stop the server first, so that it starts no process while we list them. Wait until it has stopped: the signal is
    // delivered later, and a process that is forked before that would be missed.
    signal("STOP", &[pid])?;
    let stopped = Instant::now() + LIMIT;
    while state(pid).is_some_and(|state| state != "T") && Instant::now() < stopped {
        thread::sleep(Duration::from_millis(1));
    }
    let mut pids = vec![pid];
    pids.extend(children(pid));
    signal("KILL", &pids)?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let left: Vec<&u32> = pids.iter().filter(|&&pid| living_parent(pid).is_some()).collect();
        if left.is_empty() && segment.as_deref().is_none_or(is_free) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "the killed PostgreSQL in {} has not ended after {} s: processes {left:?}, memory {segment:?}",
                data.display(),
                LIMIT.as_secs()
            ));
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the process that serves `data`, after checking that it is the right one, and the id of its shared memory.
fn postmaster(data: &Path) -> Result<(u32, Option<String>), String> {
    let path = data.join("postmaster.pid");
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("no PostgreSQL runs in {}: {}: {error}", data.display(), path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let pid = lines.first().and_then(|pid| pid.trim().parse().ok());
    let pid = pid.ok_or_else(|| format!("{} contains no process id", path.display()))?;
    if lines.get(1).map(Path::new) != Some(data) || !command_line_names(pid, data) {
        return Err(format!(
            "process {pid} is named in {} but is not the server of that directory: it is left alone",
            path.display()
        ));
    }
    let segment = lines.get(6).and_then(|line| line.split_whitespace().nth(1));
    Ok((pid, segment.map(str::to_owned)))
}

/// Returns true if no process is attached to this shared memory, as far as the system reports.
fn is_free(segment: &str) -> bool {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.get(1) == Some(&segment)).is_none_or(|row| row.get(6) == Some(&"0"))
}

fn children(parent: u32) -> Vec<u32> {
    processes().into_iter().filter(|pid| living_parent(*pid) == Some(parent)).collect()
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the parent of a process; `None` if the process has ended, even if it is still a zombie.
fn living_parent(pid: u32) -> Option<u32> {
    let words = state_and_parent(pid)?;
    if matches!(&words.0[..], "Z" | "X") { None } else { Some(words.1) }
}

fn state(pid: u32) -> Option<String> {
    state_and_parent(pid).map(|(state, _)| state)
}

fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program comes first, in parentheses, and may itself contain parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut words = after_name.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

fn command_line_names(pid: u32, folder: &Path) -> bool {
    let folder = folder.as_os_str().as_encoded_bytes();
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.windows(folder.len()).any(|part| part == folder)
}

/// Sends a signal with the shell's built-in `kill`, because the program is not installed everywhere. Processes that
/// have ended are ignored.
fn signal(name: &str, pids: &[u32]) -> Result<(), String> {
    let script = format!("kill -{name} \"$@\" 2>/dev/null; true");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "kill"]).args(pids.iter().map(u32::to_string));
    shell.status().map(|_| ()).map_err(|error| format!("cannot start `sh` to signal {pids:?}: {error}"))
}

/// Quotes a value for a libpq connection string, if needed.
pub(crate) fn quoted(value: &str) -> String {
    if !value.is_empty() && !value.contains([' ', '\t', '\n', '\'', '\\']) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until something has happened, longer than any helper needs to end.
    fn soon(what: &str, mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !happened() {
            assert!(Instant::now() < deadline, "not within {} s: {what}", LIMIT.as_secs());
            thread::sleep(PAUSE);
        }
    }

    fn processes_of(folder: &Path) -> Vec<u32> {
        processes().into_iter().filter(|pid| command_line_names(*pid, folder)).collect()
    }

    #[test]
    fn own_cluster_is_killed_restarted_and_removed() {
        let mut cluster = Cluster::own(&[("max_connections", "20")]).unwrap();
        assert!(cluster.is_own());
        let folder = cluster.socket_dir().parent().unwrap().to_path_buf();
        let data = cluster.socket_dir().join("data");
        let (first, _) = postmaster(&data).unwrap();
        assert_eq!(ask(cluster.socket_dir()), Answer::Welcome);

        cluster.kill().unwrap();
        assert_eq!(ask(cluster.socket_dir()), Answer::Nobody);
        assert!(cluster.kill().unwrap_err().contains("left alone"));

        cluster.restart().unwrap();
        assert_eq!(ask(cluster.socket_dir()), Answer::Welcome);
        assert_ne!(postmaster(&data).unwrap().0, first);

        drop(cluster);
        assert!(!folder.exists());
        assert_eq!(processes_of(&folder), Vec::<u32>::new());
    }

    #[test]
    fn own_cluster_ends_with_its_process() {
        let mut cluster = Cluster::own(&[]).unwrap();
        let folder = cluster.socket_dir().parent().unwrap().to_path_buf();
        let Kind::Own { orders, .. } = &mut cluster.kind else { panic!("must be an own one") };
        // A killed process leaves only the closed end of its pipe.
        drop(orders.take());
        soon("the folder is removed", || !folder.exists());
        soon("the processes end", || processes_of(&folder).is_empty());
    }

    #[test]
    fn server_without_its_supervisor_ends() {
        let cluster = Cluster::own(&[]).unwrap();
        let Kind::Own { supervisor, .. } = &cluster.kind else { panic!("must be an own one") };
        let folder = supervisor.folder.clone();
        signal("KILL", &[supervisor.child.id()]).unwrap();
        soon("the processes end", || processes_of(&folder).is_empty());
        drop(cluster);
        assert!(!folder.exists());
    }

    #[test]
    fn refused_setting_is_reported_from_the_log() {
        let error = Cluster::own(&[("no_such_setting", "1")]).unwrap_err();
        assert!(error.contains("did not start") && error.contains("no_such_setting"), "{error}");
    }

    #[test]
    fn shared_cluster_is_started_once() {
        let mut first = Cluster::shared().unwrap();
        let second = Cluster::shared().unwrap();
        assert!(!first.is_own());
        assert_eq!(first.socket_dir(), second.socket_dir());
        assert_eq!(ask(second.socket_dir()), Answer::Welcome);
        assert!(first.kill().unwrap_err().contains("Cluster::own"));
    }

    #[test]
    fn versions_are_ordered_as_numbers() {
        assert!(version("16") > version("9.6"));
        assert_eq!(version("common"), None);
    }

    #[test]
    fn odd_names_are_quoted() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("it's"), r"'it\'s'");
        assert_eq!(quoted(""), "''");
    }
}
