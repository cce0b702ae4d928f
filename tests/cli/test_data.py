#!/usr/bin/env python3
"""tokenize, token files with an index, mixtures, and info: what people have, through the programs."""
import gzip
import json
import os
import pathlib
import resource
import struct
import subprocess

from support import BIN, SMALL, checkpoint_bytes, main, metrics, refused, run, text, train

SHORT = [*SMALL, "--eval-every", "0", "--schedule", "constant", "--warmup", "0"]


def corpus(folder):
    """Texts in every form: a folder with text and JSON lines, one of them compressed."""
    root = pathlib.Path(folder) / "corpus"
    root.mkdir(exist_ok=True)
    words = pathlib.Path(text(folder)).read_text().split(" ")
    (root / "a.txt").write_text(" ".join(words[:900]))
    lines = "".join(json.dumps({"id": i, "text": " ".join(words[i * 20:i * 20 + 5 + i % 15])}) + "\n" for i in range(100))
    (root / "b.jsonl").write_text(lines)
    with gzip.open(root / "c.jsonl.gz", "wt") as out:
        out.write(lines)
    return root


def tokenizer(folder):
    out = pathlib.Path(folder) / "tokenizer.json"
    if not out.exists():
        train("--data", text(folder), "--vocab", 300, "--out", out, program="train_tokenizer")
    return out


def tokenized(folder, name="tokens", *more):
    out = f"{folder}/{name}"
    done = train("--data", corpus(folder), "--tokenizer", tokenizer(folder), "--out", out, *more, program="tokenize")
    return out, done.stdout


def pair(stem):
    return [pathlib.Path(stem + end).read_bytes() for end in (".bin", ".idx")]


def documents_of(stem):
    tokens, index = pair(stem)
    assert index[:9] == b"MMIDIDX\0\0" and index[17] == 8, index[:18]
    sequences, entries = struct.unpack("<2q", index[18:34])
    ids = struct.unpack(f"<{len(tokens) // 2}H", tokens)
    begins = struct.unpack(f"<{sequences}q", index[34 + 4 * sequences:34 + 12 * sequences])
    firsts = struct.unpack(f"<{entries}q", index[34 + 12 * sequences:])
    ends = [begins[f] // 2 if f < sequences else len(ids) for f in firsts]
    return [ids[a:b] for a, b in zip(ends, ends[1:])]


def texts_become_documents(folder):
    stem, out = tokenized(folder)
    documents = documents_of(stem)
    assert len(documents) == 201 and all(d[-1] == 299 for d in documents), (len(documents), documents[0])
    assert documents[1:101] == documents[101:], "the compressed lines are the plain ones"
    assert "of 16 bits, in 201 documents" in out and "token 299" in out, out
    assert sorted(p.name for p in pathlib.Path(folder).glob("tokens*")) == ["tokens.bin", "tokens.idx"]
    # Several processes: each takes its share, and together they are all.
    parts = [documents_of(tokenized(folder, f"part{i}", "--part", f"{i}/3")[0]) for i in (1, 2, 3)]
    assert [parts[i % 3][i // 3] for i in range(201)] == documents
    # Bytes have no token for the end of a document.
    train("--data", f"{folder}/corpus/a.txt", "--tokenizer", "bytes", "--out", f"{folder}/bytes", program="tokenize")
    assert bytes(documents_of(f"{folder}/bytes")[0]) == (corpus(folder) / "a.txt").read_bytes()


def conversion_resumes(folder):
    whole, _ = tokenized(folder, "whole")
    args = ["--data", corpus(folder), "--tokenizer", tokenizer(folder), "--out", f"{folder}/cut", "--save-every", "2000"]
    # The disk fills up again and again; what was saved stays, and --resume goes on from there.
    failed, resumed_late = 0, False
    done = run("tokenize", *args, env={"WEFT_TEST_DISK_FULL_AFTER": "8000"})
    while done.returncode != 0 and failed < 20:
        refused(done, 1, "No space left on device")
        failed += 1
        refused(run("tokenize", *args), 2, "--out:", "has begun", "--resume")
        done = run("tokenize", *args, "--resume", env={"WEFT_TEST_DISK_FULL_AFTER": "8000"})
        resumed_late |= "after " in done.stdout and "after 0 documents" not in done.stdout
    assert done.returncode == 0 and failed >= 2 and resumed_late, (done, failed)
    assert pair(f"{folder}/cut") == pair(whole)
    assert "already done" in train(*args, "--resume", program="tokenize").stdout
    refused(run("tokenize", *args), 2, "--out:", "cut.idx", "exists already")


def output_inside_the_data(folder):
    """The files that a conversion writes are none of those that it reads, also when it goes on."""
    root = corpus(folder)
    args = ["--data", root, "--tokenizer", tokenizer(folder), "--out", f"{root}/../corpus/cut"]
    refused(run("tokenize", *args, env={"WEFT_TEST_DISK_FULL_AFTER": "5000"}), 1, "No space left")
    train(*args, "--resume", program="tokenize")
    for end in (".bin", ".idx"):
        (root / f"cut{end}").rename(f"{folder}/cut{end}")
    whole, _ = tokenized(folder, "whole")
    assert pair(f"{folder}/cut") == pair(whole)


def other_settings_do_not_resume(folder):
    args = ["--data", corpus(folder), "--tokenizer", tokenizer(folder), "--out", f"{folder}/cut"]
    refused(run("tokenize", *args, env={"WEFT_TEST_DISK_FULL_AFTER": "5000"}), 1, "No space left")
    refused(run("tokenize", *args, "--resume", "--field", "id"), 2, "--resume:", "another 'field'")
    refused(run("tokenize", *args[:-1], f"{folder}/none", "--resume"), 2, "--resume: there is no")


def wrong_texts(folder):
    bad = pathlib.Path(folder) / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"txt": "bad"}\n')
    args = ["--tokenizer", tokenizer(folder), "--out", f"{folder}/x"]
    refused(run("tokenize", "--data", bad, *args), 2, "bad.jsonl', line 2", "'text'")
    refused(run("tokenize", "--data", f"{folder}/none", *args), 2, "no file")
    refused(run("tokenize", "--data", bad, *args, "--end", "<|nothing|>"), 2, "--end:", "<|nothing|>")
    refused(run("tokenize", "--data", bad, *args, "--part", "3/2"), 2, "--part:", "3/2")


def trains_on_an_index(folder):
    stem, _ = tokenized(folder)
    args = ["--tokenizer", tokenizer(folder), "--steps", "4", *SHORT]
    for name, data in (("idx", stem + ".idx"), ("bin", stem + ".bin")):
        train("--data", data, *args, "--out", f"{folder}/{name}")
    assert metrics(f"{folder}/idx") == metrics(f"{folder}/bin")
    state = json.loads((pathlib.Path(folder) / "idx/checkpoints/step_00000004/state.json").read_text())
    source, = state["data"]
    # The held-out tenth is whole documents.
    ends, all_tokens = [0], 0
    for document in documents_of(stem):
        all_tokens += len(document)
        ends.append(all_tokens)
    assert source["tokens"] in ends and source["tokens"] + source["held_out_tokens"] == all_tokens, source
    assert abs(source["held_out_tokens"] / all_tokens - 0.1) < 0.05, source
    # The index packs like the tokens that end documents.
    for name, pack in (("by_index", "documents"), ("by_token", "<|endoftext|>")):
        train("--data", stem + ".idx", *args, "--pack", pack, "--out", f"{folder}/{name}")
    assert metrics(f"{folder}/by_index") == metrics(f"{folder}/by_token")
    out = train("--path", stem + ".idx", f"{folder}/by_index", tokenizer(folder), program="info").stdout
    for part in ("201, of", "highest token", "299", "step", "4", "300 ids, 1 of them special", "epoch"):
        assert part in out, (part, out)
    plain = pathlib.Path(folder) / "plain.bin"
    plain.write_bytes(pathlib.Path(stem + ".bin").read_bytes())
    refused(run("train_gpt", "--data", plain, *args, "--pack", "documents", "--out", f"{folder}/x"), 2,
            "--pack: documents needs files with an .idx")


def mixtures(folder):
    for name, first, count in (("a", 0, 6000), ("b", 100, 3000), ("c", 200, 2000)):
        tokens = [first + i % 50 for i in range(count)]
        pathlib.Path(folder, name + ".bin").write_bytes(struct.pack(f"<{count}H", *tokens))
    a, b, c = (f"{folder}/{name}.bin" for name in "abc")
    args = ["--data", f"{a}:0.5,{b}:0.25", f"{c}:0.25", "--vocab", "256", *SHORT]
    train(*args, "--steps", "9", "--out", f"{folder}/whole")
    # The same batches for other ranks, and for a run that resumes with others.
    train(*args, "--steps", "9", "--out", f"{folder}/ranks", "--ranks", "2")
    for x, y in zip(metrics(f"{folder}/whole"), metrics(f"{folder}/ranks")):
        assert abs(x["loss"] - y["loss"]) < 1e-5 * x["loss"], (x, y)
    train(*args, "--steps", "4", "--out", f"{folder}/parts")
    train(*args, "--steps", "9", "--out", f"{folder}/parts", "--resume")
    assert checkpoint_bytes(f"{folder}/whole", 9) == checkpoint_bytes(f"{folder}/parts", 9)
    loader = json.loads((pathlib.Path(folder) / "whole/checkpoints/step_00000009/state.json").read_text())["loader"]
    assert [loader[f"source_{i}_rows"] for i in (1, 2, 3)] == [18, 9, 9], loader
    # Files before a share are one source.
    done = train("--data", a, b, ":3", c + ":1", "--vocab", "256", *SHORT, "--steps", "9", "--out", f"{folder}/x", "--dry-run")
    assert "a.bin, ...: 0.75 of the rows" in done.stdout and "c.bin: 0.25 of the rows" in done.stdout, done.stdout
    for words, part in (([a + ":0.5", b], "with shares every file needs one"), ([a + ":0"], "must be above 0"),
                        ([":0.5", a + ":1"], "must have a file before it"), ([a + ":half"], "no file"),
                        ([a + ":1", text(folder) + ":1"], "text files or .bin files")):
        refused(run("train_gpt", "--data", *words, "--vocab", "256", *SHORT, "--out", f"{folder}/y"), 2, part)
    resumed = ["--data", f"{a}:0.5,{b}:0.5", "--vocab", "256", *SHORT, "--steps", "12", "--out", f"{folder}/whole", "--resume"]
    refused(run("train_gpt", *resumed), 2, "loader: the saved position is for sources 3, got 2")


def other_contents_do_not_resume(folder):
    path = pathlib.Path(folder) / "x.bin"
    path.write_bytes(struct.pack("<4000H", *(i % 50 for i in range(4000))))
    args = ["--data", path, "--vocab", "64", *SHORT, "--out", f"{folder}/run"]
    train(*args, "--steps", "2")
    path.write_bytes(struct.pack("<4000H", *(i % 49 for i in range(4000))))
    refused(run("train_gpt", *args, "--steps", "4", "--resume"), 2, "data with other contents")


def hostile_indices(folder):
    """Counts far beyond the file: one line, status 2, little memory."""
    path = pathlib.Path(folder) / "x.idx"
    path.with_suffix(".bin").write_bytes(b"\0" * 8)
    for sequences, entries in ((1 << 62, 2), (1, 1 << 61), (-5, 2), (1 << 40, 1 << 40)):
        path.write_bytes(b"MMIDIDX\0\0" + struct.pack("<qBqq", 1, 8, sequences, entries) + b"\0" * 100)
        refused(run("train_gpt", "--data", path, *SHORT, "--out", f"{folder}/y"), 2, "x.idx", "room for them")
        refused(run("info", path), 2, "x.idx")


def files_larger_than_memory(folder):
    """A sparse file of 768 MB trains in 700 MB of data, with all that the process has."""
    path = pathlib.Path(folder) / "large.bin"
    with open(path, "wb") as out:
        out.truncate(768 << 20)
    limit = 700 << 20

    def limited():
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sanitized = os.environ.get("WEFT_SANITIZE")
    done = subprocess.run([BIN / "train_gpt", "--data", path, "--vocab", "16", *SHORT, "--steps", "2", "--eval-tokens", "100",
                           "--out", f"{folder}/run"], capture_output=True, text=True, timeout=300,
                          preexec_fn=None if sanitized else limited)
    assert done.returncode == 0, done.stderr


main([texts_become_documents, conversion_resumes, output_inside_the_data, other_settings_do_not_resume, wrong_texts, trains_on_an_index,
      mixtures, other_contents_do_not_resume, hostile_indices, files_larger_than_memory])
