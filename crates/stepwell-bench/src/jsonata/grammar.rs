//! Generates random expressions, their pictures, and JSON documents to evaluate them on.

use serde_json::{Value, json};

use crate::script::Random;

/// Generates random expressions and JSON documents.
pub(super) struct Maker(pub(super) Random);

impl Maker {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next() % end as u64) as usize
    }

    /// Returns true once in `times`.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick(&mut self, of: &[&str]) -> String {
        of[self.below(of.len())].to_owned()
    }

    fn repeated(&mut self, text: &str, most: usize) -> String {
        text.repeat(self.below(most + 1))
    }

    /// Generates an object; most fields are lists or objects.
    pub(super) fn document(&mut self) -> Value {
        let fields = 1 + self.below(3);
        Value::Object((0..fields).map(|_| (self.pick(FIELDS), self.value(3))).collect())
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(7) as i64 - 3),
            3 => json!([0.5, -1.5, 12345.675, 1e-7][self.below(4)]),
            4 => json!(self.pick(STRINGS)),
            5 | 6 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let fields = self.below(3);
                Value::Object((0..fields).map(|_| (self.pick(FIELDS), self.value(depth - 1))).collect())
            }
        }
    }

    /// Generates an expression. One in 24 has a random typing error.
    pub(super) fn source(&mut self) -> String {
        let expr = self.expression(3);
        if self.once_in(24) { self.mistyped(&expr, TYPING) } else { expr }
    }

    /// Generates an expression from one of the forms.
    fn expression(&mut self, depth: u32) -> String {
        if depth == 0 || self.once_in(8) {
            return self.pick(LEAVES);
        }
        let form = self.pick(FORMS);
        self.filled(&form, depth - 1)
    }

    /// Fills the holes of a form, which are single characters. A text in single quotes is one operand, so no hole
    /// needs parentheses around it.
    fn filled(&mut self, form: &str, depth: u32) -> String {
        let mut text = String::new();
        for c in form.chars() {
            match c {
                '#' => text.push_str(&self.expression(depth)),
                '§' | '¤' => {
                    let typed = self.pick(if c == '§' { TEXTS } else { NUMBERS });
                    text.push_str(&self.filled(&typed, depth.saturating_sub(1)));
                }
                'Ⓝ' => text.push_str(&format!("'{}'", self.number_picture())),
                'Ⓘ' => text.push_str(&format!("'{}'", self.integer_picture())),
                'Ⓣ' => text.push_str(&format!("'{}'", self.time_picture())),
                'Ⓓ' => text.push_str(&format!("'{}'", self.iso_time())),
                'Ⓞ' => text.push_str(&self.pick(OPTIONS)),
                'Ⓩ' => text.push_str(&format!("'{}'", self.pick(ZONES))),
                'Ⓜ' => text.push_str(&self.pick(MILLIS)),
                plain => text.push(plain),
            }
        }
        text
    }

    /// Inserts, deletes, replaces or doubles a character at a random position.
    fn mistyped(&mut self, text: &str, others: &[&str]) -> String {
        let mut chars: Vec<char> = text.chars().collect();
        let at = self.below(chars.len() + 1);
        let other = self.pick(others);
        let range = at..(at + 1).min(chars.len());
        match self.below(4) {
            0 => chars.splice(at..at, other.chars()).count(),
            1 => chars.splice(range, []).count(),
            2 => chars.splice(range, other.chars()).count(),
            _ => {
                let doubled = chars[range].to_vec();
                chars.splice(at..at, doubled).count()
            }
        };
        chars.into_iter().collect()
    }

    /// Generates a picture of `$formatNumber`: sub-pictures with digits, separators, exponents and surrounding text.
    fn number_picture(&mut self) -> String {
        let count = [1, 1, 1, 1, 1, 2, 2, 3][self.below(8)];
        let parts: Vec<String> = (0..count).map(|_| self.subpicture()).collect();
        let picture = parts.join(";");
        if self.once_in(6) {
            return self.mistyped(&picture, &["0", "#", ",", ".", ";", "%", "‰", "e", "-", "x", "9", "٠"]);
        }
        picture
    }

    fn subpicture(&mut self) -> String {
        let prefix = self.pick(&["", "", "", "", "EUR ", "-", "(", "e", "%", "‰", "é"]);
        let whole = self.repeated("#", 3) + &self.repeated("0", 4);
        let whole = self.grouped(&whole);
        let fraction = match self.below(3) {
            0 => {
                let digits = self.repeated("0", 3) + &self.repeated("#", 3);
                format!(".{}", if self.once_in(6) { self.grouped(&digits) } else { digits })
            }
            _ => String::new(),
        };
        let exponent = if self.once_in(8) { format!("e{}", self.repeated("0", 2)) } else { String::new() };
        let suffix = self.pick(&["", "", "", "", "%", "‰", "%%", "‰‰", "%‰", ")", " m²", "---", "e"]);
        format!("{prefix}{whole}{fraction}{exponent}{suffix}")
    }

    /// Inserts grouping separators: none, evenly, or anywhere.
    fn grouped(&mut self, digits: &str) -> String {
        let every = match self.below(6) {
            0 => 3,
            1 => 2,
            2 => {
                return digits
                    .chars()
                    .map(|c| if self.once_in(3) { format!("{c},") } else { c.into() })
                    .collect();
            }
            _ => return digits.to_owned(),
        };
        let length = digits.len();
        let separated = |at: usize| at > 0 && (length - at).is_multiple_of(every);
        digits
            .chars()
            .enumerate()
            .flat_map(|(at, c)| separated(at).then_some(',').into_iter().chain([c]))
            .collect()
    }

    /// Generates a picture of `$formatInteger` and `$parseInteger`.
    fn integer_picture(&mut self) -> String {
        if self.below(3) > 0 {
            return self.pick(INTEGER_PICTURES);
        }
        let digits = self.repeated("#", 3) + &self.pick(&["0", "00", "000", "9", "٠", "0٠", ""]);
        let mut picture = String::new();
        for digit in digits.chars() {
            picture.push(digit);
            if self.once_in(4) {
                picture.push_str(&self.pick(&[",", ".", ":", " ", "-", "é"]));
            }
        }
        picture + &self.pick(&["", "", "", ";o", ";c", ";x"])
    }

    /// Generates a picture of a time: usually a plausible one, otherwise random markers.
    fn time_picture(&mut self) -> String {
        let picture = if self.below(5) > 0 { self.pick(TIME_PICTURES) } else { self.markers() };
        if self.once_in(12) {
            self.mistyped(&picture, &["[", "]", "Y", "0", ",", "*", "-", " ", "n", "q"])
        } else {
            picture
        }
    }

    fn markers(&mut self) -> String {
        let mut picture = String::new();
        for _ in 0..1 + self.below(4) {
            let component = self.pick(COMPONENTS);
            let presentation = self.pick(PRESENTATIONS);
            let width =
                self.pick(&["", "", "", "", ",2", ",2-2", ",*-3", ",1-2", ",4", ",3-3", ",*", ",*-*"]);
            let behind = self.pick(&["-", "/", " ", ":", ".", "", ", ", "T", "[[x]]", "é"]);
            picture.push_str(&format!("[{component}{presentation}{width}]{behind}"));
        }
        picture
    }

    /// Generates a time in ISO 8601 format, which may not exist or may not be complete.
    fn iso_time(&mut self) -> String {
        let year = self.pick(&["1969", "1970", "2000", "2018", "2023", "2024", "1900", "0001", "9999", "12"]);
        let month = self.pick(&["-01", "-02", "-02", "-12", "-06", "-13", "-00", "", "-1"]);
        let day = self.pick(&["-01", "-15", "-28", "-29", "-30", "-31", "-32", "-00", "", ""]);
        let time = self.pick(&[
            "",
            "",
            "T00:00:00",
            "T23:59:59",
            "T24:00:00",
            "T25:00:00",
            "T12:60:00",
            "T12:30",
            "T09:05:06",
            " 10:00:00",
        ]);
        let fraction = self.pick(&["", "", "", ".5", ".123", ".1239", "."]);
        let zone = self.pick(&["", "", "Z", "Z", "+01:00", "-05:30", "+0530", "-0800", "+25:00", "z"]);
        format!("{year}{month}{day}{time}{fraction}{zone}")
    }
}

const FIELDS: &[&str] = &["a", "a", "b", "b", "c", "ä"];

const STRINGS: &[&str] = &["", "x", "y", "xy", "10", "a b", "é", "日本", "😀", "-1.5", "2024-02-29", "a,b"];

/// Characters of typing errors.
const TYPING: &[&str] = &[
    ".", "[", "]", "(", ")", "{", "}", ",", ":", ";", "?", "=", "<", ">", "*", "+", "-", "/", "%", "&", "!",
    "~", "^", "$", "'", "\"", "`", "7", "a", " ", "1.", "..", "in", "and ", "null", "é", "\\",
];

const LEAVES: &[&str] = &[
    "a",
    "b",
    "c",
    "ä",
    "a.b",
    "a.b.c",
    "b.c",
    "$",
    "$$",
    "$.a",
    "1",
    "2",
    "-1",
    "0",
    "0.5",
    "1.5",
    "-1.5",
    "12345.675",
    "1e3",
    "'x'",
    "'xy'",
    "'a,b'",
    "'10'",
    "'é😀'",
    "true",
    "false",
    "null",
    "[]",
    "{}",
    "[1..3]",
    "*",
    "a.*",
    "**",
    "a[0]",
    "b[-1]",
    "a[]",
    "a.b[]",
    "c.[a]",
    "a.{'k': b}",
    "missing",
    "$missing",
];

/// Forms for `§`: mostly texts, so that string functions get valid arguments.
const TEXTS: &[&str] = &[
    "'x'",
    "''",
    "'a,b'",
    "'xyz'",
    "'Hello World'",
    "'  x \\t y '",
    "'é'",
    "'ß'",
    "'日本語'",
    "'a😀b'",
    "'e\u{301}'",
    "'\\u00e9'",
    "'\\ud83d\\ude00'",
    "'%41%2F%'",
    "'%E6%97%A5'",
    "'aGVsbG8='",
    "'-12'",
    "'1,234'",
    "'XIV'",
    "'twenty-one'",
    "$string(#)",
    "('x' & #)",
    "a",
    "#",
    "#",
];

/// Forms for `¤`: mostly numbers, so that arithmetic gets valid arguments.
const NUMBERS: &[&str] = &[
    "1",
    "0",
    "-2",
    "2.5",
    "-1.5",
    "0.5",
    "1.005",
    "1e3",
    "123456.789",
    "-1234567",
    "0.00012",
    "1e-7",
    "21",
    "1999",
    "$count(#)",
    "$length($string(#))",
    "a",
    "#",
    "#",
];

const OPTIONS: &[&str] = &[
    "{}",
    "{'decimal-separator': ',', 'grouping-separator': '.'}",
    "{'zero-digit': '٠'}",
    "{'minus-sign': '~'}",
    "{'percent': 'pc', 'per-mille': 'pm'}",
    "{'digit': '@', 'pattern-separator': '|'}",
    "{'exponent-separator': 'E'}",
];

const ZONES: &[&str] = &[
    "+0000",
    "+0100",
    "-0800",
    "+0530",
    "-0530",
    "-0045",
    "0200",
    "+14",
    "-5",
    "Z",
    "",
    "+05:30",
    "+0575",
    "Europe/Paris",
];

const MILLIS: &[&str] = &[
    "0",
    "1",
    "-1",
    "1.9",
    "951782400000",
    "1709226189041",
    "1609459200000",
    "1735516800000",
    "1596240000000",
    "-62135596800000",
    "253402300799999",
    "8640000000000000",
    "9000000000000000",
    "a",
    "#",
];

const INTEGER_PICTURES: &[&str] = &[
    "0", "00", "0000", "#0", "#,##0", "#,##0", "0,000", "#.##0", "0:00,00", "0;o", "#,##0;o", "A", "a", "I",
    "i", "w", "W", "Ww", "w;o", "W;o", "Ww;o", "w;c", "٠", "１", "x", "#", "", "0٠",
];

const TIME_PICTURES: &[&str] = &[
    "[Y]-[M]-[D]",
    "[Y0001]-[M01]-[D01]",
    "[Y0001][M01][D01]",
    "[Y0001]-[M01]-[D01]T[H01]:[m01]:[s01].[f001][Z01:01t]",
    "[Y]-[M]-[D] [H]:[m]:[s].[f1]",
    "[D]/[M]/[Y] [h]:[m] [P]",
    "[h]:[m01] [PN], [D1o] [MNn] [Y]",
    "[FNn], [D1] [MNn] [Y0001]",
    "[FNn,*-3] [D] [MNn,*-3] [Y,2-2]",
    "[MN] [Dwo], [Yw]",
    "[YI].[Mi].[D]",
    "[Y0001]-[d001]",
    "[X]-W[W01]-[F1]",
    "[Y]/[M]/[w]",
    "[H01]:[m01]:[s01] [Z]",
    "[H]:[m] [z]",
    "[H01][m01][Z0000]",
    "[Y]-[M]-[D] [H][Z0]",
    "[s01].[f1]",
    "[s].[f001]",
    "[H]",
    "[D]",
    "[M]-[D]",
    "[Y] [C] [E]",
    "[Y9,999,*]",
    "[[[Y]]]",
    "[Y][q]",
    "[YN]",
];

const COMPONENTS: &[&str] =
    &["Y", "M", "D", "d", "F", "W", "w", "X", "x", "H", "h", "P", "m", "s", "f", "Z", "z", "C", "E"];

const PRESENTATIONS: &[&str] = &[
    "", "", "", "0", "1", "01", "001", "0001", "#0", "N", "n", "Nn", "I", "i", "A", "a", "w", "W", "Ww",
    "1o", "Wwo", "01:01", "9,999", "٠",
];

const FORMS: &[&str] = &[
    "(#)",
    "(#).a",
    "(#)[0]",
    "(#)[1]",
    "(#)[-1]",
    "(#)[1.5]",
    "(#)[]",
    "(#)[#]",
    "(#)[[0, 1]]",
    "missing[[0, #]]",
    "(#)[[0, -1]]",
    "(#)[[¤..¤]]",
    "a[#]",
    "b[#].c",
    "a.(#)",
    "(#).(#)",
    "(#).[#]",
    "(#).*",
    "(#).**",
    "[#, #]",
    "[#]",
    "[[#]]",
    "{'k': #}",
    "{'k': #, 'l': #}",
    "{'l': #, 'k': #}",
    "{§: #}",
    "a.{'k': #}",
    "(#){'k': #}",
    "(#){a: $count(b)}",
    "(#).$string(#)",
    "(#).$uppercase()",
    "(#).$length()",
    "((#)^($))",
    "((#)^(>a))",
    "((#)^(a, <b))",
    "(¤ + ¤)",
    "(¤ - ¤)",
    "(¤ * ¤)",
    "(¤ / ¤)",
    "(¤ % ¤)",
    "(-¤)",
    "(# & #)",
    "(# = #)",
    "(# != #)",
    "(¤ < ¤)",
    "(§ <= §)",
    "(§ > §)",
    "(¤ >= ¤)",
    "(# in #)",
    "(§ in [§, §])",
    "(a in [a, b])",
    "([#] in [[#]])",
    "(# and #)",
    "(# or #)",
    "(# ? # : #)",
    "(# ? #)",
    "(# ?? #)",
    "(# ?: #)",
    "[¤..¤]",
    "($v := #; $v)",
    "($v := #; [$v, #])",
    "($v := #; $w := $v; $v & $w)",
    "$count(#)",
    "$exists(#)",
    "$not(#)",
    "$boolean(#)",
    "$string(#)",
    "$string(#, true)",
    "$number(#)",
    "$number(§)",
    "$type(#)",
    "$append(#, #)",
    "$reverse(#)",
    "$distinct(#)",
    "$zip(#, #)",
    "$keys(#)",
    "$values(#)",
    "$spread(#)",
    "$merge([#, #])",
    "$merge(#)",
    "$sum(#)",
    "$max(#)",
    "$min(#)",
    "$average(#)",
    "$average([¤, ¤])",
    "$abs(¤)",
    "$floor(¤)",
    "$ceil(¤)",
    "$round(¤)",
    "$round(¤, 1)",
    "$round(¤, ¤)",
    "$power(¤, 2)",
    "$power(¤, ¤)",
    "$sqrt(¤)",
    "$formatBase(¤)",
    "$formatBase(¤, ¤)",
    "$formatNumber(¤, Ⓝ)",
    "$formatNumber(¤, Ⓝ)",
    "$formatNumber(¤, Ⓝ)",
    "$formatNumber(¤, Ⓝ, Ⓞ)",
    "$formatNumber(¤, §)",
    "$formatInteger(¤, Ⓘ)",
    "$formatInteger(¤, Ⓘ)",
    "$formatInteger(¤, §)",
    "$parseInteger(§, Ⓘ)",
    "$parseInteger(§, Ⓘ)",
    "($p := Ⓘ; $parseInteger($formatInteger(¤, $p), $p))",
    "$toMillis(Ⓓ)",
    "$toMillis(Ⓓ)",
    "$toMillis(§)",
    "$toMillis(Ⓓ, Ⓣ)",
    "$toMillis(§, Ⓣ)",
    "$toMillis('04.5', '[s01].[f1]')",
    "($p := Ⓣ; $toMillis($fromMillis(Ⓜ, $p), $p))",
    "($p := Ⓣ; $toMillis($fromMillis(Ⓜ, $p), $p))",
    "($p := Ⓣ; $toMillis($fromMillis(Ⓜ, $p, Ⓩ), $p))",
    "$fromMillis(Ⓜ)",
    "$fromMillis(Ⓜ, Ⓣ)",
    "$fromMillis(Ⓜ, Ⓣ)",
    "$fromMillis(Ⓜ, Ⓣ, Ⓩ)",
    "$fromMillis(Ⓜ, #, Ⓩ)",
    "$now(Ⓣ, Ⓩ)",
    "$now(Ⓣ)",
    "$base64encode(§)",
    "$base64decode(§)",
    "$base64decode($base64encode(§))",
    "$encodeUrl(§)",
    "$encodeUrlComponent(§)",
    "$decodeUrl(§)",
    "$decodeUrlComponent(§)",
    "$decodeUrl($encodeUrlComponent(§))",
    "$join([§, §], §)",
    "$join(#, §)",
    "$lookup(#, 'a')",
    "$lookup(#, §)",
    "$sort(#)",
    "$length(§)",
    "$uppercase(§)",
    "$lowercase(§)",
    "$trim(§)",
    "$contains(§, §)",
    "$split(§, §)",
    "$split(§, '')",
    "$split(§, ',', ¤)",
    "$split(§, §, #)",
    "$substring(§, ¤)",
    "$substring(§, ¤, ¤)",
    "$substring(§, #, #)",
    "$substringBefore(§, §)",
    "$substringAfter(§, 'x')",
    "$substringAfter(§, §)",
    "$pad(§, ¤)",
    "$pad(§, -4, §)",
    "$pad(§, ¤, §)",
    "$pad(§, #, #)",
    "$replace(§, §, 'z')",
    "$replace(§, §, 'z', ¤)",
    "$replace(§, #, #, #)",
    "$assert(#, 'no')",
    "$error(§)",
    "(# ~> $count())",
    "(# ~> $string())",
    "(§ ~> $uppercase ~> $length)",
    "(§ ~> $substring(¤))",
];
