//! Cases about seals: every audit row is sealed once, in a chain, so that a later change is detected.

use std::collections::{BTreeMap, BTreeSet};

use tokio::task::JoinSet;

use super::Shared;
use super::ask::{all_audit, all_seals, all_unsealed, apply, moved, started};
use super::make::{
    ME, Make, NAMESPACE, at, audit, bytes, delete, edge, end, new_run, run, set, tenant, unlink, upsert,
};
use crate::commit::{AuditRow, Commit, CommitId};
use crate::scope::TenantScope;
use crate::seal::{Hash, Seal, SealedRow, sealed};
use crate::store::{Cleanup, CleanupKind, CleanupResult, Record, RecordQuery};

async fn seal(store: &Shared, seconds: i64, limit: u32) -> CleanupResult {
    seal_as(store, ME, seconds, limit).await
}

async fn seal_as(store: &Shared, scope: TenantScope, seconds: i64, limit: u32) -> CleanupResult {
    let cleanup = Cleanup { now: at(seconds), limit, what: CleanupKind::Seal };
    store.cleanup(scope, cleanup).await.expect("sealing succeeds")
}

/// Seals until no row is left. Returns the number of sealed rows.
async fn seal_all(store: &Shared, seconds: i64, limit: u32) -> u64 {
    let mut count = 0;
    loop {
        let cleaned = seal(store, seconds, limit).await;
        count += cleaned.count;
        if !cleaned.more {
            return count;
        }
        tokio::task::yield_now().await;
    }
}

async fn seals(store: &Shared) -> Vec<Seal> {
    all_seals(store, ME, 2).await
}

type Place = (CommitId, u64);

/// Returns the hash of every audit row by commit and ordinal.
async fn trail(store: &Shared, scope: TenantScope) -> BTreeMap<Place, Hash> {
    let rows = all_audit(store, scope, 1_000).await.into_iter().map(|record| match record {
        Record::Audit { commit, ordinal, at, row } => {
            ((commit, ordinal), sealed(scope.tenant(), commit, ordinal, at, &row).hash)
        }
        other => panic!("not a row of the audit trail: {other:?}"),
    });
    rows.collect()
}

/// Checks that the seals form a chain and contain every audit row that is not listed as unsealed exactly once.
async fn check(store: &Shared, scope: TenantScope) {
    let waiting: BTreeSet<CommitId> = all_unsealed(store, scope, 100).await.into_iter().collect();
    let seals = all_seals(store, scope, 100).await;
    let mut rows: BTreeMap<Place, Hash> = BTreeMap::new();
    let mut before = [0; 32];
    for (number, seal) in (1..).zip(&seals) {
        assert_eq!((seal.number, seal.before), (number, before), "each seal follows the previous one");
        assert_eq!(seal.hash, seal.expected(scope.tenant()), "seal {number}");
        assert!(!seal.rows.is_empty(), "seal {number} has no rows");
        before = seal.hash;
        for SealedRow { commit, ordinal, hash } in &seal.rows {
            let twice = rows.insert((*commit, *ordinal), *hash);
            assert_eq!(twice, None, "{commit:?} {ordinal} is sealed twice, the second time by {number}");
        }
    }
    let mut wanted = trail(store, scope).await;
    wanted.retain(|(commit, _), _| !waiting.contains(commit));
    assert_eq!(rows, wanted, "every row that is not unsealed is sealed unchanged");
}

/// Checks the seals while rows are being written: each sealed row exists, and no row is in two seals.
async fn check_so_far(store: &Shared) {
    let seals = seals(store).await;
    let trail = trail(store, ME).await;
    let mut seen = BTreeSet::new();
    for row in seals.iter().flat_map(|seal| &seal.rows) {
        assert_eq!(trail.get(&(row.commit, row.ordinal)), Some(&row.hash));
        assert!(seen.insert((row.commit, row.ordinal)), "{row:?} is sealed twice");
    }
}

fn noted(make: &Make, count: usize) -> Commit {
    Commit { audit: (0..count).map(|number| audit(&number.to_string())).collect(), ..make.commit() }
}

/// Builds a row in which every field has a value.
fn full() -> AuditRow {
    AuditRow { run: Some(run(1)), detail: bytes(r#"{"a":1}"#), ..audit("subject") }
}

/// Returns the row with every possible change.
fn changed() -> Vec<AuditRow> {
    let row = full();
    vec![
        AuditRow { operation: "get".to_owned(), ..row.clone() },
        AuditRow { subject: "subjecu".to_owned(), ..row.clone() },
        AuditRow { actor: Some("bob".to_owned()), ..row.clone() },
        AuditRow { actor: None, ..row.clone() },
        AuditRow { actor: Some(String::new()), ..row.clone() },
        AuditRow { run: Some(run(2)), ..row.clone() },
        AuditRow { run: None, ..row.clone() },
        AuditRow { detail: bytes(r#"{"a":2}"#), ..row.clone() },
        AuditRow { detail: bytes(""), ..row.clone() },
        // The end of one field is moved to the beginning of the next.
        AuditRow { operation: "se".to_owned(), subject: "tsubject".to_owned(), ..row },
    ]
}

/// Eight sealers seal the same rows, through any number of stores on the same database. Each row must be sealed once.
pub async fn contended(stores: &[Shared]) {
    let make = Make::new();
    let store = &stores[0];
    for round in 0..6_u32 {
        for number in 0..12 {
            apply(store, noted(&make, 1 + number % 3)).await;
        }
        let mut tasks = JoinSet::new();
        for (sealer, store) in (0..8_u32).zip(stores.iter().cycle()) {
            let store = store.clone();
            let limit = if round % 2 == 0 { 100 } else { 1 + sealer % 3 };
            tasks.spawn(async move { seal_all(&store, i64::from(sealer), limit).await });
        }
        let sealed: u64 = tasks.join_all().await.into_iter().sum();
        let rest = seal_all(store, 99, 100).await;
        assert_eq!(sealed + rest, 24, "the results add up to all rows");
        check(store, ME).await;
    }
    assert_eq!(trail(store, ME).await.len(), 6 * 24);
    assert_eq!(all_unsealed(store, ME, 10).await, []);
}

cases! { seals as __suite_seals;
    /// Rows of several commits are sealed together, each once, whatever wrote them.
    async fn rows_of_several_commits_get_one_seal(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let links = vec![upsert(1, edge("a/1", "r", "b/1")), unlink(Some("a/1"), None, None)];
        let commits = [
            Commit { audit: vec![full()], ..make.step(end(&head)) },
            make.write([set("k", 1), delete("k")]),
            Commit { links, actor: Some("ann".to_owned()), ..make.commit_at(at(3)) },
            noted(&make, 3),
        ];
        for commit in &commits {
            apply(store, commit.clone()).await;
        }
        let ids = commits.map(|commit| commit.id);
        for limit in [1, 3, 4, 100] {
            let waiting = all_unsealed(store, ME, limit).await;
            assert_eq!(waiting, ids, "pages of {limit}; the start has no audit rows");
        }
        assert_eq!(seals(store).await, []);
        assert_eq!(seal(store, 9, 100).await, CleanupResult { count: 8, more: false });
        assert_eq!(all_unsealed(store, ME, 10).await, []);
        let found = seals(store).await;
        assert_eq!((found.len(), found[0].number, found[0].at), (1, 1, at(9)));
        assert_eq!((found[0].before, found[0].rows.len()), ([0; 32], 8));
        check(store, ME).await;
    }

    /// Each seal contains the hash of the previous one and never changes, whatever maintenance removes.
    async fn seals_form_an_immutable_chain(store: &Shared) {
        let make = Make::new();
        let mut known: Vec<Seal> = Vec::new();
        for number in 1..=5 {
            apply(store, noted(&make, 2)).await;
            apply(store, make.write([set("k", number), delete("k")])).await;
            assert_eq!(seal(store, i64::from(number), 100).await.count, 4);
            let found = seals(store).await;
            assert_eq!(found[..known.len()], known, "earlier seals are unchanged");
            known = found;
        }
        assert_eq!(known.iter().map(|seal| seal.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(known.windows(2).all(|pair| pair[1].before == pair[0].hash));
        check(store, ME).await;
        let head = started(store, make.create(new_run(run(1)))).await;
        moved(store, make.step(end(&head))).await;
        let old = CleanupKind::Tombstones { namespace: NAMESPACE.to_owned(), before: at(999) };
        let runs = CleanupKind::Runs(crate::EndedBefore::all(at(999)));
        for what in [CleanupKind::Cells, old, CleanupKind::Keys, runs] {
            store.cleanup(ME, Cleanup { now: at(1_000_000), limit: 100, what }).await.unwrap();
        }
        assert_eq!(seals(store).await, known);
        check(store, ME).await;
        for limit in [1, 2, 5] {
            assert_eq!(all_seals(store, ME, limit).await, known, "pages of {limit}");
        }
        let page = store.records(ME, RecordQuery::Seals { from: 4, limit: 1 }).await.unwrap();
        assert_eq!((page.items, page.next), (vec![Record::Seal(known[3].clone())], Some("5".to_owned())));
        let past = store.records(ME, RecordQuery::Seals { from: 6, limit: 5 }).await.unwrap();
        assert_eq!((past.items, past.next), (vec![], None));
    }

    /// Without new rows no seal is made, so that an idle store does not grow.
    async fn an_idle_store_gets_no_seal(store: &Shared) {
        let make = Make::new();
        assert_eq!(seal(store, 0, 100).await, CleanupResult { count: 0, more: false });
        started(store, make.create(new_run(run(1)))).await;
        apply(store, make.write([delete("none")])).await;
        assert_eq!(seal(store, 0, 100).await, CleanupResult { count: 0, more: false });
        apply(store, noted(&make, 1)).await;
        assert_eq!(seal(store, 1, 100).await, CleanupResult { count: 1, more: false });
        for _ in 0..3 {
            assert_eq!(seal(store, 2, 100).await, CleanupResult { count: 0, more: false });
        }
        assert_eq!(seals(store).await.len(), 1);
    }

    /// A seal takes at most the given number of commits, each with all its rows, and reports whether more are left.
    async fn a_seal_takes_whole_commits_up_to_its_limit(store: &Shared) {
        let make = Make::new();
        for count in [5, 1, 2, 4, 3] {
            apply(store, noted(&make, count)).await;
        }
        let waiting = all_unsealed(store, ME, 10).await;
        assert_eq!(seal(store, 1, 2).await, CleanupResult { count: 6, more: true });
        assert_eq!(all_unsealed(store, ME, 10).await, waiting[2..]);
        check(store, ME).await;
        assert_eq!(seal(store, 2, 2).await, CleanupResult { count: 6, more: true });
        assert_eq!(seal(store, 3, 1).await, CleanupResult { count: 3, more: false }, "nothing is left after the last commit");
        let rows: Vec<_> = seals(store).await.iter().map(|seal| seal.rows.len()).collect();
        assert_eq!(rows, [6, 6, 3]);
        check(store, ME).await;
    }

    /// Guards against concurrent sealers that put a row into two seals or into none.
    async fn concurrent_sealers_seal_each_row_once(store: &Shared) {
        contended(std::slice::from_ref(store)).await;
    }

    /// Writers never wait for a seal. Rows that are written during sealing get a later seal.
    async fn rows_written_during_sealing_are_sealed_later(store: &Shared) {
        let make = std::sync::Arc::new(Make::new());
        let mut writers = JoinSet::new();
        for writer in 0..4_u32 {
            let (store, make) = (store.clone(), make.clone());
            writers.spawn(async move {
                for number in 0..25_u32 {
                    let key = format!("{writer}.{}", number % 3);
                    apply(&store, make.write([set(&key, number), set("both", number)])).await;
                }
            });
        }
        let mut sealers = JoinSet::new();
        for _ in 0..2 {
            let store = store.clone();
            sealers.spawn(async move {
                let mut count = 0;
                while count < 40 {
                    count += seal(&store, 1, 5).await.count;
                    tokio::task::yield_now().await;
                }
                count
            });
        }
        let midway: u64 = sealers.join_all().await.into_iter().sum();
        check_so_far(store).await;
        writers.join_all().await;
        let rest = seal_all(store, 2, 7).await;
        assert_eq!(midway + rest, 200);
        assert_eq!(all_unsealed(store, ME, 10).await, []);
        check(store, ME).await;
    }

    /// Any change to a row or a seal, and any removal from them, changes the hash.
    async fn later_changes_are_detected(store: &Shared) {
        let make = Make::new();
        let commit = Commit { audit: vec![full(), full()], ..make.commit_at(at(5)) };
        apply(store, commit.clone()).await;
        apply(store, noted(&make, 2)).await;
        seal(store, 6, 100).await;
        let seal = seals(store).await.remove(0);
        let tenant_id = ME.tenant();
        let row = |ordinal, at, row: &AuditRow| sealed(tenant_id, commit.id, ordinal, at, row);
        assert!(seal.rows.contains(&row(0, at(5), &full())) && seal.rows.contains(&row(1, at(5), &full())));
        let known: BTreeSet<Hash> = seal.rows.iter().map(|row| row.hash).collect();
        assert_eq!(known.len(), 4, "the same content at another ordinal has another hash");
        let mut forged: Vec<SealedRow> = changed().iter().map(|changed| row(0, at(5), changed)).collect();
        forged.extend([row(2, at(5), &full()), row(0, at(6), &full())]);
        forged.push(sealed(tenant(2).tenant(), commit.id, 0, at(5), &full()));
        forged.push(sealed(tenant_id, CommitId(uuid::Uuid::nil()), 0, at(5), &full()));
        assert!(forged.iter().all(|row| !known.contains(&row.hash)), "a change is not detected");
        let mut fewer = seal.clone();
        fewer.rows.pop();
        let mut other = seal.clone();
        other.rows[0] = forged.remove(0);
        let mut turned = seal.clone();
        turned.rows.reverse();
        let later = Seal { at: at(7), ..seal.clone() };
        let second = Seal { number: 2, ..seal.clone() };
        let after = Seal { before: [1; 32], ..seal.clone() };
        for forged in [fewer, other, turned, later, second, after] {
            assert_ne!(forged.expected(tenant_id), seal.hash, "{forged:?}");
        }
        assert_ne!(seal.expected(tenant(2).tenant()), seal.hash, "another tenant's");
        assert_eq!(seal.expected(tenant_id), seal.hash);
    }

    /// D11: each tenant has its own chain.
    async fn each_tenant_has_its_own_chain_of_seals(store: &Shared) {
        const TWO: TenantScope = tenant(2);
        let make = Make::new();
        let both = noted(&make, 2);
        for scope in [ME, TWO] {
            store.commit(scope, both.clone()).await.unwrap();
            assert_eq!(all_unsealed(store, scope, 10).await, [both.id]);
        }
        assert_eq!(seal(store, 1, 100).await, CleanupResult { count: 2, more: false });
        assert_eq!(all_unsealed(store, TWO, 10).await, [both.id]);
        assert_eq!(all_seals(store, TWO, 10).await, []);
        apply(store, noted(&make, 1)).await;
        assert_eq!(seal(store, 2, 100).await.count, 1);
        assert_eq!(seal_as(store, TWO, 3, 100).await, CleanupResult { count: 2, more: false });
        let (mine, theirs) = (seals(store).await, all_seals(store, TWO, 10).await);
        assert_eq!((mine.len(), theirs.len(), theirs[0].number, theirs[0].before), (2, 1, 1, [0; 32]));
        check(store, ME).await;
        check(store, TWO).await;
    }
}
