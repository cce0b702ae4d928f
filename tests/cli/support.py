"""Shared by the command line tests: a small text, running a program, comparing runs."""
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["WEFT_BIN"])
WORDS = "the cat sat on a mat and saw that dog who ran to it for some food in her old house".split()

# A model that trains in seconds, with every source of differences between runs enabled.
SMALL = ["--layers", "2", "--heads", "2", "--dim", "32", "--seq", "32", "--batch", "4",
         "--dropout", "0.1", "--log-every", "1000", "--seed", "3"]


def text(folder, words=4000):
    """A file of pseudo-random words, the same every time. A program may be reading it already."""
    path = pathlib.Path(folder) / "words.txt"
    state, out = 1, []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(WORDS[(state >> 16) % len(WORDS)])
    content = " ".join(out) + "\n"
    if not path.exists() or path.read_text() != content:
        path.write_text(content)
    return str(path)


def run(program, *args, env=None, timeout=300):
    return subprocess.run([str(BIN / program), *map(str, args)], capture_output=True, text=True,
                          errors="replace", timeout=timeout, env={**os.environ, **(env or {})})


def train(*args, env=None, program="train_gpt"):
    done = run(program, *args, env=env)
    if done.returncode != 0:
        raise AssertionError(f"{program} {args} exited {done.returncode}: {done.stderr}")
    return done


def metrics(out):
    """The rows of metrics.jsonl without the values that may differ between equal runs."""
    timing = {"tokens_per_s", "targets_per_s", "step_ms", "joules", "tokens_per_joule", "system_allocs", "mfu", "peak_tflops"}
    with open(pathlib.Path(out) / "metrics.jsonl") as lines:
        return [{k: v for k, v in json.loads(line).items() if k not in timing} for line in lines]


def peak_line(peak_bytes):
    """The line of the summary that tells the peak."""
    size = f"{peak_bytes * 1e-6:.1f} MB" if peak_bytes >= 1e6 else f"{peak_bytes:,} bytes"
    return f"peak memory      {size} of tensors"


def checkpoint_bytes(out, step):
    folder = pathlib.Path(out) / "checkpoints" / f"step_{step:08d}"
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.safetensors"))}


def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def rewrite(out, step, change):
    """Changes state.json and updates the manifests."""
    root = pathlib.Path(out) / "checkpoints"
    folder = root / f"step_{step:08d}"
    state = json.loads((folder / "state.json").read_text())
    change(state)
    data = json.dumps(state).encode()
    (folder / "state.json").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["name"] == "state.json":
            entry.update(bytes=len(data), crc32c=f"{crc32c(data):08x}")
    for path in (folder / "manifest.json", root / "latest.json"):
        path.write_text(json.dumps(manifest))


def refused(done, status, *parts):
    lines = done.stderr.strip().splitlines()
    assert done.returncode == status, f"exit {done.returncode}, expected {status}: {done.stderr}"
    assert len(lines) == 1, f"expected one line, got {lines}"
    for part in parts:
        assert part in lines[0], f"'{part}' is not in: {lines[0]}"


def start(program, out, data, *args, **how):
    """Starts a long run and waits for its first step."""
    process = subprocess.Popen(
        [BIN / program, "--data", data, "--out", out, "--steps", "100000", *SMALL, *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    log = pathlib.Path(out) / "metrics.jsonl"
    deadline = time.time() + 60
    while time.time() < deadline and not (log.exists() and log.stat().st_size > 0):
        time.sleep(0.01)
    return process


def interrupt(program, out, data, *args, sent=signal.SIGINT):
    """Ctrl-C in the first steps of a long run gives status 130 and saves the last step. A terminal
    that closes sends SIGHUP more than once."""
    process = start(program, out, data, *args)
    for _ in range(2 if sent == signal.SIGHUP else 1):
        process.send_signal(sent)
        time.sleep(0.001)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, errors)
    assert checkpoint_bytes(out, metrics(out)[-1]["step"])


def failure(case):
    """None, or why a case failed."""
    # What a job that has not ended still writes must not hide why.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            case(folder)
        except Exception as e:  # a test runner reports every error and continues
            return f"FAILED {case.__name__}: {type(e).__name__}: {e}"
    return None


def main(cases, at_once=1):
    """`at_once`: how many cases run side by side; for cases that wait for deadlines most of their time.
    WEFT_TEST_RUNS repeats them all, for faults that depend on timing."""
    # A shell ignores SIGINT for jobs in the background, nohup SIGHUP. Programs would inherit that, and some cases send
    # them both; a handler in Python is not inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    cases = cases * int(os.environ.get("WEFT_TEST_RUNS", "1"))
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        failures = [said for said in pool.map(failure, cases) if said]
    print(*failures, f"{len(cases) - len(failures)} of {len(cases)} cases passed", sep="\n")
    sys.exit(bool(failures))
