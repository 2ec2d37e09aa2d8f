//! Predicates, sorting and grouping.

use serde_json::{Value, json};

use super::{all_fail_with, all_give, all_give_on, on};

fn shop() -> Value {
    json!({"items": [
        {"name": "pen", "price": 2, "kind": "desk", "tags": ["blue", "new"]},
        {"name": "desk", "price": 120, "kind": "room"},
        {"name": "lamp", "price": 30, "kind": "desk", "tags": ["new"]},
        {"name": "rug", "kind": "room"}
    ]})
}

#[test]
fn predicates_select_by_truth_or_by_index() {
    all_give_on(
        &shop(),
        &[
            ("items[price > 10].name", json!(["desk", "lamp"])),
            ("items[price > 10][0].name", json!("desk")),
            ("items[price > 10][kind = 'desk'].name", json!("lamp")),
            ("items[kind = 'desk' and price < 10].name", json!("pen")),
            ("items['new' in tags].name", json!(["pen", "lamp"])),
            ("items[tags].name", json!(["pen", "lamp"])),
            ("items[$not($exists(price))].name", json!("rug")),
            ("items[[0, 2]].name", json!(["pen", "lamp"])),
            ("items[[1..2]].name", json!(["desk", "lamp"])),
            ("items[[-1, 0]].name", json!(["pen", "rug"])),
            ("items[$count($$.items) - 4].name", json!("pen")),
            ("(items[price > 1000].name) ?? 'none'", json!("none")),
            ("items.name[0]", json!(["pen", "desk", "lamp", "rug"])),
            ("(items.name)[0]", json!("pen")),
            ("items.tags[0]", json!(["blue", "new"])),
            ("items[name = $$.items[0].name].price", json!(2)),
        ],
    );
}

#[test]
fn empty_brackets_keep_a_list() {
    all_give_on(
        &shop(),
        &[
            ("items[name = 'pen'].price", json!(2)),
            ("items[name = 'pen'].price[]", json!([2])),
            ("items[name = 'pen'][].price", json!([2])),
            ("items[][name = 'pen'].price", json!([2])),
            ("items[0][]", json!([{"name": "pen", "price": 2, "kind": "desk", "tags": ["blue", "new"]}])),
            ("$keys(items[3])[]", json!(["kind", "name"])),
            ("$keys({'a': 1})[]", json!(["a"])),
            ("items[0].[name][]", json!([["pen"]])),
        ],
    );
    assert_eq!(on(&shop(), "items[price > 1000][]"), Ok(None));
}

#[test]
fn sorting_is_stable_and_has_directions() {
    all_give_on(
        &shop(),
        &[
            ("items^(price).name", json!(["pen", "lamp", "desk", "rug"])),
            ("items^(>price).name", json!(["desk", "lamp", "pen", "rug"])),
            ("items^(<name).name", json!(["desk", "lamp", "pen", "rug"])),
            ("items^(kind, >name).name", json!(["pen", "lamp", "rug", "desk"])),
            ("items^(kind).name", json!(["pen", "lamp", "desk", "rug"])),
            ("items^(price)[0].name", json!("pen")),
            ("items[price > 100]^(price).name", json!("desk")),
            ("[3, 1, 2]^($)", json!([1, 2, 3])),
            ("[3, 1, 2]^(-$)", json!([3, 2, 1])),
            ("$sort(items.name)", json!(["desk", "lamp", "pen", "rug"])),
        ],
    );
    let mixed = json!({"items": [{"k": 1}, {"k": "a"}, {"k": null}]});
    assert_eq!(on(&mixed, "items[[0, 1]]^(k)").unwrap_err().code, "T2007");
    assert_eq!(on(&mixed, "items[[0, 2]]^(k)").unwrap_err().code, "T2008");
    assert_eq!(on(&mixed, "$sort(items.k)").unwrap_err().code, "D3070");
}

#[test]
fn grouping_collects_values_by_key() {
    all_give_on(
        &shop(),
        &[
            ("items{kind: name}", json!({"desk": ["pen", "lamp"], "room": ["desk", "rug"]})),
            ("items{kind: $sum(price)}", json!({"desk": 32, "room": 120})),
            ("items{kind: $count($)}", json!({"desk": 2, "room": 2})),
            ("items[0]{name: price}", json!({"pen": 2})),
            ("items{name: price}", json!({"pen": 2, "desk": 120, "lamp": 30})),
            ("missing{'a': 1}", json!({"a": 1})),
            ("items.{name: price}", json!([{"pen": 2}, {"desk": 120}, {"lamp": 30}, {}])),
            ("$keys(items{kind: name})", json!(["desk", "room"])),
            ("(items{kind: name}).desk", json!(["pen", "lamp"])),
        ],
    );
    assert_eq!(on(&shop(), "items{price: name}").unwrap_err().code, "T1003");
    assert_eq!(on(&shop(), "items{kind: 1, 'desk': 2}").unwrap_err().code, "D1009");
}

#[test]
fn ranges() {
    all_give(&[
        ("[1..4]", json!([1, 2, 3, 4])),
        ("[0, 2..3, 9]", json!([0, 2, 3, 9])),
        ("[-1..1]", json!([-1, 0, 1])),
        ("[3..1]", json!([])),
        ("[1..missing]", json!([])),
        ("[1..2.0]", json!([1, 2])),
        ("[1 + 1..2 * 2]", json!([2, 3, 4])),
        ("$count([1..payload.amount])", json!(120)),
    ]);
    all_fail_with(&[
        ("[1.5..2]", "T2003"),
        ("[1..'a']", "T2004"),
        ("[0..10000000]", "D2014"),
        ("[-9223372036854775808..9223372036854775807]", "D2014"),
        ("[1..1e300]", "D2014"),
        ("[1..1000000]", "budget"),
    ]);
}
