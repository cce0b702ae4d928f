"""Hostile files, numbers and checkpoints: each program exits soon with one clear line and a status,
in little memory. Each program runs with limits on processor time and address space."""
import json
import os
import pathlib
import resource
import struct
import subprocess
import time

from support import BIN, SMALL, checkpoint_bytes, crc32c, main, metrics, refused, rewrite, text, train

SECONDS, BYTES = 20, 2 << 30  # of processor time; load only affects the wall clock


def limited(program, *args, **more):
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        if not os.environ.get("WEFT_SANITIZE"):  # AddressSanitizer reserves terabytes of addresses
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    return subprocess.run([str(BIN / program), *map(str, args)], capture_output=True, text=True,
                          errors="replace", preexec_fn=limit, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "2"}, **more)


def base(folder, *args):
    return ["--data", text(folder), "--out", f"{folder}/run", "--steps", "2", *SMALL, *args]


def sizes_out_of_all_proportion(folder):
    for flags, parts in ((("--seq", "9000000"), ("seq", "9000000")),
                         (("--vocab", "2000000000"), ("vocab", "2000000000")),
                         (("--vocab", "1000000000"), ("memory", "GB")),
                         (("--layers", "2000000000"), ("layers", "10000", "2000000000")),
                         (("--layers", "10000", "--dim", "65536"), ("memory", "GB")),
                         (("--dim", "1000000"), ("memory", "GB")),
                         (("--dim", "9" * 18), ("dim", "9" * 18)),
                         (("--heads", "9" * 18), ("heads", "9" * 18)),
                         (("--ffn", "1000000000000"), ("ffn", "1000000000000")),
                         (("--batch", "1000000000"), ("memory", "GB")),
                         (("--batch", "1000000000000"), ("--batch", "1000000000000")),
                         (("--experts", "2000000000"), ("experts", "2000000000")),
                         (("--experts", "8", "--expert-ffn", "1000000000"), ("memory", "GB")),
                         (("--mtp", "5000"), ("mtp", "5000")),
                         (("--ranks", "1000000"), ("--ranks", "1024", "1000000")),
                         (("--tp", "4294967297"), ("--tp", "4294967297")),
                         (("--threads", "4294967297"), ("--threads", "4294967297")),
                         (("--topk", "4294967297"), ("--topk", "4294967297")),
                         (("--keep", "4294967297"), ("--keep", "4294967297"))):
        refused(limited("train_gpt", *base(folder, *flags)), 2, *parts)
        assert not pathlib.Path(folder, "run").exists(), flags
    # A plan does not iterate over millions of micro-batches.
    done = limited("train_gpt", *base(folder, "--batch", "100000000", "--micro-batch", "1", "--dry-run"))
    assert done.returncode == 0, done.stderr


def pipes_devices_and_folders(folder):
    fifo = pathlib.Path(folder) / "fifo"
    os.mkfifo(fifo)
    tokens = pathlib.Path(folder) / "tokens.bin"
    os.mkfifo(tokens)
    out = ["--out", f"{folder}/run", *SMALL]
    refused(limited("train_gpt", "--data", fifo, *out), 2, "fifo", "is empty")
    refused(limited("train_gpt", "--data", tokens, *out), 2, "tokens.bin", "is empty")
    refused(limited("train_gpt", "--data", "/dev/zero", *out), 2, "/dev/zero", "device")
    refused(limited("train_gpt", "--data", folder, *out), 2, "folder")
    refused(limited("train_gpt", *base(folder), "--config", "/dev/zero"), 2, "/dev/zero", "device")
    refused(limited("train_gpt", *base(folder), "--weights", fifo), 1, "fifo", "pipe")
    refused(limited("train_gpt", *base(folder), "--weights", "/dev/zero"), 1, "/dev/zero", "device")
    refused(limited("train_gpt", *base(folder), "--weights", folder), 2, "neither a Hugging Face folder")
    large = pathlib.Path(folder) / "large.toml"
    large.write_bytes(b"#" * (17 << 20))
    refused(limited("train_gpt", *base(folder), "--config", large), 2, "large.toml", "16777216")
    train(*base(folder))
    step = pathlib.Path(folder) / "run/checkpoints/step_00000002"
    for name in ("model-r000.safetensors", "state.json", "manifest.json"):
        kept = (step / name).read_bytes()
        (step / name).unlink()
        os.mkfifo(step / name)
        latest = step.parent / "latest.json"
        latest_kept = latest.read_bytes()
        latest.unlink()
        os.mkfifo(latest)
        assert limited("generate", "--checkpoint", f"{folder}/run").returncode == 1, name
        assert limited("train_gpt", *base(folder, "--resume", "--steps", "3")).returncode == 1, name
        latest.unlink()
        latest.write_bytes(latest_kept)
        (step / name).unlink()
        (step / name).write_bytes(kept)


def a_pipe_is_read_as_the_file(folder):
    path = text(folder)
    train("--data", path, "--out", f"{folder}/file", "--steps", "2", *SMALL)
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        done = limited("train_gpt", "--data", "/dev/stdin", "--out", f"{folder}/pipe", "--steps", "2",
                       *SMALL, stdin=cat.stdout)
    assert done.returncode == 0, done.stderr
    assert metrics(f"{folder}/file") == metrics(f"{folder}/pipe")
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        done = limited("train_gpt", "--data", "/dev/stdin", "--out", f"{folder}/endless", *SMALL,
                       stdin=endless.stdout)
        endless.kill()
    refused(done, 1, "pipe", "1073741824")


def write_tokens(path, count):
    path.write_bytes(struct.pack(f"<{count}H", *(i * 7 % 250 for i in range(count))))


def a_token_file_that_is_cut_during_a_run(folder):
    data = pathlib.Path(folder) / "x.bin"
    write_tokens(data, 100000)
    for name, spoil in (("cut", lambda: os.truncate(data, 1000)),
                        ("rewritten", lambda: write_tokens(data, 100000))):
        write_tokens(data, 100000)
        out = f"{folder}/{name}"
        args = ["--data", data, "--out", out, "--steps", "1000000", *SMALL]
        process = subprocess.Popen([BIN / "train_gpt", *args], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        log = pathlib.Path(out) / "metrics.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size > 2000):
            time.sleep(0.01)
        spoil()
        _, errors = process.communicate(timeout=60)
        lines = errors.splitlines()
        assert process.returncode == 1 and len(lines) == 1, (process.returncode, errors)
        assert "x.bin" in lines[0], lines
        last = metrics(out)[-1]["step"]
        assert checkpoint_bytes(out, last), "what there was is not saved"
        write_tokens(data, 100000)
        train(*args[:4], "--steps", str(last + 2), *SMALL, "--resume")
        assert [m["step"] for m in metrics(out)] == list(range(1, last + 3))


def states_that_no_file_can_have(folder):
    train(*base(folder, "--arch", "llama"))
    out = f"{folder}/run"
    good = json.loads((pathlib.Path(out) / "checkpoints/step_00000002/state.json").read_text())
    huge = 2**62
    for change in ({"heads": 0}, {"heads": 0, "attention": "mla"}, {"heads": 0, "pattern": "d"},
                   {"heads": -1}, {"dim": huge}, {"dim": 1 << 29}, {"layers": huge}, {"layers": 9999},
                   {"vocab": huge}, {"vocab": 1 << 29}, {"ffn": 1 << 29}, {"kv_heads": -huge},
                   {"seq": 0}, {"seq": huge}, {"mtp": huge}, {"mtp": 999, "mtp_repeated": True},
                   {"delta_key_heads": huge, "pattern": "d"}, {"rope_theta": -1}, {"heads": 1.5}):
        rewrite(out, 2, lambda state: state.update(model={**good["model"], **change}))
        for done in (limited("generate", "--checkpoint", out, "--tokens", "5"),
                     limited("train_gpt", *base(folder, "--arch", "llama", "--resume", "--steps", "3"))):
            refused(done, done.returncode if done.returncode in (1, 2) else 1, "")
    # No tensor limits this model's longest sequence: tables cover only the generated text.
    rewrite(out, 2, lambda state: state.update(model={**good["model"], "seq": 1 << 29}))
    done = limited("generate", "--checkpoint", out, "--tokens", "5")
    assert done.returncode == 0, done.stderr
    for change in ({"step": -1}, {"tokens": huge * 2 - 1},
                   {"loader": {**good["loader"], "epoch": huge}},
                   {"loader": {**good["loader"], "index": huge}}):
        rewrite(out, 2, lambda state: state.update({**good, **change}))
        done = limited("train_gpt", *base(folder, "--arch", "llama", "--resume", "--steps", "3"))
        assert done.returncode in (1, 2), (change, done.returncode, done.stderr)


def safetensors(header, data=b""):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text)) + text + data


def crafted_weights(folder):
    path = pathlib.Path(folder) / "w.safetensors"
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    piece = {"whole": [1 << 50, 0], "cuts": [{"axis": 1, "ranges": []}], "begin": 0, "end": 0}
    # AddressSanitizer takes twenty times as long for so many small allocations: 100,000 names just fit the limit.
    many = 20000 if os.environ.get("WEFT_SANITIZE") else 100000
    names = [f"blocks.{i}.weight" for i in range(many)]
    for header in ({"__metadata__": {"pieces": json.dumps({"embed.weight": piece})},
                    "embed.weight": empty},
                   {"__metadata__": {"pieces": json.dumps({n: piece for n in names})},
                    **{n: empty for n in names}},
                   b'{"a":' + b"[" + b"[]," * 9000000 + b"[]]}"):
        path.write_bytes(safetensors(header))
        refused(limited("train_gpt", *base(folder, "--weights", path)),
                2 if isinstance(header, dict) else 1, "")
    train(*base(folder))
    step = pathlib.Path(folder) / "run/checkpoints/step_00000002"
    model = safetensors({"__metadata__": {"pieces": json.dumps({"embed.weight": piece})},
                         "embed.weight": empty})
    (step / "model-r000.safetensors").write_bytes(model)
    manifest = json.loads((step / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["name"].startswith("model"):
            entry.update(bytes=len(model), crc32c=f"{crc32c(model):08x}")
    for file in (step / "manifest.json", step.parent / "latest.json"):
        file.write_text(json.dumps(manifest))
    refused(limited("generate", "--checkpoint", f"{folder}/run"), 2, "parameters")


main([sizes_out_of_all_proportion, pipes_devices_and_folders, a_pipe_is_read_as_the_file,
      a_token_file_that_is_cut_during_a_run, states_that_no_file_can_have, crafted_weights])
