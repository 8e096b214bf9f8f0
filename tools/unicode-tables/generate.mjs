// generate.mjs - writes src/text/unicode_tables.c from the answers of the reference tokenizer.
//
// Place: tools; run by hand when the reference changes:
//            (cd tests/oracle && npm ci) && node tools/unicode-tables/generate.mjs
// Idea:  what a code point *is* matters less here than what the reference library takes it for, and
//        its regular expression engine, its word test and its normaliser each have a Unicode version
//        of their own. So every scalar value is put to the library itself, one property at a time,
//        in batches: code points that a Split pattern removes have the property, added tokens that
//        vanish beside a code point have met a word character, and so on.
// Check: the script stops when two answers contradict each other; tests/tokenizer_oracle_test.sh sweeps
//        all code points again through both tokenizers.
import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import path from 'node:path';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const require = createRequire(path.join(root, 'tests/oracle/package.json'));
const { Tokenizer, nfcNormalizer, byteLevelAlphabet } = require('tokenizers');
const version = require('tokenizers/package.json').version;

const CODE_POINTS = 0x110000;
const BATCH = 4096;
const CLASS = { other: 0, letter: 1, mark: 2, number: 3, space: 4 };
const WORD = 8;
const NFC_ACTIVE = 16;
const NFC_FOREIGN = 32;

const scalars = [];
for (let cp = 0; cp < CODE_POINTS; cp++) {
  if (cp < 0xd800 || cp > 0xdfff) scalars.push(cp);
}

function* batches() {
  for (let i = 0; i < scalars.length; i += BATCH) yield scalars.slice(i, i + BATCH);
}

function must(condition, what) {
  if (!condition) throw new Error(what);
}

function file(parts) {
  return Tokenizer.fromString(JSON.stringify({
    version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null,
    pre_tokenizer: null, post_processor: null, decoder: null,
    model: { type: 'BPE', vocab: {}, merges: [] }, ...parts,
  }));
}

// The scalars that match a one-character pattern of the library's regular expressions.
function matching(regex) {
  const split = file({
    pre_tokenizer: { type: 'Split', pattern: { Regex: regex }, behavior: 'Removed', invert: false },
  }).getPreTokenizer();
  const found = new Set();
  for (const batch of batches()) {
    const rest = new Set();
    for (const [piece] of split.preTokenizeString(String.fromCodePoint(...batch))) {
      for (const c of piece) rest.add(c.codePointAt(0));
    }
    for (const cp of batch) if (!rest.has(cp)) found.add(cp);
  }
  return found;
}

// For each scalar the ids that `around(c)` encodes to, cut by a separator token.
async function probe(around, flags) {
  const alphabet = [...byteLevelAlphabet()].sort();
  const vocab = Object.fromEntries(alphabet.map((c, i) => [c, i]));
  const token = (id, content, more) => ({
    id, content, single_word: false, lstrip: false, rstrip: false, normalized: false,
    special: false, ...more,
  });
  const tokenizer = file({
    added_tokens: [token(256, '<T>', flags), token(257, '<CUT>', {})],
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
    model: { type: 'BPE', vocab, merges: [] },
  });
  const answers = new Map();
  for (const batch of batches()) {
    const text = batch.map((cp) => around(String.fromCodePoint(cp)) + '<CUT>').join('');
    const encoding = await tokenizer.encode(text, null, { addSpecialTokens: false });
    let ids = [], i = 0;
    for (const id of encoding.getIds()) {
      if (id !== 257) {
        ids.push(id);
        continue;
      }
      answers.set(batch[i++], ids);
      ids = [];
    }
    must(i === batch.length, 'the separator was lost');
  }
  return answers;
}

// What the library's normaliser makes of each scalar put into `around`; a line feed cuts, since it
// takes part in nothing.
function normalised(around) {
  const nfc = nfcNormalizer();
  const answers = new Map();
  for (const batch of batches()) {
    const list = batch.filter((cp) => cp !== 10);
    const texts = list.map((cp) => around(String.fromCodePoint(cp)));
    const lines = nfc.normalizeString(texts.join('\n')).split('\n');
    must(lines.length === list.length, 'a line was lost in normalisation');
    list.forEach((cp, i) => answers.set(cp, [texts[i], lines[i]]));
  }
  return answers;
}

const flags = new Uint8Array(CODE_POINTS);

for (const [name, regex] of [['letter', '\\p{L}'], ['mark', '\\p{M}'], ['number', '\\p{N}'], ['space', '\\s']]) {
  for (const cp of matching(regex)) {
    must(flags[cp] === 0, `U+${cp.toString(16)} is in two classes`);
    flags[cp] = CLASS[name];
  }
}

// A single_word token is not taken beside a word character.
for (const [cp, ids] of await probe((c) => c + '<T>', { single_word: true })) {
  if (!ids.includes(256)) flags[cp] |= WORD;
}
// rstrip takes the white space after a token: the same set as \s, or the tables need another bit.
for (const [cp, ids] of await probe((c) => '<T>' + c, { rstrip: true })) {
  must((ids.length === 1) === (flags[cp] === CLASS.space), `U+${cp.toString(16)} strips unlike \\s`);
}

// Active: the normaliser may change the code point itself, move it among marks, or compose it with
// what stands before it. U+0334 has combining class 1 and U+0301 class 230 and neither composes with
// U+00BF, so one of the two orders is corrected if the code point has any class but 0.
const PROBES = [(c) => c, (c) => '\u00bf' + c + '\u0334', (c) => '\u00bf\u0301' + c];
// The second halves of compositions, as this runtime's newer Unicode data knows them.
const seconds = (text) => [...text.normalize('NFD')].slice(1).map((c) => c.codePointAt(0));
for (const around of PROBES) {
  for (const [cp, [before, after]] of normalised(around)) {
    if (before !== after) flags[cp] |= NFC_ACTIVE;
  }
}
for (const [, [before, after]] of normalised((c) => c.normalize('NFD'))) {
  if (before !== after) for (const cp of seconds(before)) flags[cp] |= NFC_ACTIVE;
}
// Foreign: newer Unicode data calls it active, the library does not know it. A newer normaliser must
// not see it.
for (const cp of scalars) {
  const c = String.fromCodePoint(cp);
  const isActive = PROBES.some((around) => around(c) !== around(c).normalize('NFC'));
  for (const other of [...(isActive ? [cp] : []), ...seconds(c)]) {
    if (!(flags[other] & NFC_ACTIVE)) flags[other] |= NFC_FOREIGN;
  }
}

// Two stages: the block of a code point, and the flags in the block; equal blocks are kept once.
const BLOCK_BITS = 7;
const size = 1 << BLOCK_BITS;
const blocks = new Map(), index = [];
for (let start = 0; start < CODE_POINTS; start += size) {
  const key = flags.slice(start, start + size).join(',');
  if (!blocks.has(key)) blocks.set(key, blocks.size);
  index.push(blocks.get(key));
}
// Everything after the last change of block is the same; unicode_flags() gives 0 beyond the table.
while (index.at(-1) === index.at(-2)) index.pop();
must(blocks.get(Array(size).fill(0).join(',')) === index.at(-1), 'the last block is not empty');

const rows = (list) => list.join(', ').replace(/(.{1,94})(?:, |$)/g, '    $1,\n');
const count = (mask, value) => flags.reduce((n, f) => n + ((f & mask) === value ? 1 : 0), 0);
const text = `/* unicode_tables.c - what the reference tokenizer takes each code point for.
 *
 * Place: text. Generated by tools/unicode-tables/generate.mjs from the answers of npm tokenizers
 *        ${version}; do not edit. ${count(7, 1)} letters, ${count(7, 2)} marks, ${count(7, 3)} numbers, ${count(7, 4)} spaces, ${count(8, 8)} word
 *        characters; ${count(16, 16)} active in NFC, ${count(32, 32)} foreign to it.
 * Idea:  two stages; the flags of code point c are blocks[index[c / ${size}]][c % ${size}]. */
#include "text/unicode_tables.h"

_Static_assert(UNICODE_BLOCK_BITS == ${BLOCK_BITS} && UNICODE_INDEX_COUNT == ${index.length},
               "the header must agree with the generated tables");

/* clang-format off */
const uint16_t unicode_block_index[UNICODE_INDEX_COUNT] = {
${rows(index)}};

const uint8_t unicode_blocks[][1 << UNICODE_BLOCK_BITS] = {
${[...blocks.keys()].map((b) => '{\n' + rows(b.split(',')) + '},\n').join('')}};
/* clang-format on */
`;
const out = path.join(root, 'src/text/unicode_tables.c');
writeFileSync(out, text);
console.log(`${out}: ${blocks.size} blocks, ${index.length} index entries, ${text.length} bytes`);
