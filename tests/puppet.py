#!/usr/bin/env python3
"""puppet.py - writes a tiny checkpoint whose output is scripted.

Place:  tests; whole-program tests run the program on it. Python 3 standard library only.
Idea:   a real hybrid MoE model (one gated-delta-net layer, one attention layer, experts) whose output
        projections are all zero. The residual stream at the last position is then the last token's
        embedding, a random vector of +1 and -1, and the row of lm_head for token b is the sum of the
        embeddings of the tokens that b follows. So token a is answered by its scripted successor, with
        a logit of HIDDEN against noise of a few times sqrt(HIDDEN). One coordinate is +1 everywhere; the
        end token's row has a large value there, so a token without a successor is followed by the end.
        Everything else is real: loader, tokenizer, sampler, parsers, event stream.
Limit:  only the last token decides, hence no piece may occur twice, and a trigger may not occur in an
        answer. A piece that would is joined with its neighbour into a new vocabulary entry (so the
        tokens are not those of the real tokenizer; the text is the same). The margins are checked
        before anything is written.

    tests/puppet.py --out /tmp/p --prompt-tail '<think>\\n' --answer 'I see.\\n</think>\\n\\nHello!'
    tests/puppet.py --out /tmp/p --prompt-tail '</think>\\n\\n' --exact --answer DE FG HIJ
    tests/puppet.py --out /tmp/p --ids --prompt-tail 198 --answer 12 40 77 --cycle

Each --prompt-tail names a trigger: the last token of its text. Several in a row share the answer that
follows; a --prompt-tail after an --answer begins another script. In texts, \\n, \\t, \\\\ and \\xNN (one
raw byte) are escapes. The tokens of each script are printed as `trigger ids -> answer ids`.
"""
import argparse
import json
import os
import random
import struct
import sys

HIDDEN = 256
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
KEY_HEADS, VALUE_HEADS, STATE_DIM, TAPS = 2, 4, 32, 4
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_WIDTH = 4, 2, 32
END_BASE = HIDDEN // 2          # logit of the end token after any token
MARGIN_SCRIPTED = HIDDEN // 4   # lead of the successor over everything else
MARGIN_END = HIDDEN // 16       # lead of the end token after a token without a successor
ATTEMPTS_MAX = 20               # seeds tried until the margins hold


def fail(text):
    sys.exit("puppet: " + text)


def unescape(text):
    """The bytes that an argument stands for."""
    out, i = bytearray(), 0
    simple = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
    while i < len(text):
        if text[i] != "\\":
            out += text[i].encode("utf-8", "surrogateescape")
            i += 1
        elif text[i + 1:i + 2] in simple:
            out += simple[text[i + 1]]
            i += 2
        elif text[i + 1:i + 2] == "x":
            try:
                out.append(int(text[i + 2:i + 4], 16))
            except ValueError:
                fail(f"bad escape at {i} in {text!r}")
            i += 4
        else:
            fail(f"bad escape at {i} in {text!r}")
    return bytes(out)


def byte_alphabet():
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    chars, extra = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in chars:
            chars[b] = chr(256 + extra)
            extra += 1
    return chars


class Vocabulary:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.file = json.load(f)
        self.alphabet = byte_alphabet()
        back = {c: b for b, c in self.alphabet.items()}
        self.id_of = {bytes(back[c] for c in piece): i
                      for piece, i in self.file["model"]["vocab"].items()}
        self.added = {a["content"].encode(): a["id"] for a in self.file["added_tokens"]}
        self.size = 1 + max(list(self.id_of.values()) + list(self.added.values()))
        self.longest = max(map(len, list(self.id_of) + list(self.added)))

    def find(self, piece):
        return self.added.get(piece, self.id_of.get(piece))

    def find_or_add(self, piece):
        """The id of exactly these bytes; a new entry, which no merge produces, if need be."""
        found = self.find(piece)
        if found is None:
            vocab = self.file["model"]["vocab"]
            # An added token that is no vocabulary entry is numbered after the vocabulary, which is
            # about to grow; as entries they keep their numbers.
            for content, i in self.added.items():
                vocab["".join(self.alphabet[b] for b in content)] = i
            found = self.size
            self.id_of[piece] = found
            vocab["".join(self.alphabet[b] for b in piece)] = found
            self.size += 1
        return found

    def last_token(self, text):
        """The token that a prompt ending in text ends with: an added one, else the longest."""
        after = 0 # pieces do not reach back over an added token
        for content, i in self.added.items():
            if text.endswith(content):
                return i
            after = max(after, text.rfind(content) + len(content) if content in text else 0)
        for at in range(max(after, len(text) - self.longest), len(text)):
            if text[at:] in self.id_of:
                return self.id_of[text[at:]]
        return fail(f"no token ends {text!r}")

    def cut(self, text, taken):
        """Cut text into pieces, the longest first. One that would repeat or is in taken grows by the
        bytes that follow, or at the end of the text joins the piece before, into a new entry."""
        pieces, used, at = [], set(taken), 0
        while at < len(text):
            n = self._longest(text, at)
            while self.find(text[at:at + n]) in used and at + n < len(text):
                n += 1
            while self.find(text[at:at + n]) in used and pieces:
                before = pieces.pop()
                used.discard(self.find(before))
                at, n = at - len(before), n + len(before)
            piece = text[at:at + n]
            used.add(self.find_or_add(piece))
            pieces.append(piece)
            at += n
        return [self.find(p) for p in pieces]

    def _longest(self, text, at):
        lengths = range(min(self.longest, len(text) - at), 0, -1)
        for known in (self.added, self.id_of):
            for n in lengths:
                if text[at:at + n] in known:
                    return n
        return 1


class Ordered(argparse.Action):
    """Keeps --prompt-tail and --answer in the order in which they were given."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.items = getattr(namespace, "items", None) or []
        for v in values if isinstance(values, list) else [values]:
            namespace.items.append((self.dest, v))


def parse_arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, metavar="DIR")
    p.add_argument("--prompt-tail", action=Ordered, metavar="TEXT")
    p.add_argument("--answer", action=Ordered, nargs="+", metavar="TEXT")
    p.add_argument("--ids", action="store_true", help="tails and answers are token ids")
    p.add_argument("--exact", action="store_true",
                   help="each answer argument is one token; missing ones join the vocabulary")
    p.add_argument("--cycle", action="store_true", help="an answer begins anew instead of ending")
    p.add_argument("--end", default="<|im_end|>", metavar="TOKEN", help="the end token")
    p.add_argument("--nan", default=None, metavar="TEXT",
                   help="the embedding of this token is NaN: a request that reaches it fails")
    p.add_argument("--context", type=int, default=8192, metavar="N")
    p.add_argument("--seed", type=int, default=1, metavar="N")
    p.add_argument("--from", dest="source", default=os.path.join(here, "..", "models", "rill"),
                   metavar="DIR", help="where tokenizer and chat template come from")
    args = p.parse_args()
    if not getattr(args, "items", None):
        p.error("--prompt-tail and --answer are needed")
    return args


def group_scripts(items):
    """[(tails, pieces)] from the ordered arguments."""
    scripts = []
    for kind, value in items:
        if kind == "prompt_tail":
            if not scripts or scripts[-1][1]:
                scripts.append(([], []))
            scripts[-1][0].append(value)
        else:
            if not scripts:
                fail("--answer before any --prompt-tail")
            scripts[-1][1].append(value)
    if not all(pieces for _, pieces in scripts):
        fail("--prompt-tail without an --answer")
    return scripts


def to_ids(vocabulary, args, scripts):
    def number(text):
        if not text.isdigit() or int(text) >= vocabulary.size:
            fail(f"'{text}' is no token id below {vocabulary.size}")
        return int(text)

    tails = [[number(t) if args.ids else vocabulary.last_token(unescape(t)) for t in tails]
             for tails, _ in scripts]
    end = vocabulary.find(unescape(args.end))
    if end is None:
        fail(f"no token '{args.end}'")
    taken = {t for group in tails for t in group} | {end}
    out = []
    for (_, pieces), triggers in zip(scripts, tails):
        if args.ids:
            ids = [number(p) for p in pieces]
        elif args.exact:
            ids = [vocabulary.find_or_add(unescape(p)) for p in pieces]
        else:
            text = b"".join(map(unescape, pieces))
            ids = vocabulary.cut(text, taken)
        for position, i in enumerate(ids):
            if i in taken:
                fail(f"token {i} (place {position} of the answer) occurs twice, or is a trigger or "
                     "the end token: only the last token decides what follows")
            taken.add(i)
        out.append((triggers, ids))
    return out, end


def successors(scripts, end, cycle):
    follow = {}
    for triggers, ids in scripts:
        for t in triggers:
            if follow.setdefault(t, ids[0]) != ids[0]:
                fail(f"token {t} triggers two answers")
        follow.update(zip(ids, ids[1:]))
        follow[ids[-1]] = ids[0] if cycle else end
    return follow


def choose_embeddings(n, follow, end, seed):
    """Random sign vectors, as integers of HIDDEN bits (bit 0: coordinate 0, always +1), for which
    every margin holds. Dot products are HIDDEN - 2 * (number of different bits)."""
    before = {}
    for a, b in follow.items():
        before.setdefault(b, []).append(a)
    for attempt in range(ATTEMPTS_MAX):
        rng = random.Random(seed * 1000 + attempt)
        rows = [rng.getrandbits(HIDDEN) | 1 for _ in range(n)]
        if all(margin_holds(a, rows, before, follow.get(a, end), end, a in follow)
               for a in range(n)):
            return rows, before
    return fail("the margins do not hold for any seed: the script is too long")


def margin_holds(a, rows, before, winner, end, is_scripted):
    best, lead = 0, None # rows without predecessors have logit 0
    for b in set(before) | {end}:
        logit = sum(HIDDEN - 2 * bin(rows[a] ^ rows[p]).count("1") for p in before.get(b, ()))
        if b == end:
            logit += END_BASE
        if b == winner:
            lead = logit
        else:
            best = max(best, logit)
    return lead - best >= (MARGIN_SCRIPTED if is_scripted else MARGIN_END)


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if bits & 0xFFFF:
        fail(f"{value} is not exact in bfloat16")
    return struct.pack("<H", bits >> 16)


def signs(bits):
    plus, minus = bf16(1.0), bf16(-1.0)
    return b"".join(plus if bits >> i & 1 else minus for i in range(HIDDEN))


def head_rows(n, rows, before, end):
    out = [bytes(2 * HIDDEN)] * n
    for b in set(before) | {end}:
        row = [sum(1 if rows[p] >> i & 1 else -1 for p in before.get(b, ())) for i in range(HIDDEN)]
        if b == end:
            row[0] += END_BASE
        out[b] = b"".join(bf16(float(v)) for v in row)
    return b"".join(out)


def noise(rng, count):
    table = [bf16((i - 128) / 2048) for i in range(256)]
    return b"".join(table[b] for b in rng.randbytes(count))


def build_tensors(n, rows, before, end, nan_id, seed):
    rng = random.Random(seed)
    tensors = {}

    def put(name, shape, data):
        tensors[name] = (shape, data)

    def random_matrix(name, *shape):
        count = 1
        for s in shape:
            count *= s
        put(name, shape, noise(rng, count))

    def constant(name, value, *shape):
        count = 1
        for s in shape:
            count *= s
        put(name, shape, bf16(value) * count)

    nan_row = struct.pack("<H", 0x7FC0) * HIDDEN
    put("model.embed_tokens.weight", (n, HIDDEN),
        b"".join(nan_row if i == nan_id else signs(r) for i, r in enumerate(rows)))
    put("lm_head.weight", (n, HIDDEN), head_rows(n, rows, before, end))
    constant("model.norm.weight", 0.0, HIDDEN) # zero-centred: the factor is 1 + w
    key, value = KEY_HEADS * STATE_DIM, VALUE_HEADS * STATE_DIM
    for layer in range(2):
        p = f"model.layers.{layer}."
        constant(p + "input_layernorm.weight", 0.0, HIDDEN)
        constant(p + "post_attention_layernorm.weight", 0.0, HIDDEN)
        if layer == 0:
            p += "linear_attn."
            random_matrix(p + "in_proj_qkv.weight", 2 * key + value, HIDDEN)
            random_matrix(p + "in_proj_z.weight", value, HIDDEN)
            random_matrix(p + "in_proj_a.weight", VALUE_HEADS, HIDDEN)
            random_matrix(p + "in_proj_b.weight", VALUE_HEADS, HIDDEN)
            random_matrix(p + "conv1d.weight", 2 * key + value, 1, TAPS)
            constant(p + "A_log", 0.5, VALUE_HEADS)
            constant(p + "dt_bias", 0.25, VALUE_HEADS)
            constant(p + "norm.weight", 1.0, STATE_DIM)
            constant(p + "out_proj.weight", 0.0, HIDDEN, value)
        else:
            p += "self_attn."
            random_matrix(p + "q_proj.weight", HEADS * 2 * HEAD_DIM, HIDDEN)
            random_matrix(p + "k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
            random_matrix(p + "v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
            constant(p + "q_norm.weight", 0.0, HEAD_DIM)
            constant(p + "k_norm.weight", 0.0, HEAD_DIM)
            constant(p + "o_proj.weight", 0.0, HIDDEN, HEADS * HEAD_DIM)
        p = f"model.layers.{layer}.mlp."
        random_matrix(p + "gate.weight", EXPERTS, HIDDEN)
        random_matrix(p + "experts.gate_up_proj", EXPERTS, 2 * EXPERT_WIDTH, HIDDEN)
        constant(p + "experts.down_proj", 0.0, EXPERTS, HIDDEN, EXPERT_WIDTH)
        random_matrix(p + "shared_expert.gate_proj.weight", EXPERT_WIDTH, HIDDEN)
        random_matrix(p + "shared_expert.up_proj.weight", EXPERT_WIDTH, HIDDEN)
        constant(p + "shared_expert.down_proj.weight", 0.0, HIDDEN, EXPERT_WIDTH)
        random_matrix(p + "shared_expert_gate.weight", 1, HIDDEN)
    return tensors


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name in sorted(tensors):
        shape, data = tensors[name]
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            f.write(tensors[name][1])


def model_config(n, end, context):
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16", "vocab_size": n, "hidden_size": HIDDEN, "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"], "hidden_act": "silu",
        "max_position_embeddings": context, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "attention_bias": False, "linear_conv_kernel_dim": TAPS,
        "linear_key_head_dim": STATE_DIM, "linear_value_head_dim": STATE_DIM,
        "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS,
        "num_experts": EXPERTS, "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_WIDTH, "shared_expert_intermediate_size": EXPERT_WIDTH,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0,
                            "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2],
                            "mrope_interleaved": True},
        "mamba_ssm_dtype": "float32", "eos_token_id": end, "bos_token_id": None,
    }


def main():
    args = parse_arguments()
    vocabulary = Vocabulary(os.path.join(args.source, "tokenizer.json"))
    scripts, end = to_ids(vocabulary, args, group_scripts(args.items))
    follow = successors(scripts, end, args.cycle)
    nan_id = None
    if args.nan is not None:
        nan_id = int(args.nan) if args.ids else vocabulary.find(unescape(args.nan))
        if nan_id is None or nan_id >= vocabulary.size:
            fail(f"no token '{args.nan}'")
    # A few rows more than the tokenizer knows, as real checkpoints have.
    n = (vocabulary.size + 64) // 64 * 64
    rows, before = choose_embeddings(n, follow, end, args.seed)

    os.makedirs(args.out, exist_ok=True)

    def write_json(name, value):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)

    write_safetensors(os.path.join(args.out, "model.safetensors"),
                      build_tensors(n, rows, before, end, nan_id, args.seed))
    write_json("config.json", model_config(n, end, args.context))
    write_json("generation_config.json", {"eos_token_id": [end]})
    write_json("tokenizer.json", vocabulary.file)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        with open(os.path.join(args.source, name), "rb") as f:
            data = f.read()
        with open(os.path.join(args.out, name), "wb") as f:
            f.write(data)
    for triggers, ids in scripts:
        print(" ".join(map(str, triggers)), "->", " ".join(map(str, ids)))


if __name__ == "__main__":
    main()
