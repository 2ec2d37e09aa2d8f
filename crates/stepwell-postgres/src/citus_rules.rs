//! The rules for statements on a Citus cluster, checked on their text: the tests have no cluster.
//!
//! Each rule stands for a statement that a real cluster has refused, sent to every shard, or executed wrongly.

use std::collections::BTreeSet;

/// Every table whose first column is the tenant.
pub(crate) const TABLES: &[&str] = &[
    "runs",
    "checkpoints",
    "documents",
    "inbox",
    "waits",
    "shadows",
    "handles",
    "cells",
    "links",
    "idempotency",
    "definitions",
    "audit",
    "unsealed",
    "seals",
    "tenants",
];

/// Expressions of the language that Citus accepts in an upsert. A function of the catalogue would have to be IMMUTABLE.
const ALLOWED_IN_UPSERTS: &[&str] = &["coalesce", "least", "greatest", "nullif"];

/// Words after which a parenthesis is not a call.
const KEYWORDS: &[&str] = &[
    "and",
    "any",
    "as",
    "by",
    "else",
    "except",
    "exists",
    "from",
    "in",
    "intersect",
    "join",
    "not",
    "on",
    "or",
    "returning",
    "select",
    "set",
    "then",
    "union",
    "using",
    "values",
    "when",
    "where",
];

/// Words that end the list of tables of a query.
const AFTER_TABLES: &[&str] = &[
    "where",
    "group",
    "order",
    "having",
    "limit",
    "offset",
    "on",
    "set",
    "returning",
    "values",
    "select",
    "for",
    "union",
    "except",
    "intersect",
    "window",
    "do",
    "conflict",
];

/// A table of a query level.
#[derive(Debug, PartialEq, Eq)]
struct TableRef<'a> {
    name: &'a str,
    alias: &'a str,
    /// The target of an insert, which takes its tenant from the query.
    is_inserted: bool,
}

/// Returns the reason that Citus would refuse a statement or execute it on every node, as far as its text shows. A
/// statement that `spans` tenants may do the latter.
pub(crate) fn refused(sql: &str, spans: bool) -> Option<&'static str> {
    let tokens = tokens(sql);
    let words: Vec<&str> = tokens.iter().map(String::as_str).collect();
    if has(&words, &["force", "row", "level", "security"]) {
        return Some("forced row-level security keeps shards from being moved");
    }
    if has(&words, &["create", "trigger"]) || has(&words, &["create", "or", "replace", "trigger"]) {
        return Some("triggers on distributed tables are refused");
    }
    if words.contains(&"set_config") {
        return Some("`set_config` does not reach the workers");
    }
    let commands = words.split(|word| *word == ";").filter(|command| !command.is_empty());
    let commands: Vec<_> = commands.collect();
    if commands.len() > 1 && commands.iter().any(|command| ["begin", "set", "commit"].contains(&command[0])) {
        return Some("the workers repeat all commands of a message");
    }
    let levels = levels(&words);
    let broken = levels.iter().flat_map(|level| arms(level)).find_map(|level| level_refused(&level, spans));
    broken.or_else(|| write_refused(&levels))
}

/// Returns the reason to refuse a statement that writes in a CTE.
fn write_refused(levels: &[Vec<&str>]) -> Option<&'static str> {
    let (last, inner) = levels.split_last()?;
    let writes =
        |level: &Vec<&str>| level.first().is_some_and(|verb| ["insert", "update", "delete"].contains(verb));
    if last.first() != Some(&"with") || !inner.iter().any(writes) {
        return None;
    }
    let verbs = ["select", "insert", "update", "delete"];
    let main = last.iter().find(|word| verbs.contains(word));
    (main != Some(&"select")).then_some("a statement that writes in a CTE does not end with a plain `select`")
}

fn level_refused(level: &[&str], spans: bool) -> Option<&'static str> {
    let tables = tables(level);
    if has(level, &["tenant", "=", "any"]) || has(level, &["tenant", "in"]) {
        return Some("rows of several tenants are selected");
    }
    if joins_tenants(level) && !spans {
        return Some("the tenant is reached through a join");
    }
    for table in tables.iter().filter(|table| !table.is_inserted && !spans) {
        let is_alone = tables.iter().filter(|table| !table.is_inserted).count() == 1;
        let is_named = is_bound(level, table.alias) || (is_alone && is_bound(level, ""));
        if !is_named {
            return Some("a table of a query level has no condition `tenant = $1`");
        }
    }
    if tables.iter().any(|table| table.is_inserted) && !takes_tenant(level, &tables) {
        return Some("an insert does not take the tenant from a row of `tenants`");
    }
    if !tables.is_empty() && !returned(level).iter().all(|column| column.contains(&".")) {
        return Some("a returned column is not qualified by an alias");
    }
    if !tables.is_empty() && calls_function_in_upsert(level) {
        return Some("an upsert calls a function, which may not be IMMUTABLE");
    }
    None
}

/// Returns true if `alias.tenant = $1` is a condition of the level. Without an alias, `tenant = $1`.
fn is_bound(level: &[&str], alias: &str) -> bool {
    let condition: Vec<&str> = match alias {
        "" => vec!["tenant", "=", "$1"],
        alias => vec![alias, ".", "tenant", "=", "$1"],
    };
    let length = condition.len();
    (1..level.len()).any(|at| {
        let is_and =
            ["where", "and", "on", "("].contains(&level[at - 1]) && level.get(at + length) != Some(&"or");
        is_and && level.get(at..at + length) == Some(&condition)
    })
}

/// Returns true if two tenants are compared with each other.
fn joins_tenants(level: &[&str]) -> bool {
    let compares = level
        .windows(5)
        .any(|part| part[0] == "tenant" && part[1] == "=" && part[3] == "." && part[4] == "tenant");
    compares
        || has(level, &["using", "(", "tenant"])
        || level.windows(2).any(|part| part == ["natural", "join"])
}

/// Returns true if the first inserted value is the tenant: `$1`, or the tenant of a row of `tenants`.
fn takes_tenant(level: &[&str], tables: &[TableRef<'_>]) -> bool {
    if has(level, &["values", "(", "$1"]) {
        return true;
    }
    let source = tables.iter().find(|table| table.name == "tenants" && !table.is_inserted);
    source.is_some_and(|source| has(level, &["select", source.alias, ".", "tenant", ","]))
}

/// Returns the expressions after `returning`.
fn returned<'a>(level: &[&'a str]) -> Vec<Vec<&'a str>> {
    let Some(at) = level.iter().position(|word| *word == "returning") else { return Vec::new() };
    let (mut depth, mut all) = (0, vec![Vec::new()]);
    for word in &level[at + 1..] {
        match *word {
            "(" => depth += 1,
            ")" => depth -= 1,
            "," if depth == 0 => {
                all.push(Vec::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(*word);
        }
    }
    all
}

fn calls_function_in_upsert(level: &[&str]) -> bool {
    let Some(at) = level.windows(3).position(|part| part == ["do", "update", "set"]) else { return false };
    let upsert = level[at + 3..].split(|word| *word == "returning").next().unwrap_or_default();
    let allowed: BTreeSet<&str> = ALLOWED_IN_UPSERTS.iter().chain(KEYWORDS).copied().collect();
    upsert.windows(2).any(|part| part[1] == "(" && is_word(part[0]) && !allowed.contains(part[0]))
}

/// Returns the tables of a level: those in the lists after `from`, `join`, `using`, `update` and `into`.
fn tables<'a>(level: &[&'a str]) -> Vec<TableRef<'a>> {
    let (mut found, mut depth, mut is_next, mut is_inserted, mut is_list) =
        (Vec::new(), 0, false, false, false);
    for (at, word) in level.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| level[at]);
        match *word {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ if depth > 0 => {}
            "from" if before(1) == "distinct" && ["is", "not"].contains(&before(2)) => {}
            "update" if ["do", "for"].contains(&before(1)) => {}
            "from" | "join" | "using" => (is_next, is_list, is_inserted) = (true, true, false),
            "update" | "into" => (is_next, is_list, is_inserted) = (true, false, *word == "into"),
            "," => is_next = is_list,
            word if AFTER_TABLES.contains(&word) => (is_next, is_list) = (false, false),
            "lateral" | "only" => {}
            word if is_next && is_word(word) => {
                is_next = false;
                let after = |step: usize| level.get(at + step).copied().unwrap_or_default();
                let alias = if after(1) == "as" { after(2) } else { after(1) };
                let has_alias = is_word(alias) && !AFTER_TABLES.contains(&alias) && !is_joining(alias);
                if TABLES.contains(&word) {
                    let alias = if has_alias { alias } else { word };
                    found.push(TableRef { name: word, alias, is_inserted });
                }
            }
            _ => is_next = false,
        }
    }
    found
}

fn is_joining(word: &str) -> bool {
    ["as", "cross", "full", "inner", "join", "left", "natural", "right", "using", "with"].contains(&word)
}

/// Splits a level into the queries that `union`, `except` and `intersect` combine.
fn arms<'a>(level: &[&'a str]) -> Vec<Vec<&'a str>> {
    let combines = |word: &&str| ["union", "except", "intersect"].contains(word);
    level.split(combines).map(<[&str]>::to_vec).collect()
}

/// Returns every query of a statement as its own list of words, the statement itself last. A query in parentheses is
/// replaced by `…` in the one around it.
fn levels<'a>(words: &[&'a str]) -> Vec<Vec<&'a str>> {
    let verbs = ["select", "insert", "update", "delete", "with", "values"];
    let (mut open, mut done) = (vec![(Vec::new(), true)], Vec::new());
    for (at, word) in words.iter().enumerate() {
        let is_query = || words.get(at + 1).is_some_and(|next| verbs.contains(next));
        match *word {
            "(" => {
                let begins = is_query();
                if let (false, Some((level, _))) = (begins, open.last_mut()) {
                    level.push("(");
                }
                open.push((Vec::new(), begins));
            }
            ")" => {
                let Some((inner, is_query)) = open.pop() else { continue };
                let Some((around, _)) = open.last_mut() else { continue };
                if is_query {
                    around.extend(["(", "…", ")"]);
                    done.push(inner);
                } else {
                    around.extend(inner);
                    around.push(")");
                }
            }
            word => {
                if let Some((level, _)) = open.last_mut() {
                    level.push(word);
                }
            }
        }
    }
    done.extend(open.into_iter().rev().map(|(level, _)| level));
    done
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn has(words: &[&str], part: &[&str]) -> bool {
    words.windows(part.len()).any(|window| window == part)
}

/// Splits a statement into words and signs, in lower case, without comments, texts and casts.
fn tokens(sql: &str) -> Vec<String> {
    let lines = sql.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    let code = lines.collect::<Vec<_>>().join(" ").to_lowercase();
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let length = match first {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            // A cast: the type says nothing about tables.
            ':' => rest.find(|c: char| c != ':' && c != '[' && c != ']' && !is_part(c)).unwrap_or(rest.len()),
            _ if is_part(first) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        if first != ':' {
            let is_text = first == '\'';
            tokens.push(if is_text { "''".to_owned() } else { rest[..length].to_owned() });
        }
        rest = rest[length..].trim_start();
    }
    tokens
}
