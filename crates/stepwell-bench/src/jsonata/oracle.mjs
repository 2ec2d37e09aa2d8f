// Evaluates expressions with the package `jsonata`: a JSON line {expr, data} in, a JSON line {value}, {} for undefined, or
// {code} for an error out.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

const jsonata = createRequire(process.argv[2] + "/")("jsonata");

for await (const line of createInterface({ input: process.stdin })) {
  const { expr, data } = JSON.parse(line);
  let answer;
  try {
    const value = await jsonata(expr).evaluate(data);
    answer = JSON.stringify(value === undefined ? {} : { value });
  } catch (error) {
    answer = JSON.stringify({ code: String(error.code ?? error.message) });
  }
  process.stdout.write(answer + "\n");
}
