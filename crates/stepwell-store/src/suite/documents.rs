//! Cases about documents: each is visible in a range of its run's versions, and a version's documents never change.

use super::Shared;
use super::ask::{all_documents, apply, documents, load, moved, refuse, shown, started};
use super::make::{ME, Make, at, attempt, bytes, new_run, put, remove, run, step, tagged, to};
use crate::commit::{Commit, NewRun, Refused};
use crate::document::{Document, DocumentError, DocumentOp, DocumentQuery, DocumentWrite};
use crate::run::{Head, Parent};

/// Commits a step to the next version that writes documents.
async fn writes(store: &Shared, make: &Make, head: &Head, documents: Vec<DocumentWrite>) -> Head {
    moved(store, Commit { documents, ..make.step(step(head, "on")) }).await
}

/// Starts run 1 with documents.
async fn starts(store: &Shared, make: &Make, documents: Vec<DocumentWrite>) -> Head {
    started(store, Commit { documents, ..make.create(new_run(run(1))) }).await
}

/// Returns keys and bodies as a listing of documents with these texts shows them.
fn notes<const N: usize>(of: [(&str, &str); N]) -> Vec<(String, String)> {
    of.map(|(key, text)| (key.to_owned(), format!("{{\"text\":\"{text}\"}}"))).to_vec()
}

async fn keys(store: &Shared, query: DocumentQuery) -> Vec<String> {
    all_documents(store, ME, query).await.into_iter().map(|document| document.key).collect()
}

cases! { documents as __suite_documents;
    /// B13: a document reads back as written, with the start of its run and with a step.
    async fn a_document_reads_back_as_it_was_written(store: &Shared) {
        let make = Make::new();
        let first = tagged(run(1), "offer", "12", &["b", "a", "b"]);
        let new = NewRun { version: 7, ..new_run(run(1)) };
        let create = Commit { at: at(1), documents: vec![first], ..make.create(new) };
        let head = started(store, create).await;
        let offer = Document {
            run: run(1),
            key: "offer".to_owned(),
            kind: "note".into(),
            body: bytes("{\"text\":\"12\"}"),
            tags: ["b", "a", "b"].map(str::to_owned).to_vec(),
            visible_from: 7,
            visible_to: None,
            at: at(1),
        };
        assert_eq!(all_documents(store, ME, documents(run(1))).await, vec![offer.clone()]);
        let op = DocumentOp::Put { kind: "scan".into(), body: bytes(""), tags: vec![] };
        let second = DocumentWrite { run: run(1), key: "page".to_owned(), op };
        let change = Commit { at: at(2), documents: vec![second], ..make.step(step(&head, "on")) };
        moved(store, change).await;
        let page = Document {
            key: "page".to_owned(),
            kind: "scan".into(),
            body: bytes(""),
            tags: vec![],
            visible_from: 8,
            at: at(2),
            ..offer.clone()
        };
        assert_eq!(all_documents(store, ME, documents(run(1))).await, [offer, page]);
        assert_eq!(all_documents(store, ME, documents(run(2))).await, [], "an unknown run has no documents");
    }

    /// B3, B13: a document put under a key replaces the previous one. Both keep the range of versions that show them.
    async fn a_document_put_again_replaces_the_previous_one(store: &Shared) {
        let make = Make::new();
        let head = starts(store, &make, vec![put(run(1), "k", "one"), put(run(1), "other", "")]).await;
        let head = moved(store, make.step(step(&head, "on"))).await;
        writes(store, &make, &head, vec![put(run(1), "k", "two")]).await;
        assert_eq!(shown(store, run(1), None).await, notes([("other", ""), ("k", "two")]));
        let at_key = async |at| {
            let query = DocumentQuery { at, key: Some("k".to_owned()), ..documents(run(1)) };
            let found = all_documents(store, ME, query).await;
            found.iter().map(|found| (found.visible_from, found.visible_to)).collect::<Vec<_>>()
        };
        assert_eq!(at_key(None).await, [(2, None)]);
        assert_eq!(at_key(Some(2)).await, [(2, None)]);
        assert_eq!(at_key(Some(1)).await, [(0, Some(2))]);
        assert_eq!(at_key(Some(0)).await, [(0, Some(2))]);
    }

    /// B3: every version shows the same documents as before, whatever is written later.
    async fn every_version_keeps_its_documents(store: &Shared) {
        let make = Make::new();
        let one = run(1);
        let mut head = starts(store, &make, vec![put(one, "a", "0"), put(one, "b", "0")]).await;
        let steps = [
            vec![put(one, "b", "1"), put(one, "c", "1")],
            vec![remove(one, "a")],
            vec![],
            vec![put(one, "a", "4"), remove(one, "b")],
            vec![remove(one, "a"), remove(one, "c")],
            vec![put(one, "b", "6")],
        ];
        for documents in steps {
            head = writes(store, &make, &head, documents).await;
            head = moved(store, make.step(attempt(&head, Some("no version, no change")))).await;
        }
        let expected = [
            notes([("a", "0"), ("b", "0")]).to_vec(),
            notes([("a", "0"), ("b", "1"), ("c", "1")]).to_vec(),
            notes([("b", "1"), ("c", "1")]).to_vec(),
            notes([("b", "1"), ("c", "1")]).to_vec(),
            notes([("c", "1"), ("a", "4")]).to_vec(),
            vec![],
            notes([("b", "6")]).to_vec(),
        ];
        for (version, expected) in (0..).zip(&expected) {
            assert_eq!(shown(store, one, Some(version)).await, *expected, "at version {version}");
            for name in ["a", "b", "c"] {
                let query = DocumentQuery { at: Some(version), key: Some(name.to_owned()), ..documents(one) };
                let listed = expected.iter().filter(|(key, _)| key == name).count();
                assert_eq!(keys(store, query).await.len(), listed, "`{name}` at version {version}");
            }
        }
        assert_eq!(shown(store, one, None).await, expected[6]);
        assert_eq!(shown(store, one, Some(99)).await, expected[6], "later versions show the same");
    }

    /// B13: removing an absent document does nothing. A removed document can be put again.
    async fn removing_an_absent_document_does_nothing(store: &Shared) {
        let make = Make::new();
        let head = starts(store, &make, vec![remove(run(1), "k"), put(run(1), "other", "")]).await;
        let head = writes(store, &make, &head, vec![remove(run(1), "k"), remove(run(1), "other")]).await;
        let head = writes(store, &make, &head, vec![remove(run(1), "other")]).await;
        let before = DocumentQuery { at: Some(0), ..documents(run(1)) };
        assert_eq!(all_documents(store, ME, before).await[0].visible_to, Some(1), "its end does not change");
        writes(store, &make, &head, vec![put(run(1), "other", "again")]).await;
        assert_eq!(shown(store, run(1), Some(2)).await, []);
        assert_eq!(shown(store, run(1), None).await, notes([("other", "again")]));
    }

    /// B13: of several writes to one key in one commit the last one wins, and no trace of the others is left.
    async fn the_last_document_write_to_a_key_wins(store: &Shared) {
        let make = Make::new();
        let one = run(1);
        let twice = vec![put(one, "twice", "1"), put(one, "between", "x"), put(one, "twice", "2")];
        let gone = vec![put(one, "gone", "1"), remove(one, "gone")];
        let back = vec![remove(one, "back"), put(one, "back", "1")];
        let head = starts(store, &make, [twice, gone, back].concat()).await;
        assert_eq!(shown(store, one, Some(0)).await, notes([("between", "x"), ("twice", "2"), ("back", "1")]));
        let swapped = vec![put(one, "back", "2"), put(one, "back", "3"), remove(one, "twice")];
        let head = writes(store, &make, &head, swapped).await;
        let ended = vec![put(one, "between", "y"), remove(one, "between")];
        writes(store, &make, &head, ended).await;
        assert_eq!(shown(store, one, Some(0)).await, notes([("between", "x"), ("twice", "2"), ("back", "1")]));
        assert_eq!(shown(store, one, Some(1)).await, notes([("between", "x"), ("back", "3")]));
        assert_eq!(shown(store, one, None).await, notes([("back", "3")]));
    }

    /// B2, B3: a document needs a version of its run from its own commit. Without one the commit is refused.
    async fn a_document_needs_a_version_from_its_own_commit(store: &Shared) {
        let make = Make::new();
        let head = starts(store, &make, vec![put(run(1), "k", "kept")]).await;
        started(store, make.create(new_run(run(2)))).await;
        let refused = Refused::NoCheckpoint { run: run(1), key: "k".to_owned() };
        let documents = vec![put(run(1), "k", "changed")];
        let alone = Commit { documents: documents.clone(), ..make.commit() };
        assert_eq!(refuse(store, alone).await, refused);
        let tried = Commit { documents: documents.clone(), ..make.step(attempt(&head, Some("{}"))) };
        assert_eq!(refuse(store, tried).await, refused, "an attempt creates no version");
        let other = Commit { documents: documents.clone(), ..make.create(new_run(run(3))) };
        assert_eq!(refuse(store, other).await, refused, "a version of another run does not count");
        let reached = Commit { send: vec![to(run(1), "x")], documents, ..make.commit() };
        assert_eq!(refuse(store, reached).await, refused, "a message creates no version");
        let removed = Commit { documents: vec![remove(run(1), "k")], ..make.commit() };
        assert_eq!(refuse(store, removed).await, refused);
        let second = vec![put(run(1), "new", ""), put(run(2), "k", "")];
        let mixed = Commit { documents: second, ..make.step(step(&head, "on")) };
        assert_eq!(refuse(store, mixed).await, Refused::NoCheckpoint { run: run(2), key: "k".to_owned() });
        assert_eq!(load(store, run(1)).await.head, head);
        assert_eq!(shown(store, run(1), None).await, notes([("k", "kept")]));
    }

    /// B2, B11: a step writes its own documents and those of the runs it starts.
    async fn a_step_writes_documents_of_the_runs_it_starts(store: &Shared) {
        let make = Make::new();
        let head = starts(store, &make, vec![]).await;
        let child = |number| NewRun {
            parent: Some(Parent { run: run(1), activation: 1, child: 0 }),
            root: run(1),
            version: number,
            ..new_run(run(number.into()))
        };
        let documents = vec![put(run(3), "k", "three"), put(run(1), "k", "one"), put(run(2), "k", "two")];
        let create = vec![child(2), child(3)];
        apply(store, Commit { create, documents, ..make.step(step(&head, "on")) }).await;
        for (number, text, version) in [(1, "one", 1), (2, "two", 2), (3, "three", 3)] {
            assert_eq!(shown(store, run(number), None).await, notes([("k", text)]));
            assert_eq!(shown(store, run(number), Some(version)).await.len(), 1);
            assert_eq!(shown(store, run(number), Some(version - 1)).await, [], "run {number}");
        }
    }

    /// Keys have 1 to 256 characters, in a put and in a removal.
    async fn document_keys_have_1_to_256_characters(store: &Shared) {
        let make = Make::new();
        let longest = "ü".repeat(256);
        let head = starts(store, &make, vec![put(run(1), &longest, ""), put(run(1), " ", "")]).await;
        assert_eq!(keys(store, documents(run(1))).await, [longest.clone(), " ".to_owned()]);
        for write in [put, |run, key: &str, _: &str| remove(run, key)] {
            let change = |key: &str| Commit {
                documents: vec![put(run(1), "fine", ""), write(run(1), key, "")],
                ..make.step(step(&head, "on"))
            };
            let refused = refuse(store, change("")).await;
            let (key, error) = (String::new(), DocumentError::EmptyKey);
            assert_eq!(refused, Refused::Document { run: run(1), key, error });
            let refused = refuse(store, change(&format!("{longest}x"))).await;
            let Refused::Document { error: DocumentError::TooLarge(exceeded), .. } = refused else {
                panic!("{refused:?}")
            };
            assert_eq!((&exceeded.limit[..], exceeded.actual, exceeded.max), ("key_chars", 257, 256));
        }
        assert_eq!(load(store, run(1)).await.head, head);
    }

    /// B13: documents are listed in the order in which they were written, in pages.
    async fn documents_are_listed_in_write_order(store: &Shared) {
        let make = Make::new();
        let one = run(1);
        let first = ["z", "y", "x", "w"].map(|key| put(one, key, "")).to_vec();
        let head = starts(store, &make, first).await;
        let second = ["m", "y", "a"].map(|key| put(one, key, "again")).to_vec();
        let head = writes(store, &make, &head, second).await;
        let many: Vec<_> = (0..12).map(|number| put(one, &format!("n{number}"), "")).collect();
        writes(store, &make, &head, many).await;
        let numbered = (0..12).map(|number| format!("n{number}"));
        let all: Vec<_> = ["z", "x", "w", "m", "y", "a"].map(str::to_owned).into_iter().chain(numbered).collect();
        for limit in [0, 1, 2, 5, 17, 18, 19, 1_000] {
            assert_eq!(keys(store, DocumentQuery { limit, ..documents(one) }).await, all, "pages of {limit}");
            let now = DocumentQuery { limit, at: Some(2), ..documents(one) };
            assert_eq!(keys(store, now).await, all, "at version 2, pages of {limit}");
            let before = DocumentQuery { limit, at: Some(1), ..documents(one) };
            assert_eq!(keys(store, before).await, all[..6], "at version 1, pages of {limit}");
            let before = DocumentQuery { limit, at: Some(0), ..documents(one) };
            assert_eq!(keys(store, before).await, ["z", "y", "x", "w"], "at version 0, pages of {limit}");
        }
        let page = store.documents(ME, DocumentQuery { limit: 18, ..documents(one) }).await.unwrap();
        assert_eq!((page.items.len(), page.next), (18, None));
    }

    /// Documents written between two pages come later in the listing, and none is listed twice.
    async fn pages_of_documents_are_stable_under_writes(store: &Shared) {
        let make = Make::new();
        let one = run(1);
        let head = starts(store, &make, ["a", "b", "c", "d"].map(|key| put(one, key, "")).to_vec()).await;
        let page = async |cursor| {
            let query = DocumentQuery { limit: 2, cursor, ..documents(one) };
            let page = store.documents(ME, query).await.unwrap();
            (page.items.into_iter().map(|document| document.key).collect::<Vec<_>>(), page.next)
        };
        let (first, next) = page(None).await;
        assert_eq!(first, ["a", "b"]);
        writes(store, &make, &head, vec![put(one, "b", "again"), remove(one, "c"), put(one, "e", "")]).await;
        let (second, next) = page(next).await;
        assert_eq!(second, ["d", "b"], "a document that is written again is listed again");
        assert_eq!(page(next).await, (vec!["e".to_owned()], None));
    }

    /// B13: documents are found by key, type and tag, now and at a version.
    async fn documents_are_found_by_key_type_and_tag(store: &Shared) {
        let make = Make::new();
        let one = run(1);
        let of = |key: &str, kind: &str, tags: &[&str]| {
            let mut write = tagged(one, key, "", tags);
            if let DocumentOp::Put { kind: named, .. } = &mut write.op {
                *named = kind.into();
            }
            write
        };
        let first = vec![
            of("a", "scan", &["x", "y"]),
            of("b", "note", &["y"]),
            of("c", "note", &[]),
            of("d", "scan", &["x%", "X"]),
        ];
        let head = starts(store, &make, first).await;
        writes(store, &make, &head, vec![of("a", "note", &["z", "x"])]).await;
        let ask = |at, key: Option<&str>, kind: Option<&str>, tag: Option<&str>| DocumentQuery {
            at,
            key: key.map(str::to_owned),
            kind: kind.map(Into::into),
            tag: tag.map(str::to_owned),
            limit: 1,
            ..documents(one)
        };
        let cases = [
            (ask(None, None, Some("note"), None), "bca"),
            (ask(Some(0), None, Some("note"), None), "bc"),
            (ask(Some(0), None, Some("scan"), None), "ad"),
            (ask(None, None, None, Some("x")), "a"),
            (ask(Some(0), None, None, Some("x")), "a"),
            (ask(None, None, None, Some("y")), "b"),
            (ask(Some(0), None, None, Some("y")), "ab"),
            (ask(Some(0), None, Some("scan"), Some("y")), "a"),
            (ask(None, None, Some("scan"), Some("y")), ""),
            (ask(None, None, None, Some("")), ""),
            (ask(None, None, None, Some("x%")), "d"),
            (ask(None, Some("a"), None, None), "a"),
            (ask(None, Some("a"), Some("scan"), None), ""),
            (ask(Some(0), Some("a"), Some("scan"), Some("y")), "a"),
            (ask(None, Some("a"), Some("note"), Some("y")), ""),
            (ask(None, Some("A"), None, None), ""),
            (ask(None, Some("none"), None, None), ""),
        ];
        for (query, expected) in cases {
            assert_eq!(keys(store, query.clone()).await.concat(), expected, "{query:?}");
        }
        let cursor = Some("0:3".to_owned());
        let late = DocumentQuery { cursor, ..ask(Some(0), Some("a"), None, None) };
        assert_eq!(keys_of_one_page(store, late).await, Vec::<String>::new(), "the document comes before the cursor");
    }

    /// B2: of many decisions on one head one is committed, and only its documents are shown.
    async fn only_the_winners_documents_are_shown(store: &Shared) {
        let make = Make::new();
        let head = starts(store, &make, vec![put(run(1), "k", "before")]).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let text = task.to_string();
            let documents = vec![put(run(1), "k", &text), put(run(1), &text, "")];
            let (store, commit) = (store.clone(), Commit { documents, ..make.step(step(&head, "on")) });
            tasks.spawn(async move { (text, store.commit(ME, commit).await.is_ok()) });
        }
        let won: Vec<_> = tasks.join_all().await.into_iter().filter(|(_, won)| *won).collect();
        assert_eq!(won.len(), 1);
        let text = &won[0].0;
        assert_eq!(shown(store, run(1), None).await, notes([("k", text), (text, "")]));
        assert_eq!(shown(store, run(1), Some(0)).await, notes([("k", "before")]));
    }
}

async fn keys_of_one_page(store: &Shared, query: DocumentQuery) -> Vec<String> {
    let page = store.documents(ME, query).await.expect("a page can be read");
    page.items.into_iter().map(|document| document.key).collect()
}
