//! Route that evaluates an expression on the given input.

use std::ops::Range;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell::Permission;
use stepwell::core::Timestamp;
use stepwell::core::expr::{Budget, Data, Expr, ExprError, ExprErrorKind};
use stepwell::core::schema::SchemaViolation;

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Route, post};
use super::shapes::InstantGiven;
use crate::routes::problem::Problem;

/// Request to evaluate an expression.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EvaluateExpression {
    /// Text of the expression.
    expression: String,
    /// Value that the expression is evaluated on, any JSON value. Default: no input.
    #[serde(default, deserialize_with = "present")]
    input: Option<Value>,
    /// Values of variables, by name without the `$`. Default: none.
    #[serde(default)]
    bindings: Map<String, Value>,
    /// True = always return a list, also for one item or none. Default: false.
    #[serde(default)]
    list: bool,
    /// Time that `$now()` returns. Default: the current time.
    #[schemars(with = "Option<InstantGiven>")]
    now: Option<Timestamp>,
}

/// Result of an expression.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Evaluated {
    /// Value of the expression; absent if it is undefined.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// True if the expression has no value, which differs from `null`.
    undefined: bool,
    /// Part of the expression that refers to a missing value; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<MissingPart>,
}

/// Part of an expression that refers to a missing value.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MissingPart {
    /// Text of the part in the expression.
    part: String,
    /// Existing name that was probably meant; absent if none is similar.
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<String>,
    /// Byte offset of the part in the expression.
    start: usize,
    /// Byte offset of the end of the part.
    end: usize,
}

pub(super) fn routes() -> Vec<Route> {
    let about = "Evaluate an expression on JSON.";
    vec![
        post("/v1/expressions/evaluate", "evaluateExpression", Permission::View, about)
            .notes("The cost limits are those of expressions in workflows. An expression that fails is a 422 `badExpression` with the position in `params`.")
            .ok::<Evaluated>("Result of the expression.")
            .to(evaluate),
    ]
}

/// Distinguishes a field that is `null` from an absent field.
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
        MissingPart { part: missing.part.into(), suggestion: missing.suggestion.map(Into::into), start, end }
    });
    Reply::ok(&Evaluated { undefined: result.is_none(), result, missing })
}

/// Creates the problem of an expression that failed to parse or to evaluate, with its position.
fn failed(error: &ExprError) -> Problem {
    let Range { start, end } = error.span.clone();
    let before = error.expr.get(..start).unwrap_or(&error.expr);
    let (line, column) =
        (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
    let is_refused = error.kind == ExprErrorKind::Unsupported;
    let violation = SchemaViolation {
        pointer: "/expression".to_owned(),
        keyword: error.code.to_owned(),
        message: error.message.to_string(),
    };
    let problem = Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "badExpression",
        format!("The expression failed: {error}."),
    );
    let problem = problem.param("code", error.code).param("refused", is_refused);
    let problem = problem.param("start", start).param("end", end);
    Problem { errors: vec![violation], ..problem.param("line", line).param("column", json!(column)) }
}
