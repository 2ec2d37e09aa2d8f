//! Disk faults: a full disk, failed writes and failed fsyncs. Acknowledged commits stay, and no outcome is misreported.
#![allow(unsafe_code)] // A reviewed corner: a file system layer for SQLite that fails when told to.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use rusqlite::ffi;
use stepwell_core::RunId;
use stepwell_sqlite::{Options, SqliteStore, WithError};
use stepwell_store::suite::{ask, make};
use stepwell_store::{CommitError, Head, Store, StoreError};
use uuid::Uuid;

/// Result of the next syncs of the log of a `faulty.sqlite`; 0 = call the real file system.
static SYNC: AtomicI32 = AtomicI32::new(0);
/// Result of the next syncs of the database file itself, which is synced only when the log is copied into it.
static SYNC_DATA: AtomicI32 = AtomicI32::new(0);
static WRITE: AtomicI32 = AtomicI32::new(0);
static SYNCED: AtomicUsize = AtomicUsize::new(0);
/// The faults apply to the whole process, so only one test may run at a time.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

static REAL: OnceLock<Real> = OnceLock::new();

struct Real {
    vfs: *mut ffi::sqlite3_vfs,
    log: Methods,
    data: Methods,
}

/// SQLite's methods for a kind of file, and the patched methods that replace them.
type Methods = OnceLock<(ffi::sqlite3_io_methods, &'static ffi::sqlite3_io_methods)>;

// The pointers refer to SQLite's static tables, which never change.
unsafe impl Send for Real {}
unsafe impl Sync for Real {}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let real = REAL.get().expect("registered before it is used");
    let code = unsafe { ((*real.vfs).xOpen.expect("unix has it"))(real.vfs, name, file, flags, out) };
    if code != ffi::SQLITE_OK || name.is_null() {
        return code;
    }
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let replace = |slot: &Methods, patch: fn(ffi::sqlite3_io_methods) -> ffi::sqlite3_io_methods| {
        let methods = unsafe { *(*file).pMethods };
        let (_, patched) = slot.get_or_init(|| (methods, Box::leak(Box::new(patch(methods)))));
        unsafe { (*file).pMethods = *patched };
    };
    if name.ends_with(b"/faulty.sqlite-wal") {
        replace(&real.log, |methods| ffi::sqlite3_io_methods {
            xSync: Some(sync),
            xWrite: Some(write),
            ..methods
        });
    } else if name.ends_with(b"/faulty.sqlite") {
        replace(&real.data, |methods| ffi::sqlite3_io_methods { xSync: Some(sync_data), ..methods });
    }
    code
}

fn original(slot: fn(&Real) -> &Methods) -> &'static ffi::sqlite3_io_methods {
    &REAL.get().and_then(|real| slot(real).get()).expect("a file was opened").0
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    SYNCED.fetch_add(1, Ordering::SeqCst);
    match SYNC.load(Ordering::SeqCst) {
        0 => unsafe { (original(|real| &real.log).xSync.expect("unix has it"))(file, flags) },
        code => code,
    }
}

unsafe extern "C" fn sync_data(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    match SYNC_DATA.load(Ordering::SeqCst) {
        0 => unsafe { (original(|real| &real.data).xSync.expect("unix has it"))(file, flags) },
        code => code,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    data: *const std::ffi::c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    match WRITE.load(Ordering::SeqCst) {
        0 => unsafe { (original(|real| &real.log).xWrite.expect("unix has it"))(file, data, amount, offset) },
        code => code,
    }
}

/// Installs the failing layer for every database of that name. It has no effect until a fault is set.
fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| unsafe {
        let real = ffi::sqlite3_vfs_find(std::ptr::null());
        assert!(!real.is_null());
        assert_eq!(CStr::from_ptr((*real).zName).to_str(), Ok("unix"));
        assert!(REAL.set(Real { vfs: real, log: OnceLock::new(), data: OnceLock::new() }).is_ok());
        let name: *const c_char = c"failing".as_ptr();
        let failing = Box::new(ffi::sqlite3_vfs { zName: name, xOpen: Some(open), ..*real });
        assert_eq!(ffi::sqlite3_vfs_register(Box::leak(failing), 1), ffi::SQLITE_OK);
    });
}

async fn begin(store: &SqliteStore, make: &make::Make, number: u128) -> Head {
    ask::started(store, make.create(make::new_run(RunId::new(Uuid::from_u128(number))))).await
}

/// After a failed fsync the kernel may have dropped the pages, and the next fsync succeeds without them. Continuing
/// would acknowledge commits on top of lost ones.
#[tokio::test]
async fn failed_fsync_closes_the_store_and_keeps_acknowledged_commits() {
    let _one = ONE_AT_A_TIME.lock().await;
    install();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.sqlite");
    let make = make::Make::new();
    let store = SqliteStore::open(&path).unwrap();
    let head = begin(&store, &make, 1).await;
    let synced = SYNCED.load(Ordering::SeqCst);
    assert!(synced > 0, "the layer is not in use");

    SYNC.store(ffi::SQLITE_IOERR_FSYNC, Ordering::SeqCst);
    let commit = make.step(make::step(&head, "lost?"));
    let reference = commit.reference();
    let error = store.commit(make::ME, commit).await.unwrap_err();
    SYNC.store(0, Ordering::SeqCst);
    let CommitError::Unknown { reference: told, .. } = &error else { panic!("{error}") };
    assert_eq!(*told, reference, "the outcome is unknown, and the answer says so");

    let after = store.commit(make::ME, make.step(make::step(&head, "later"))).await.unwrap_err();
    assert!(matches!(&after, CommitError::Store(StoreError::Fatal(_))), "{after}");
    let read = store.load(make::ME, head.run).await.unwrap_err();
    assert!(matches!(&read, StoreError::Fatal(_)), "{read}");
    drop(store);

    let store = SqliteStore::open(&path).unwrap();
    let found = ask::load(&store, head.run).await.head.version;
    let known = store.outcome(make::ME, reference).await.unwrap();
    assert_eq!(found == 1, known.is_some(), "the lookup agrees with the database");
    let head = ask::load(&store, head.run).await.head;
    ask::moved(&store, make.step(make::step(&head, "goes on"))).await;
}

#[tokio::test]
async fn failed_fsync_stores_commit_and_own_writes_both_or_neither() {
    let _one = ONE_AT_A_TIME.lock().await;
    install();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.sqlite");
    let make = make::Make::new();
    let store = SqliteStore::open(&path).unwrap();
    let head = begin(&store, &make, 1).await;
    SYNC.store(ffi::SQLITE_IOERR_FSYNC, Ordering::SeqCst);
    let commit = make.step(make::step(&head, "lost?"));
    let reference = commit.reference();
    let own = |own: &rusqlite::Connection, _: &_| own.execute_batch("create table mine (x integer) strict");
    let error = store.commit_with(make::ME, commit, own).await.unwrap_err();
    SYNC.store(0, Ordering::SeqCst);
    let WithError::Commit(CommitError::Unknown { reference: told, .. }) = &error else { panic!("{error}") };
    assert_eq!(*told, reference);
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    let moved = ask::load(&store, head.run).await.head.version == 1;
    let made = rusqlite::Connection::open(&path).unwrap().table_exists(None, "mine").unwrap();
    assert_eq!(moved, made);
}

/// A past bug: the fsync of the database file failed while a separate thread copied the log into it. That was only
/// logged, and commits continued.
#[tokio::test]
async fn failed_fsync_while_copying_the_log_closes_the_store() {
    let _one = ONE_AT_A_TIME.lock().await;
    install();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.sqlite");
    let make = make::Make::new();
    let store = SqliteStore::open_with(&path, Options { wal_pages: 1, ..Options::default() }).unwrap();
    let mut head = begin(&store, &make, 1).await;
    SYNC_DATA.store(ffi::SQLITE_IOERR_FSYNC, Ordering::SeqCst);
    let mut closed = None;
    for _ in 0..10_000 {
        match store.commit(make::ME, make.step(make::step(&head, "on"))).await {
            Ok(committed) => head = committed.head.unwrap(),
            Err(error) => {
                closed = Some(error);
                break;
            }
        }
    }
    SYNC_DATA.store(0, Ordering::SeqCst);
    assert!(matches!(&closed, Some(CommitError::Store(StoreError::Fatal(_)))), "{closed:?}");
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(ask::load(&store, head.run).await.head, head, "what was acknowledged is in the log");
}

#[tokio::test]
async fn failed_write_is_reported_and_the_store_stays_usable() {
    let _one = ONE_AT_A_TIME.lock().await;
    install();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.sqlite");
    let make = make::Make::new();
    let store = SqliteStore::open(&path).unwrap();
    let head = begin(&store, &make, 1).await;
    for (code, full) in [(ffi::SQLITE_IOERR_WRITE, false), (ffi::SQLITE_FULL, true)] {
        WRITE.store(code, Ordering::SeqCst);
        let commit = make.step(make::step(&head, "not now"));
        let error = store.commit(make::ME, commit).await.unwrap_err();
        WRITE.store(0, Ordering::SeqCst);
        match error {
            CommitError::Store(StoreError::Full(_)) => assert!(full),
            CommitError::Store(StoreError::Unavailable(_)) => assert!(!full),
            other => panic!("{other}"),
        }
        assert_eq!(ask::load(&store, head.run).await.head, head, "nothing of it is there");
    }
    let head = ask::moved(&store, make.step(make::step(&head, "now"))).await;
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(ask::load(&store, head.run).await.head, head);
}

/// Fills a disk of two megabytes.
#[tokio::test]
async fn full_disk_is_reported_and_acknowledged_commits_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(&mount)
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!(
            "only root can mount a small disk; the failing layer above shows the same error without one"
        );
        return;
    }
    let unmount = Unmount(mount.clone());
    let path = mount.join("runs.sqlite");
    let make = make::Make::new();
    let store = SqliteStore::open(&path).unwrap();
    let mut acknowledged = Vec::new();
    let mut full = false;
    for number in 1..1_000_u128 {
        let mut new = make::new_run(RunId::new(Uuid::from_u128(number)));
        let noise: Vec<u8> =
            (0..20_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ number as u8).collect();
        new.first.state = noise.into();
        match store.commit(make::ME, make.create(new)).await {
            Ok(committed) => acknowledged.push(committed.created[0].clone()),
            Err(CommitError::Store(StoreError::Full(_))) => {
                full = true;
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(full && !acknowledged.is_empty());
    for head in &acknowledged {
        assert_eq!(ask::load(&store, head.run).await.head, *head);
    }
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    for head in &acknowledged {
        assert_eq!(ask::load(&store, head.run).await.head, *head);
    }
    drop(store);
    drop(unmount);
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}
