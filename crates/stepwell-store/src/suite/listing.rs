//! Cases about listing cells: by prefix, in order, in pages, with deleted and expired cells only on request.

use serde_json::json;

use super::Shared;
use super::ask::{all_cells, apply, cells, get, keys};
use super::make::{ME, Make, at, cell, delete, set, set_until};
use crate::cell::CellWrite;
use crate::store::{CellFilter, CellQuery, MAX_PAGE};

/// Keys that a database could mistake for a pattern, a quote or an escape.
const NAMES: [&str; 26] = [
    " ",
    "!",
    "%",
    "%a",
    "'",
    "''; drop table cells; --",
    "*",
    "A",
    "B",
    "[a-z]",
    "\\",
    "\\%",
    "\\_",
    "^a",
    "_",
    "_a",
    "a",
    "a%b",
    "a.b",
    "a\nb",
    "a_b",
    "aXb",
    "b",
    "ä",
    "äa",
    "\u{1F600}",
];

fn prefixed(prefix: &str) -> CellQuery {
    CellQuery { filter: CellFilter::Prefix(prefix.to_owned()), ..cells(at(0)) }
}

async fn write_all<'a>(store: &Shared, make: &Make, names: impl IntoIterator<Item = &'a str>) {
    let writes: Vec<CellWrite> = names.into_iter().map(|name| set(name, name)).collect();
    apply(store, make.write(writes)).await;
}

fn numbered(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("k{number:04}")).collect()
}

cases! { listing as __suite_listing;
    /// D6: keys are listed in the order of their bytes, whatever the database's locale.
    async fn cells_are_listed_in_the_order_of_their_bytes(store: &Shared) {
        write_all(store, &Make::new(), NAMES.into_iter().rev()).await;
        let mut expected = NAMES.to_vec();
        expected.sort_unstable();
        assert_eq!(keys(store, prefixed("")).await, expected);
        assert_eq!(keys(store, CellQuery { limit: 1, ..prefixed("") }).await, expected, "one by one");
        assert_eq!(keys(store, CellQuery { limit: 7, ..prefixed("") }).await, expected);
    }

    /// D6: no character of a prefix is a wildcard.
    async fn a_prefix_is_taken_literally(store: &Shared) {
        write_all(store, &Make::new(), NAMES).await;
        for prefix in NAMES.into_iter().chain(["a", "'", "[", "\\", "A%", "?", "\u{10FFFF}", "aX"]) {
            let mut expected: Vec<_> = NAMES.into_iter().filter(|name| name.starts_with(prefix)).collect();
            expected.sort_unstable();
            assert_eq!(keys(store, prefixed(prefix)).await, expected, "prefix {prefix:?}");
        }
    }

    /// D2: no character of a key is a wildcard.
    async fn a_key_names_one_cell(store: &Shared) {
        write_all(store, &Make::new(), NAMES).await;
        for name in NAMES {
            let cell = get(store, name).await.expect("it was written");
            assert_eq!((&cell.key.key[..], cell.value), (name, Some(json!(name))));
        }
        for other in ["", "a%", "aa", "Ä", "a_", "%%"] {
            assert_eq!(get(store, other).await, None, "{other:?}");
        }
    }

    /// D6: a page begins after the last key of the previous one, whatever is written in between.
    async fn pages_of_cells_are_stable_under_writes(store: &Shared) {
        let make = Make::new();
        let names = numbered((0..20).map(|number| number * 2));
        write_all(store, &make, names.iter().map(String::as_str)).await;
        let query = |cursor| CellQuery { limit: 8, cursor, ..prefixed("k") };
        let page = store.cells(ME, query(None)).await.unwrap();
        let seen: Vec<_> = page.items.into_iter().map(|cell| cell.key.key).collect();
        assert_eq!(seen, names[..8]);
        write_all(store, &make, ["k0003", "k0015"]).await;
        apply(store, make.write([delete("k0000"), delete("k0014"), set("k0018", "changed")])).await;
        let page = store.cells(ME, query(page.next)).await.unwrap();
        let seen: Vec<_> = page.items.into_iter().map(|cell| cell.key.key).collect();
        assert_eq!(
            seen,
            numbered([15, 16, 18, 20, 22, 24, 26, 28]),
            "a new row is seen, no row is seen twice"
        );
        let page = store.cells(ME, query(page.next)).await.unwrap();
        assert_eq!((page.items.len(), page.next), (5, None));
    }

    /// D4, D6: deleted and expired cells are listed only on request, and do not shorten a page.
    async fn deleted_and_expired_cells_are_listed_on_request(store: &Shared) {
        let make = Make::new();
        let cells_of = |number: u32| match number % 3 {
            0 => vec![set(&format!("k{number:04}"), number)],
            1 => vec![set(&format!("k{number:04}"), number), delete(&format!("k{number:04}"))],
            _ => vec![set_until(&format!("k{number:04}"), number, 10)],
        };
        apply(store, make.write((0..30).flat_map(cells_of))).await;
        let later = |include_deleted| CellQuery { now: at(10), include_deleted, ..prefixed("k") };
        assert_eq!(keys(store, later(true)).await, numbered(0..30));
        let alive = numbered((0..30).step_by(3));
        assert_eq!(keys(store, later(false)).await, alive);
        let page = store.cells(ME, CellQuery { limit: 4, ..later(false) }).await.unwrap();
        assert_eq!(page.items.len(), 4, "the page is full");
        assert_eq!(keys(store, CellQuery { limit: 4, ..later(false) }).await, alive);
        let expired = all_cells(store, ME, later(true)).await;
        assert_eq!((&expired[1].value, expired[1].revision), (&None, 2));
        assert_eq!((&expired[2].value, expired[2].expires_at), (&Some(json!(2)), Some(at(10))), "not converted yet");
    }

    /// A page has 1 to 1,000 rows.
    async fn a_page_has_1_to_1000_rows(store: &Shared) {
        let make = Make::new();
        let names = numbered(0..1_005);
        write_all(store, &make, names.iter().map(String::as_str)).await;
        let page = async |limit| store.cells(ME, CellQuery { limit, ..prefixed("") }).await.unwrap();
        assert_eq!(page(0).await.items.len(), 1);
        let largest = page(u32::MAX).await;
        assert_eq!(largest.items.len(), MAX_PAGE as usize);
        assert!(largest.next.is_some());
        let exact = store.cells(ME, CellQuery { limit: 10, ..prefixed("k000") }).await.unwrap();
        assert_eq!(
            (exact.items.len(), exact.next),
            (10, None),
            "no page follows a full last page"
        );
        assert_eq!(keys(store, CellQuery { limit: 300, ..prefixed("") }).await, names);
        assert_eq!(exact.items[3].key, cell("k0003"));
    }
}
