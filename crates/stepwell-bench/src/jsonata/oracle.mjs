// Evaluates expressions with the package `jsonata`. Reads one JSON line {expr, data, bindings, changes} per expression
// and writes one JSON line: {value}, {} for undefined, {code} for an error of JSONata, or {crash} for a JavaScript
// error.
//
// `changes` are names of changes to the source of the package. A documented deviation is a change: if the changed
// package gives the result of the dialect, the deviation explains the difference, and nothing else is different. A
// planted fault is a change too.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

// The time of the evaluation, the same as in the dialect.
const NOW = 1_700_000_000_000;

class FixedDate extends Date {
  constructor(...parts) {
    super(...(parts.length > 0 ? parts : [NOW]));
  }
}

// Functions that the changed source calls.
const help = {
  fail(code) {
    throw { code, stack: new Error().stack };
  },
  sortedKeys(object) {
    const order = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
    return typeof object === "object" && object !== null ? Object.keys(object).sort(order) : [];
  },
  // A copy with sorted fields, of which the text is sorted too.
  sorted(value) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(help.sortedKeys(value).map((key) => [key, value[key]]));
  },
  // The result of an operation on numbers, which must be finite and, for integers, fit in 64 bits.
  number(result, ...operands) {
    const isWhole = operands.every(Number.isInteger) && Number.isInteger(result);
    const isTooLarge = isWhole && (result >= 2 ** 63 || result < -(2 ** 63));
    return Number.isFinite(result) && !isTooLarge ? result : help.fail("D1001");
  },
  decodeBase64(text) {
    if (!/^[A-Za-z0-9+/\s]*=*$/.test(text)) help.fail("D3137");
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.from(text, "base64"));
    } catch {
      return help.fail("D3137");
    }
  },
  // The results of the promises, each started after the one before it has ended.
  inOrder: (items) => async (start) => {
    const results = [];
    for (const [index, item] of items.entries()) results.push(await start(item, index));
    return results;
  },
  zone(text) {
    const clock = /^[+-]?[0-9]{1,4}$/.test(text) ? Number(text) : NaN;
    return Math.abs(clock) % 100 < 60 ? clock : help.fail("unsupported");
  },
  isoMillis(text) {
    const shape = /^(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?:T(\d\d)(:\d\d:\d\d(?:\.\d+)?)([+-]\d\d:?\d\d)?)?Z?$/;
    const [, year, month = "01", day = "01", hour = "00", rest = ":00:00", zone = "Z"] = shape.exec(text) ?? [];
    const days = help.utc(year, month, 0, (date) => date.getUTCDate());
    const isMidnight = hour === "24" && /^:00:00(\.0+)?$/.test(rest);
    const isDate = month >= 1 && month <= 12 && day >= 1 && day <= days && (hour < 24 || isMidnight);
    const offset = zone.replace(/(\d\d):?(\d\d)/, "$1:$2");
    const millis = isDate ? Date.parse(`${year}-${month}-${day}T${hour}${rest}${offset}`) : NaN;
    return Number.isNaN(millis) ? help.fail("D3110") : millis;
  },
  // A character of an escape sequence, which must not be half of a surrogate pair.
  unit(code, before, behind) {
    const character = String.fromCharCode(code);
    const isFirst = code >= 0xd800 && code < 0xdc00;
    const isWhole = isFirst ? /^\\u[dD][c-fC-F]/.test(behind) : (before.slice(-1) + character).isWellFormed();
    return isWhole || character.isWellFormed() ? character : help.fail("S0104");
  },
  // The regular expression for a digit.
  digit: (zero) => `[${String.fromCodePoint(zero)}-${String.fromCodePoint(zero + 9)}]`,
  // The milliseconds of a date whose year can have two digits.
  utc(year, month, day = 1, part = (date) => date.getTime()) {
    const date = new Date(0);
    date.setUTCFullYear(year, month, day);
    return part(date);
  },
  // The number of a name in a time. The day of the week does not matter.
  known: (number, component) => (number === undefined && component !== "F" ? help.fail("D3136") : number),
  // The default operators must not stand next to a comparison, a logical operator or a conditional.
  unambiguous(node) {
    const operators = ["=", "!=", "<", "<=", ">", ">=", "in", "and", "or"];
    for (const side of [node.then, node.else]) {
      const isOther = side.type === "condition" && side.value !== node.value;
      if (isOther || (side.type === "binary" && operators.includes(side.value))) help.fail("S0202");
    }
    return node;
  },
  width: (width) => (width > 1000 ? help.fail("unsupported") : width),
  // The ASCII digits for the digits of a family. Other digits do not belong to the number.
  ascii(text, zero) {
    const digit = (letter) => letter.codePointAt(0) - zero;
    const isOther = (letter) => /[0-9]/.test(letter);
    const letters = Array.from(text, (letter) => (digit(letter) >= 0 && digit(letter) < 10 ? digit(letter) : letter));
    return letters.map((letter) => (typeof letter === "string" && isOther(letter) ? "x" : letter)).join("");
  },
  // The options of a number's picture. Most are one character.
  options(options) {
    const texts = ["infinity", "minus-sign", "NaN", "percent", "per-mille"];
    for (const [name, text] of Object.entries(options)) {
      const isFitting = typeof text === "string" && (texts.includes(name) || Array.from(text).length === 1);
      if (!isFitting) help.fail("unsupported");
    }
  },
  bounded: (text) => ([...text].length <= 1000 ? text : help.fail("unsupported")),
  // The whole number in a text that matches its picture.
  integer(text, format, matcher) {
    const shapes = {
      letters: /^[a-z]*$/i,
      roman: /^[mdclxvi]*$/i,
      decimal: format.ordinal ? /(st|nd|rd|th)$/i : /^/,
    };
    if (format.primary in shapes && !shapes[format.primary].test(text)) help.fail("D3030");
    const isLower = format.primary === "letters" && format.case !== "upper";
    let number;
    try {
      number = matcher.parse(format.primary === "words" || format.primary === "decimal" ? text : isLower ? text.toLowerCase() : text.toUpperCase());
    } catch {
      help.fail("D3030");
    }
    return Number.isFinite(number) ? number : help.fail("D3030");
  },
  // The number of a name in any case. If two names are equal when they are shortened, the last one counts.
  named(names, text) {
    const isSame = (name) => name.toLowerCase() === text.toLowerCase();
    return names[Object.keys(names).findLast(isSame)];
  },
  isQuote: (letter) => letter !== "" && "'\"`\\".includes(letter),
  isFunction: (name) => functions.has(name),
  // Fails for the first call of an unknown function or with a wrong number of arguments.
  early(node) {
    if (typeof node !== "object" || node === null) return;
    const { type, lhs, rhs } = node;
    if (type === "apply") {
      [lhs, rhs.type === "function" ? rhs.arguments : rhs].forEach(help.early);
      if (rhs.type === "function") return help.called(rhs.procedure, rhs.arguments.length + 1);
      return help.isFunction(rhs.value) ? help.called(rhs, 1) : help.fail("T2006");
    }
    Object.values(node).forEach(help.early);
    if (type === "function") help.called(node.procedure, node.arguments.length);
  },
  called({ type, value }, count) {
    const [fewest, most] = (type === "variable" && functions.get(value)) || help.fail("T1006");
    if (count < fewest || count > most) help.fail("T0410");
  },
  inRange: (millis) => (Math.abs(millis) <= 8.64e15 ? millis : help.fail("unsupported")),
};

// Every change is a list of texts of the package's source and their replacements. A text must occur exactly once.
const CHANGES = {
  "exact-numbers": [
    ["result = lhs + rhs;", "result = help.number(lhs + rhs, lhs, rhs);"],
    ["result = lhs - rhs;", "result = help.number(lhs - rhs, lhs, rhs);"],
    ["result = lhs * rhs;", "result = help.number(lhs * rhs, lhs, rhs);"],
    ["result = lhs / rhs;", "result = help.number(lhs / rhs);"],
    ["result = lhs % rhs;", "result = help.number(lhs % rhs);"],
    [
      "if (precision) {\n            // shift the decimal place",
      "if (precision && !Number.isInteger(precision)) help.fail('D1001');\n        const given = arg;\n" +
        "        if (precision) {\n            // shift the decimal place",
    ],
    ["// round up to nearest int\n", "if (!Number.isFinite(arg)) return given;\n"],
  ],
  "sorted-fields": [
    [
      "return typeof arg === 'object' && arg !== null ? Object.keys(arg) : [];",
      "return help.sortedKeys(arg);",
    ],
    ["return val && isFunction(val) ? '' : val;", "return val && isFunction(val) ? '' : help.sorted(val);"],
  ],
  "membership-by-value": [["if(rhs[i] === lhs) {", "if(isDeepEqual(rhs[i], lhs)) {"]],
  budgets: [
    [
      "var padding = (new Array(padLength + 1)).join(char);",
      "if (padLength > 2 ** 26) help.fail('budget');\n            var padding = (new Array(padLength + 1)).join(char);",
    ],
    ["return parseInt(wm);", "return help.width(parseInt(wm));"],
    [
      "function decimalToRoman(value) {",
      "function decimalToRoman(value) {\n        if (value >= 1001000) help.fail('unsupported');",
    ],
    ["function analyseIntegerPicture(picture) {", "function analyseIntegerPicture(picture) {\n        help.bounded(picture);"],
    ["function analyseDateTimePicture(picture) {", "function analyseDateTimePicture(picture) {\n        help.bounded(picture);"],
    ["var subPictures = picture.split(", "var subPictures = help.bounded(picture).split("],
    [
      "function parseInteger(value, picture) {",
      "function parseInteger(value, picture) {\n        if (value !== undefined && picture !== undefined) help.bounded(value);",
    ],
    [
      "function parseDateTime(timestamp, picture) {",
      "function parseDateTime(timestamp, picture) {\n        help.bounded(timestamp);",
    ],
  ],
  "unicode-strings": [
    [
      "qstr += String.fromCharCode(codepoint);",
      "qstr += help.unit(codepoint, qstr, path.substring(position + 5));",
    ],
    [
      "result = str.split(separator, limit);",
      "result = separator === '' ? Array.from(str).slice(0, limit) : str.split(separator, limit);",
    ],
    ["global.Buffer.from(str, 'binary')", "global.Buffer.from(str, 'utf8')"],
    ["new global.Buffer.from(str, 'base64').toString('binary')", "help.decodeBase64(str)"],
  ],
  "early-errors": [
    [
      "for (; ;) {\n                ch = path.charAt(i);",
      "for (; ;) {\n                ch = path.charAt(i);\n                if (i === position && help.isQuote(ch)) help.fail('S0204');",
    ],
    [
      "' \\t\\n\\r\\v'.indexOf(ch) > -1 || Object",
      "' \\t\\n\\r\\v'.indexOf(ch) > -1 || help.isQuote(ch) || Object",
    ],
    [
      "arguments: [JSON.parse(JSON.stringify(left))]\n            };\n            this.then = left;\n            this.else = expression(0);\n            return this;",
      "arguments: [JSON.parse(JSON.stringify(left))]\n            };\n            this.then = left;\n            this.else = expression(0);\n            return help.unambiguous(this);",
    ],
    [
      "this.condition = JSON.parse(JSON.stringify(left));\n            this.then = left;\n            this.else = expression(0);\n            return this;",
      "this.condition = JSON.parse(JSON.stringify(left));\n            this.then = left;\n            this.else = expression(0);\n            return help.unambiguous(this);",
    ],
    ["if (left.type !== 'variable') {", "if (left.type !== 'variable' || ['', '$'].includes(left.value)) {"],
  ],
  "functions-without-dollar": [
    [
      "infix(\"(\", operators['('], function (left) {",
      "infix(\"(\", operators['('], function (left) {\n            if (left.type === 'name' && help.isFunction(left.value)) left.type = 'variable';",
    ],
  ],
  "package-defects": [
    [
      "if (typeof pattern === 'string') {\n                var index",
      "if (typeof pattern === 'undefined' || typeof replacement === 'undefined') return undefined;\n" +
        "            if (typeof pattern === 'string') {\n                var index",
    ],
    [
      "if (typeof separator === 'string') {",
      "if (typeof separator === 'undefined') return undefined;\n            if (typeof separator === 'string') {",
    ],
    [
      "var defaults = {\n            \"decimal-separator\"",
      "if (typeof picture === 'undefined') return undefined;\n        var defaults = {\n            \"decimal-separator\"",
    ],
    [
      "const format = analyseIntegerPicture(picture);\n        return _formatInteger(value, format);",
      "return typeof picture === 'undefined' ? picture : _formatInteger(value, analyseIntegerPicture(picture));",
    ],
    [
      "const formatSpec = analyseIntegerPicture(picture);",
      "if (typeof picture === 'undefined') return undefined;\n        const formatSpec = analyseIntegerPicture(picture);",
    ],
    ["step.keepArray = true;\n                advance(\"]\");", "step.keepArray = true;\n                advance(\"]\", true);"],
    [
      "mantissaPart = activePart.substring(0, exponentPosition);\n                exponentPart = activePart.substring(exponentPosition + 1);",
      "exponentPosition -= prefix.length;\n                mantissaPart = activePart.substring(0, exponentPosition);\n                exponentPart = activePart.substring(exponentPosition + 1);",
    ],
    [
      "if (typeof def.presentation1 === 'undefined') {",
      "if (!(def.component in defaultPresentationModifiers)) {",
    ],
    ["return lookup[value];", "return help.named(lookup, value);"],
    [
      "} else if (markerSpec.component === 'f') {",
      "} else if (markerSpec.component === 'f') {\n                if (markerSpec.names) help.fail('D3133');",
    ],
    [
      "digits.split('').map(char => String.fromCodePoint(char.codePointAt(0) - formatSpec.zeroCode + 0x30)).join('')",
      "help.ascii(digits, formatSpec.zeroCode)",
    ],
    [
      "if (typeof options !== 'undefined') {\n            utils.keys",
      "if (typeof options !== 'undefined') {\n            help.options(options);\n            utils.keys",
    ],
    [
      "groupingPosition = parts.integerPart.indexOf(properties['grouping-separator'], groupingPosition + 1);",
      "groupingPosition = part.indexOf(properties['grouping-separator'], groupingPosition + 1);",
    ],
    [
      "stringValue = [stringValue.slice(0, pos + decimalPos + 1), ",
      "decimalPos++;\n            stringValue = [stringValue.slice(0, pos + decimalPos), ",
    ],
    ["stringValue.slice(pos + decimalPos + 1)].join", "stringValue.slice(pos + decimalPos)].join"],
    ["if (pic.picture.indexOf(decimal_separator) === -1 || decimalPos", "if (decimalPos"],
    ["matcher.regex = '[0-9]';", "matcher.regex = help.digit(formatSpec.zeroCode);"],
    ["const jan1 = Date.UTC(ym.year, ym.month);", "const jan1 = help.utc(ym.year, ym.month);"],
    [
      "const today = Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate());",
      "const today = help.utc(date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate());",
    ],
    [
      "const firstJan = Date.UTC(date.getUTCFullYear(), 0);",
      "const firstJan = help.utc(date.getUTCFullYear(), 0);",
    ],
    ["const today = Date.UTC(thisYear.year, ", "const today = help.utc(thisYear.year, "],
    ["const today = Date.UTC(thisMonth.year, ", "const today = help.utc(thisMonth.year, "],
  ],
  "index-of-undefined": [
    ["if (ii === index) {\n", "if (ii === index && typeof item !== 'undefined') {\n"],
  ],
  "time-zones": [
    ["const offset = parseInt(timezone);", "const offset = help.zone(timezone);"],
    ["offsetHours = Math.floor(offset / 100);", "offsetHours = Math.trunc(offset / 100);"],
    ["formatInteger(offsetMinutes, '00')", "formatInteger(Math.abs(offsetMinutes), '00')"],
    [
      "if (offset >= 0) {\n                    componentValue",
      "if (offset < 0 && !componentValue.startsWith('-')) componentValue = '-' + componentValue;\n" +
        "                if (offset >= 0) {\n                    componentValue",
    ],
    ["return offsetHours * 60 + offsetMinutes;", "return offsetHours * 60 + (value.startsWith('-') ? -offsetMinutes : offsetMinutes);"],
  ],
  "invalid-dates": [
    ["return Date.parse(timestamp);", "return help.isoMillis(timestamp);"],
    [
      "const dateTime = new Date(millis + offsetMillis);",
      "const dateTime = new Date(help.inRange(millis + offsetMillis));",
    ],
    [
      "components[mpart.component] = mpart.parse(info[i]);",
      "const parsed = mpart.parse(info[i]);\n                    if (Number.isNaN(parsed)) return undefined;\n" +
        "                    components[mpart.component] = help.known(parsed, mpart.component);",
    ],
    ["if(components.Z || components.z) {", "help.inRange(millis);\n            if(components.Z || components.z) {"],
  ],
  "strict-integer-pictures": [
    ["const result = matchSpec.parse(value);", "const result = help.integer(value, formatSpec, matchSpec);"],
    ["digits = digits.split(',').join('');", "digits = digits.split(',').join('').split(formatSpec.groupingSeparators.character).join('');"],
  ],
  "separators-between-digits": [
    [
      "pic.integerPartGroupingPositions.forEach(function (pos) {",
      "pic.integerPartGroupingPositions.filter((pos) => pos < decimalPos).forEach(function (pos) {",
    ],
    [
      "pic.fractionalPartGroupingPositions.forEach(function (pos) {",
      "pic.fractionalPartGroupingPositions.forEach(function (pos) {\n            if (pos + decimalPos + 1 >= stringValue.length) return;",
    ],
    [
      "const pos = formattedInteger.length - separator.position;",
      "const pos = formattedInteger.length - separator.position;\n                        if (pos <= 0) return;",
    ],
  ],
  "first-error": [
    ["await Promise.all(expr.expressions\n                    .map(", "await (help.inOrder(expr.expressions)("],
    ["await Promise.all(utils.keys(groups).map(", "await (help.inOrder(utils.keys(groups))("],
  ],
};

// Realistic mistakes, planted to show that the comparison finds them.
const FAULTS = {
  "substring-length": [["var end = start >= 0 ? start + length : ", "var end = start >= 0 ? start + length + 1 : "]],
  "fraction-as-milliseconds": [["return parseFloat('0.' + value.substring(0, 3)) * 1000;", "return parseInt(value);"]],
  "wrong-code": [["error = 'D3086';", "error = 'D3085';"]],
  "lost-undefined": [["if (typeof str === 'undefined' || typeof token === 'undefined') {\n            return undefined;", "if (typeof str === 'undefined' || typeof token === 'undefined') {\n            return false;"]],
  "half-up": [["if (Math.abs(diff) === 0.5 && Math.abs(result % 2) === 1) {", "if (false) {"]],
};

// The functions of the dialect that JSONata does not have.
const EXTENSIONS = {
  values: [
    (object) => {
      if (object === undefined) return undefined;
      if (typeof object !== "object" || object === null || Array.isArray(object)) help.fail("T0410");
      return help.sortedKeys(object).map((key) => object[key]);
    },
    "<x-:x>",
  ],
};

// The functions of the dialect with the fewest and the most arguments.
const functions = new Map(Object.entries(JSON.parse(process.argv[3])));
const source = readFileSync(createRequire(process.argv[2] + "/").resolve("jsonata"), "utf8");
const packages = new Map();

function changed(names) {
  const key = names.join(" ");
  if (!packages.has(key)) {
    const edits = names.flatMap((name) => CHANGES[name] ?? FAULTS[name]);
    const text = edits.reduce((text, [from, to]) => {
      const parts = text.split(from);
      if (parts.length !== 2) throw new Error(`${parts.length - 1} occurrences of ${from}`);
      return parts.join(to);
    }, source);
    const module = { exports: {} };
    new Function("module", "exports", "Date", "help", text)(module, module.exports, FixedDate, help);
    packages.set(key, module.exports);
  }
  return packages.get(key);
}

for await (const line of createInterface({ input: process.stdin })) {
  const { expr, data, bindings, changes } = JSON.parse(line);
  const jsonata = changed(changes);
  let answer;
  try {
    const compiled = jsonata(expr);
    if (changes.includes("early-errors")) help.early(compiled.ast());
    for (const [name, extension] of Object.entries(EXTENSIONS)) compiled.registerFunction(name, ...extension);
    const value = await compiled.evaluate(data, bindings);
    answer = value === undefined ? {} : { value };
  } catch (error) {
    answer = error.code ? { code: String(error.code) } : { crash: String(error.message ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
