//! The functions of the dialect: their names, what they take, and what is said about them.

use super::signature::{ANY, BOOLEAN, NUMBER, OBJECT, Param, STRING, list, one};

macro_rules! functions {
    ($($group:ident { $($function:ident $name:literal $written:literal [$($param:expr),*] $summary:literal)* })*) => {
        /// A function of the dialect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($($function,)*)* }

        /// Every function, for editors and documents; sorted by group.
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

/// What a function is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionGroup {
    /// Text.
    String,
    /// Numbers.
    Number,
    /// Lists.
    List,
    /// Objects.
    Object,
    /// Instants.
    Date,
    /// Truth and types.
    Logic,
}

impl FunctionGroup {
    /// Its name in documents and for editors.
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

/// What is to be known about a function that expressions can call, with or without a `$` before its name.
#[derive(Debug)]
pub struct FunctionInfo {
    /// Its name.
    pub name: &'static str,
    /// How it is called: `substring(text, start, length?)`. An argument with `?` can be left out.
    pub signature: &'static str,
    /// What it gives, in one line.
    pub summary: &'static str,
    /// What it is about.
    pub group: FunctionGroup,
    pub(super) function: Function,
    pub(super) params: &'static [Param],
}

/// The functions that expressions can call, by group.
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

    /// The fewest and the most arguments it can be called with.
    pub(super) fn arity(self) -> (usize, usize) {
        let params = self.info().params;
        let fewest = params.iter().filter(|param| !param.can_be_left_out()).count();
        let most = if params.iter().any(|param| param.is_many) { usize::MAX } else { params.len() };
        (fewest, most)
    }
}

/// A string that is the item at hand if it is left out.
const TEXT: Param = one(STRING).or_here();
const COUNT: Param = one(NUMBER).or_here();
const WHATEVER: Param = one(ANY).or_here();

functions! {
    String {
        String "string" "string(value?, pretty?)" [WHATEVER, one(BOOLEAN).optional()] "the text of a value: a string as it is, anything else as JSON"
        ToString "toString" "toString(value?)" [WHATEVER] "another name of `string`"
        Length "length" "length(text?)" [TEXT] "how many characters a string has"
        Substring "substring" "substring(text?, start, length?)" [TEXT, one(NUMBER), one(NUMBER).optional()] "a part of a string; a negative start counts from its end"
        SubstringBefore "substringBefore" "substringBefore(text?, part)" [TEXT, one(STRING)] "what stands before the first `part`; all of it if there is none"
        SubstringAfter "substringAfter" "substringAfter(text?, part)" [TEXT, one(STRING)] "what stands behind the first `part`; all of it if there is none"
        Uppercase "uppercase" "uppercase(text?)" [TEXT] "in capital letters"
        Lowercase "lowercase" "lowercase(text?)" [TEXT] "in small letters"
        Trim "trim" "trim(text?)" [TEXT] "without white space at the ends, and with single blanks between words"
        Pad "pad" "pad(text?, width, filler?)" [TEXT, one(NUMBER), one(STRING).optional()] "filled up to a width: at the end, or at the beginning if the width is negative"
        Contains "contains" "contains(text?, part)" [TEXT, one(STRING)] "whether `part` is in a string"
        StartsWith "startsWith" "startsWith(text?, part)" [TEXT, one(STRING)] "whether a string begins with `part`"
        EndsWith "endsWith" "endsWith(text?, part)" [TEXT, one(STRING)] "whether a string ends with `part`"
        Split "split" "split(text?, separator, limit?)" [TEXT, one(STRING), one(NUMBER).optional()] "the parts of a string between separators, as a list"
        Join "join" "join(texts, separator?)" [list(STRING), one(STRING).optional()] "the strings of a list as one string"
        Replace "replace" "replace(text?, part, with, limit?)" [TEXT, one(STRING), one(STRING), one(NUMBER).optional()] "with every `part` replaced, or the first `limit` of them"
        Base64Encode "base64encode" "base64encode(text?)" [TEXT] "the UTF-8 bytes of a string as base 64"
        Base64Decode "base64decode" "base64decode(text?)" [TEXT] "the string whose UTF-8 bytes are given as base 64"
        EncodeUrl "encodeUrl" "encodeUrl(text?)" [TEXT] "an address with what cannot stand in one percent-encoded"
        EncodeUrlComponent "encodeUrlComponent" "encodeUrlComponent(text?)" [TEXT] "a part of an address, percent-encoded"
        DecodeUrl "decodeUrl" "decodeUrl(text?)" [TEXT] "the reverse of `encodeUrl`"
        DecodeUrlComponent "decodeUrlComponent" "decodeUrlComponent(text?)" [TEXT] "the reverse of `encodeUrlComponent`"
    }
    Number {
        Number "number" "number(value?)" [one(NUMBER | STRING | BOOLEAN).or_here()] "the number that a string or a boolean stands for"
        Abs "abs" "abs(number?)" [COUNT] "without its sign"
        Floor "floor" "floor(number?)" [COUNT] "rounded down"
        Ceil "ceil" "ceil(number?)" [COUNT] "rounded up"
        Round "round" "round(number?, digits?)" [COUNT, one(NUMBER).optional()] "rounded to so many digits behind the point; a tie goes to the even digit"
        Power "power" "power(base?, exponent)" [COUNT, one(NUMBER)] "a power"
        Sqrt "sqrt" "sqrt(number?)" [COUNT] "the square root"
        Sum "sum" "sum(numbers)" [list(NUMBER)] "the sum of a list"
        Max "max" "max(numbers)" [list(NUMBER)] "the largest number of a list"
        Min "min" "min(numbers)" [list(NUMBER)] "the smallest number of a list"
        Average "average" "average(numbers)" [list(NUMBER)] "the mean of a list"
        FormatNumber "formatNumber" "formatNumber(number?, picture, options?)" [COUNT, one(STRING), one(OBJECT).optional()] "a number as text, after a picture such as `#,##0.00`"
        FormatBase "formatBase" "formatBase(number?, base?)" [COUNT, one(NUMBER).optional()] "a whole number as text in a base from 2 to 36"
        FormatInteger "formatInteger" "formatInteger(number?, picture)" [COUNT, one(STRING)] "a whole number as text, after a picture such as `w` (in words)"
        ParseInteger "parseInteger" "parseInteger(text?, picture)" [TEXT, one(STRING)] "the whole number that was written after a picture"
    }
    List {
        Count "count" "count(list)" [list(0)] "how many items a list has; 0 of what is undefined, 1 of anything else"
        Len "len" "len(value)" [one(ANY)] "characters of a string, items of a list, fields of an object, 0 of what is undefined"
        Append "append" "append(first, second)" [one(ANY), one(ANY)] "two lists as one"
        Sort "sort" "sort(list)" [list(0)] "a list of strings or of numbers in order; `^(…)` sorts anything else"
        Reverse "reverse" "reverse(list)" [list(0)] "a list from its end"
        Distinct "distinct" "distinct(list)" [one(ANY)] "a list with every value once"
        Zip "zip" "zip(list, …)" [list(0).many()] "the first items of several lists, then the second ones, and so on"
    }
    Object {
        Keys "keys" "keys(object?)" [WHATEVER] "the names of an object's fields, or of those of all objects of a list"
        Values "values" "values(object?)" [WHATEVER] "the values of an object's fields, as a list"
        Lookup "lookup" "lookup(object?, name)" [WHATEVER, one(STRING)] "a field by a name that is calculated"
        Spread "spread" "spread(object?)" [WHATEVER] "an object as a list of objects with one field each"
        Merge "merge" "merge(objects)" [list(OBJECT)] "the objects of a list as one; the last field of a name wins"
    }
    Date {
        Now "now" "now(picture?, zone?)" [one(STRING).optional(), one(STRING).optional()] "the instant of this evaluation as text; the same however often it is asked for"
        NowIso "nowIso" "nowIso()" [] "`now` in its plain form"
        Millis "millis" "millis()" [] "the instant of this evaluation, in milliseconds since 1970"
        FromMillis "fromMillis" "fromMillis(millis?, picture?, zone?)" [COUNT, one(STRING).optional(), one(STRING).optional()] "an instant as text"
        ToMillis "toMillis" "toMillis(text?, picture?)" [TEXT, one(STRING).optional()] "the instant a text names, in milliseconds since 1970"
    }
    Logic {
        Boolean "boolean" "boolean(value?)" [WHATEVER] "whether a value counts as true"
        Not "not" "not(value?)" [WHATEVER] "whether a value counts as false"
        Exists "exists" "exists(value)" [one(ANY)] "whether there is a value, `null` included"
        Coalesce "coalesce" "coalesce(value, …)" [one(ANY).many()] "the first value that is neither undefined nor null"
        Type "type" "type(value)" [one(ANY)] "`null`, `number`, `string`, `boolean`, `array` or `object`"
        Error "error" "error(message?)" [one(STRING).optional()] "ends the evaluation with an error"
        Assert "assert" "assert(condition, message?)" [one(BOOLEAN), one(STRING).optional()] "ends it with an error unless the condition holds"
    }
}
