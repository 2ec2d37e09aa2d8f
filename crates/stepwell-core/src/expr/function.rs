//! The functions of the dialect, with their parameters and descriptions.

use super::signature::{ANY, BOOLEAN, NUMBER, OBJECT, Param, STRING, list, one};

macro_rules! functions {
    ($($group:ident { $($function:ident $name:literal $written:literal [$($param:expr),*] $summary:literal)* })*) => {
        /// A function of the dialect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($($function,)*)* }

        /// All functions, sorted by group.
        const ALL: &[FunctionInfo] = &[$($(FunctionInfo {
            name: $name,
            signature: $written,
            summary: $summary,
            group: FunctionGroup::$group,
            function: Function::$function,
            params: &[$($param),*],
        },)*)*];
    };
}

/// A group of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionGroup {
    String,
    Number,
    List,
    Object,
    /// Functions for points in time.
    Date,
    /// Booleans, conditions and types.
    Logic,
}

impl FunctionGroup {
    /// Returns the name of the group, for documentation and editors.
    pub fn name(self) -> &'static str {
        match self {
            FunctionGroup::String => "string",
            FunctionGroup::Number => "number",
            FunctionGroup::List => "list",
            FunctionGroup::Object => "object",
            FunctionGroup::Date => "date",
            FunctionGroup::Logic => "logic",
        }
    }
}

/// The description of a function. Expressions can call it with or without a `$` before its name.
#[derive(Debug)]
pub struct FunctionInfo {
    /// Name of the function, without `$`.
    pub name: &'static str,
    /// The signature, such as `substring(text, start, length?)`. Arguments with `?` are optional.
    pub signature: &'static str,
    /// Description of the result, in one line.
    pub summary: &'static str,
    pub group: FunctionGroup,
    pub(super) function: Function,
    pub(super) params: &'static [Param],
}

/// Returns all functions that expressions can call, sorted by group.
pub fn functions() -> &'static [FunctionInfo] {
    ALL
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Function> {
        ALL.iter().find(|info| info.name == name).map(|info| info.function)
    }

    pub(super) fn info(self) -> &'static FunctionInfo {
        &ALL[self as usize]
    }

    pub(super) fn name(self) -> &'static str {
        self.info().name
    }

    pub(super) fn arity(self) -> (usize, usize) {
        self.info().arity()
    }
}

impl FunctionInfo {
    /// Returns the minimum and maximum number of arguments.
    pub fn arity(&self) -> (usize, usize) {
        let fewest = self.params.iter().filter(|param| !param.can_be_left_out()).count();
        let most = if self.params.iter().any(|param| param.is_many) { usize::MAX } else { self.params.len() };
        (fewest, most)
    }
}

/// A string parameter that defaults to the current item.
const TEXT: Param = one(STRING).or_here();
const COUNT: Param = one(NUMBER).or_here();
const WHATEVER: Param = one(ANY).or_here();

functions! {
    String {
        String "string" "string(value?, pretty?)" [WHATEVER, one(BOOLEAN).optional()] "the text of a value: a string unchanged, anything else as JSON"
        ToString "toString" "toString(value?)" [WHATEVER] "alias of `string`"
        Length "length" "length(text?)" [TEXT] "number of characters of a string"
        Substring "substring" "substring(text?, start, length?)" [TEXT, one(NUMBER), one(NUMBER).optional()] "part of a string; a negative start counts from the end"
        SubstringBefore "substringBefore" "substringBefore(text?, part)" [TEXT, one(STRING)] "the text before the first `part`, or the whole text if there is none"
        SubstringAfter "substringAfter" "substringAfter(text?, part)" [TEXT, one(STRING)] "the text after the first `part`, or the whole text if there is none"
        Uppercase "uppercase" "uppercase(text?)" [TEXT] "the text in upper case"
        Lowercase "lowercase" "lowercase(text?)" [TEXT] "the text in lower case"
        Trim "trim" "trim(text?)" [TEXT] "the text without leading and trailing white space, and with single spaces between words"
        Pad "pad" "pad(text?, width, filler?)" [TEXT, one(NUMBER), one(STRING).optional()] "the text padded to a width: at the end, or at the start if the width is negative"
        Contains "contains" "contains(text?, part)" [TEXT, one(STRING)] "true if the text contains `part`"
        StartsWith "startsWith" "startsWith(text?, part)" [TEXT, one(STRING)] "true if the text starts with `part`"
        EndsWith "endsWith" "endsWith(text?, part)" [TEXT, one(STRING)] "true if the text ends with `part`"
        Split "split" "split(text?, separator, limit?)" [TEXT, one(STRING), one(NUMBER).optional()] "list of the parts between separators"
        Join "join" "join(texts, separator?)" [list(STRING), one(STRING).optional()] "the strings of a list joined into one string"
        Replace "replace" "replace(text?, part, with, limit?)" [TEXT, one(STRING), one(STRING), one(NUMBER).optional()] "the text with every `part` replaced, or only the first `limit` of them"
        Base64Encode "base64encode" "base64encode(text?)" [TEXT] "the UTF-8 bytes of a string in base 64"
        Base64Decode "base64decode" "base64decode(text?)" [TEXT] "the string decoded from base 64 and UTF-8"
        EncodeUrl "encodeUrl" "encodeUrl(text?)" [TEXT] "a URL with its invalid characters percent-encoded"
        EncodeUrlComponent "encodeUrlComponent" "encodeUrlComponent(text?)" [TEXT] "a URL component, percent-encoded"
        DecodeUrl "decodeUrl" "decodeUrl(text?)" [TEXT] "inverse of `encodeUrl`"
        DecodeUrlComponent "decodeUrlComponent" "decodeUrlComponent(text?)" [TEXT] "inverse of `encodeUrlComponent`"
    }
    Number {
        Number "number" "number(value?)" [one(NUMBER | STRING | BOOLEAN).or_here()] "the number that a string or a boolean represents"
        Abs "abs" "abs(number?)" [COUNT] "the absolute value"
        Floor "floor" "floor(number?)" [COUNT] "the number rounded down"
        Ceil "ceil" "ceil(number?)" [COUNT] "the number rounded up"
        Round "round" "round(number?, digits?)" [COUNT, one(NUMBER).optional()] "the number rounded to this number of decimal places; ties go to the even digit"
        Power "power" "power(base?, exponent)" [COUNT, one(NUMBER)] "the base raised to the exponent"
        Sqrt "sqrt" "sqrt(number?)" [COUNT] "the square root"
        Sum "sum" "sum(numbers)" [list(NUMBER)] "the sum of a list"
        Max "max" "max(numbers)" [list(NUMBER)] "the largest number of a list"
        Min "min" "min(numbers)" [list(NUMBER)] "the smallest number of a list"
        Average "average" "average(numbers)" [list(NUMBER)] "the average of a list"
        FormatNumber "formatNumber" "formatNumber(number?, picture, options?)" [COUNT, one(STRING), one(OBJECT).optional()] "a number formatted with a picture such as `#,##0.00`"
        FormatBase "formatBase" "formatBase(number?, base?)" [COUNT, one(NUMBER).optional()] "a whole number in a base from 2 to 36"
        FormatInteger "formatInteger" "formatInteger(number?, picture)" [COUNT, one(STRING)] "a whole number formatted with a picture such as `w` (in words)"
        ParseInteger "parseInteger" "parseInteger(text?, picture)" [TEXT, one(STRING)] "the whole number in a text that was formatted with a picture"
    }
    List {
        Count "count" "count(list)" [list(0)] "number of items of a list; 0 for undefined, 1 for any other value"
        Len "len" "len(value)" [one(ANY)] "number of characters of a string, items of a list or fields of an object; 0 for undefined"
        Append "append" "append(first, second)" [one(ANY), one(ANY)] "two lists concatenated"
        Sort "sort" "sort(list)" [list(0)] "a list of strings or numbers, sorted; sort other lists with `^(…)`"
        Reverse "reverse" "reverse(list)" [list(0)] "a list in reverse order"
        Distinct "distinct" "distinct(list)" [one(ANY)] "a list without duplicates"
        Zip "zip" "zip(list, …)" [list(0).many()] "list of the first items of several lists, then of the second items, and so on"
    }
    Object {
        Keys "keys" "keys(object?)" [WHATEVER] "names of an object's fields, or of the fields of all objects in a list"
        Values "values" "values(object?)" [WHATEVER] "list of the values of an object's fields"
        Lookup "lookup" "lookup(object?, name)" [WHATEVER, one(STRING)] "the value of a field whose name is computed"
        Spread "spread" "spread(object?)" [WHATEVER] "an object as a list of objects with one field each"
        Merge "merge" "merge(objects)" [list(OBJECT)] "the objects of a list merged into one; later fields win"
    }
    Date {
        Now "now" "now(picture?, zone?)" [one(STRING).optional(), one(STRING).optional()] "the time of this evaluation as text; all calls in one evaluation give the same time"
        NowIso "nowIso" "nowIso()" [] "`now` without a picture: ISO 8601 text"
        Millis "millis" "millis()" [] "the time of this evaluation, in milliseconds since 1970"
        FromMillis "fromMillis" "fromMillis(millis?, picture?, zone?)" [COUNT, one(STRING).optional(), one(STRING).optional()] "a time in milliseconds since 1970, as text"
        ToMillis "toMillis" "toMillis(text?, picture?)" [TEXT, one(STRING).optional()] "the time in a text, in milliseconds since 1970"
    }
    Logic {
        Boolean "boolean" "boolean(value?)" [WHATEVER] "true if a value counts as true"
        Not "not" "not(value?)" [WHATEVER] "true if a value counts as false"
        Exists "exists" "exists(value)" [one(ANY)] "true if there is a value, including `null`"
        Coalesce "coalesce" "coalesce(value, …)" [one(ANY).many()] "the first value that is neither undefined nor null"
        Type "type" "type(value)" [one(ANY)] "`null`, `number`, `string`, `boolean`, `array` or `object`"
        Error "error" "error(message?)" [one(STRING).optional()] "ends the evaluation with an error"
        Assert "assert" "assert(condition, message?)" [one(BOOLEAN), one(STRING).optional()] "ends the evaluation with an error if the condition is not true"
    }
}
