// tokenizer_strings.mjs - texts that tell tokenizers apart, the same on every run.
//
// Place: tests/oracle, for tokenizer_oracle.mjs and tokenizer_speed.mjs.
// Idea:  a string is a few fragments of random kinds put together, so that borders between kinds (where
//        pre-tokenisers go wrong) are as frequent as the kinds themselves. Nothing depends on the
//        Unicode data of the JavaScript engine.

// Small and seedable (xorshift32).
export function randomSource(seed) {
  let state = (seed >>> 0) || 1;
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>>= 0);
  };
  const below = (n) => next() % n;
  return { below, pick: (list) => list[below(list.length)], chance: (percent) => below(100) < percent };
}

const WORDS = ('the water of river dam over spill way flow gate level turbine head and to in is was that for ' +
  'on with as be at by this have from or one had not but what all were when we there can an your which ' +
  'their said if do will each about how up out them then she many some so these would other into has more ' +
  'her two like him see time could no make than first been its who now people my made after also did off ' +
  'Tokenizer NaïveBayes café résumé coöperate Ångström señor über straße İstanbul ǅ ﬁne ﬀ Ⅷ ½ ²').split(' ');
const CODE = ['for (int i = 0; i < n; i++) {', '\treturn x->y;', 'a != b && c == d', 'fn main() -> Result<(), E> {',
  'def f(self, *args, **kwargs):', '    pass', '#include <stdio.h>', 'x += 0x1F;', '//', '/* … */', '=>', '->', '::', '<<=',
  '${HOME}/bin', '\\n\\t', "printf(\"%d\\n\", 1'000);", '<div class="a">', '</div>', '{"key": [1, 2.5e-3, null]}', '@@ -1,2 +3,4 @@',
  'SELECT * FROM t WHERE id=1;', '[[nodiscard]]', 'x?.y ?? z', '~/.config', 'a_b_c', 'camelCaseName', 'SCREAMING_CASE'];
const MARKDOWN = ['# Title\n\n', '## Sub', '* item\n', '- [ ] todo\n', '1. one\n2. two\n', '**bold**', '_it_', '`code`', '```c\nint x;\n```\n',
  '> quote\n', '| a | b |\n|---|---|\n', '[text](http://example.org/a?b=c#d)', '---\n', '~~x~~', '![i](p.png)'];
const SCRIPTS = {
  han: '中文水流过大坝的时候我们看到了很多鱼漢字繁體𠀀𪚥', kana: 'ひらがなカタカナ々ーｶﾞｷﾞがぎ', hangul: '한국어물이흐른다각힣',
  jamo: '\u1100\u1161\u11a8\u1112\u1175\u11ab', arabic: 'العربية ماءٌ يَجْرِي ٱلْكِتَابُ ۱۲۳', hebrew: 'שָׁלוֹם מים', thai: 'น้ำไหลผ่านเขื่อนกี่ที่๑๒๓',
  lao: 'ນ້ຳ', devanagari: 'क्षत्रिय पानी हिन्दी कि ड़ क़ १२३', bengali: 'বাংলা জল কো', tamil: 'தமிழ் நீர் கொ', myanmar: 'မြန်မာ ရေ', khmer: 'ទឹក',
  tibetan: 'བོད་ཆུ', cyrillic: 'Вода течёт й ё Ї', greek: 'Νερό ά ΐ Ὀδυσσεύς ᾳ', armenian: 'Ջուր և', georgian: 'წყალი', ethiopic: 'ውሃ፩፪',
  vietnamese: 'Nước chảy ế ộ ữ', rest: '𝔘𝓷𝒾①②㊗㍻Ω℧Å№™ªº',
};
const MARKS = ['\u0300', '\u0301', '\u0302', '\u0303', '\u0308', '\u030a', '\u0323', '\u0327', '\u0328', '\u0334', '\u0338', '\u0345',
  '\u035c', '\u0361', '\u0591', '\u05b0', '\u064b', '\u0651', '\u0670', '\u093c', '\u094d', '\u09be', '\u0b3e', '\u0bbe', '\u0e38', '\u0e48',
  '\u0f71', '\u1037', '\u1161', '\u11a8', '\u20d0', '\u3099', '\u309a', '\ufe20', '\ufe0f', '\u0898', '\u1ac1', '\u1dfa', '\u{1d165}', '\u{1e131}',
  '\u{11930}', '\u{16121}'];
const BASES = [...'aeiouAEOcnszdIÅΩабий\u0915\u09c7\u0b47\u0bc6\u1025ｶか\u1100가\u{11935}\u{1611e}\u2260\u226e\u00e9\u1ea1'];
const SPACES = [' ', ' ', '  ', '   ', '\t', '\t\t', '\n', '\r\n', '\r', '\u00a0', '\u2003', '\u3000', '\u0085', '\u2028', '\u200b', '\ufeff', '\u1680', '\u180e', '\v', '\f', ' \n', '\n ', ' \t '];
const PUNCTUATION = ['.', ',', '!', '?', ';', ':', '-', '—', '…', '...', '"', "'", '’', '“', '(', ')', '[', ']', '{', '}', '/', '\\', '|', '<', '>', '@', '#', '$', '€', '%', '^', '&', '*', '+', '=', '~', '`', '、', '。', '！', '«', '»', '¿', '•', '→', '\u0000', '\u001b', '\u007f'];
const CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'lL", "'d", "'D", "'\u017f", "'x", "'", "''s", "'1", "'é", "'rE", "'r", "'v", "'l", "' s"];
const EMOJI = ['😀', '👍🏽', '👩‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪', '🇩', '1️⃣', '❤️', '👨🏿‍🚀', '🫠', '🪿', '☃', '\u200d', '\ufe0f', '🏴\u{e0067}\u{e0062}\u{e007f}'];
const NARROW = [...' \t\n\r\'sStTlLrRvVeEmMdD1²9aZé中\u0301\u0323\u094d.-<>\u017f\u3000\u0085'];

const repeat = (r, list, max) => {
  let s = '';
  for (let n = 1 + r.below(max); n > 0; n--) s += r.pick(list);
  return s;
};

const KINDS = {
  words: (r) => Array.from({ length: 1 + r.below(8) }, () => r.pick(WORDS)).join(r.chance(90) ? ' ' : r.pick(SPACES)),
  code: (r) => repeat(r, CODE, 3),
  markdown: (r) => repeat(r, MARKDOWN, 3),
  script: (r) => {
    const text = [...r.pick(Object.values(SCRIPTS))];
    const from = r.below(text.length);
    return text.slice(from, from + 1 + r.below(12)).join('');
  },
  combining: (r) => Array.from({ length: 1 + r.below(4) }, () => r.pick(BASES) + repeat(r, MARKS, 4)).join(''),
  form: (r) => repeat(r, WORDS, 2).normalize(r.chance(50) ? 'NFD' : 'NFC'),
  digits: (r) => { let s = ''; for (let n = 1 + r.below(12); n > 0; n--) s += r.below(10); return s; },
  otherDigits: (r) => repeat(r, [...'٠١٢३४๕①½²Ⅻ〇'], 5),
  newlines: (r) => r.pick(['\n', '\r\n', '\r', '\n ', ' \n']).repeat(1 + r.below(12)),
  spaces: (r) => repeat(r, SPACES, 4),
  blanks: (r) => ' '.repeat(1 + r.below(20)),
  punctuation: (r) => repeat(r, PUNCTUATION, 5),
  contraction: (r) => r.pick(WORDS) + r.pick(CONTRACTIONS) + (r.chance(50) ? r.pick(WORDS) : ''),
  emoji: (r) => repeat(r, EMOJI, 4),
  narrow: (r) => repeat(r, NARROW, 12),
  run: (r) => r.pick([...'aA1. \n中\u0301é-=']).repeat(1 + r.below(70)),
  letters: (r) => repeat(r, [...'abcdefghijklmnopqrstuvwxyz'], 90),
};
// Any scalar value, the lower planes more often.
const anyCodePoint = (r) => {
  const cp = r.pick([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000]);
  const value = r.below(cp);
  return String.fromCodePoint(value >= 0xd800 && value < 0xe000 ? 0xfffd : value);
};

// kinds: which kinds of fragments may be used. `random` and `added` are extra.
export function makeStrings(count, seed, { added = [], random = true, kinds = Object.keys(KINDS) } = {}) {
  const r = randomSource(seed);
  const list = [];
  const fragment = () => {
    const roll = r.below(100);
    if (added.length > 0 && roll < 8) return r.pick(added);
    if (added.length > 0 && roll < 10) return r.pick(added).slice(r.below(3), -1 - r.below(3)); // nearly one
    if (random && roll < 18) return Array.from({ length: 1 + r.below(4) }, () => anyCodePoint(r)).join('');
    return KINDS[r.pick(kinds)](r);
  };
  const glue = () => (r.chance(60) ? '' : r.pick(SPACES));
  while (list.length < count) {
    let s = fragment();
    for (let n = r.below(6); n > 0; n--) s += glue() + fragment();
    list.push(s);
  }
  return list;
}

// Every scalar value, `size` in one string, with a text put around each and `separator` between.
export function* sweep(around, separator, size = 512, wanted = () => true) {
  let parts = [];
  for (let cp = 0; cp < 0x110000; cp++) {
    if ((cp >= 0xd800 && cp < 0xe000) || !wanted(cp)) continue;
    parts.push(around(String.fromCodePoint(cp)));
    if (parts.length === size) {
      yield parts.join(separator);
      parts = [];
    }
  }
  if (parts.length > 0) yield parts.join(separator);
}

// A plausible corpus of about `bytes` UTF-8 bytes, for timing, in documents of about 4 KB.
export function corpus(kind, bytes, seed = 7) {
  const kinds = {
    english: ['words', 'words', 'words', 'words', 'contraction'],
    code: ['code', 'code', 'blanks', 'digits'],
    multilingual: ['script', 'script', 'script', 'words'],
  }[kind];
  const r = randomSource(seed);
  const documents = [];
  for (let total = 0; total < bytes;) {
    let s = '';
    while (s.length < 4000) s += KINDS[r.pick(kinds)](r) + (kind === 'code' ? '\n' : r.pick([' ', ', ', '. ', '.\n']));
    documents.push(s);
    total += Buffer.byteLength(s);
  }
  return documents;
}
