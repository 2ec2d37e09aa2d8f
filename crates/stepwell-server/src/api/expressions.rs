//! Expressions, tried out on whatever is given.

use std::ops::Range;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell::Permission;
use stepwell::core::Timestamp;
use stepwell::core::expr::{Budget, Data, Expr, ExprError, ExprErrorKind};
use stepwell::core::schema::Misfit;

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Route, post};
use super::shapes::InstantGiven;
use crate::routes::problem::Problem;

/// An expression, and what it is evaluated on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EvaluateExpression {
    /// The expression.
    expression: String,
    /// What it is evaluated on: names at the top are its fields. Left out, there is no input.
    #[serde(default, deserialize_with = "present")]
    input: Option<Value>,
    /// Variables, named without their `$`.
    #[serde(default)]
    bindings: Map<String, Value>,
    /// Asks for a list: one item stays a list, and none is an empty list.
    #[serde(default)]
    list: bool,
    /// What `$now()` is; left out, it is now.
    #[schemars(with = "Option<InstantGiven>")]
    now: Option<Timestamp>,
}

/// What an expression came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Evaluated {
    /// The value; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// It came to nothing, which is another thing than `null`.
    undefined: bool,
    /// The part of the expression that is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<MissingPart>,
}

/// A part of an expression that is not there.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MissingPart {
    /// The part, as it is written.
    part: String,
    /// A name that is there and was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    meant: Option<String>,
    /// Its first byte in the expression.
    start: usize,
    /// The byte after it.
    end: usize,
}

pub(super) fn routes() -> Vec<Route> {
    let about = "Evaluates an expression on JSON.";
    vec![
        post("/v1/expressions/evaluate", "evaluateExpression", Permission::View, about)
            .notes("It may cost as much as one in a workflow may. One that fails is 422 `badExpression`; `params` say where.")
            .ok::<Evaluated>("What it came to.")
            .to(evaluate),
    ]
}

/// A `null` that is there is one.
fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

async fn evaluate(call: Call<Nothing, Nothing, Json<EvaluateExpression>>) -> Result<Reply, Problem> {
    let now = call.server.engine.now();
    let Json(EvaluateExpression { expression, input, bindings, list, now: at }) = call.body;
    let data = input.as_ref().map_or_else(Data::nothing, Data::new);
    let scope = data.with_bindings(&bindings).with_now(at.unwrap_or(now));
    let expr = Expr::parse(&expression).map_err(|error| failed(&error))?;
    let mut budget = Budget::default();
    let found = match list {
        true => expr.eval_list(&scope, &mut budget).map(|found| found.map(Value::Array)),
        false => expr.eval(&scope, &mut budget),
    };
    let result = found.map_err(|error| failed(&error))?;
    let missing = match result {
        None => expr.missing(&scope, &mut Budget::default()),
        Some(_) => None,
    };
    let missing = missing.map(|missing| {
        let Range { start, end } = missing.span();
        MissingPart { part: missing.part.into(), meant: missing.meant.map(Into::into), start, end }
    });
    Reply::ok(&Evaluated { undefined: result.is_none(), result, missing })
}

/// What is wrong with an expression, and where.
fn failed(error: &ExprError) -> Problem {
    let Range { start, end } = error.span.clone();
    let before = error.expr.get(..start).unwrap_or(&error.expr);
    let (line, column) =
        (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
    let is_refused = error.kind == ExprErrorKind::Unsupported;
    let misfit = Misfit {
        pointer: "/expression".to_owned(),
        keyword: error.code.to_owned(),
        message: error.message.to_string(),
    };
    let problem =
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "badExpression", format!("The expression: {error}."));
    let problem = problem.param("code", error.code).param("refused", is_refused);
    let problem = problem.param("start", start).param("end", end);
    Problem { errors: vec![misfit], ..problem.param("line", line).param("column", json!(column)) }
}
