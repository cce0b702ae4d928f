"""--pack: documents packed into rows. Every layout takes the same steps, and no token sees another
document."""
import json
import pathlib
import struct

from support import SMALL, checkpoint_bytes, main, metrics, refused, run, train


def documents(folder):
    """Several hundred documents of different lengths, each one letter repeated."""
    state, out = 1, []
    for i in range(400):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(chr(97 + i % 26) * (3 + (state >> 16) % 60))
    path = pathlib.Path(folder) / "documents.txt"
    path.write_text("".join(d + "\n\n" for d in out))
    return str(path)


def base(folder, out, *args):
    return ["--data", documents(folder), "--pack", "\n\n", "--out", f"{folder}/{out}", "--steps", "12", *SMALL,
            "--arch", "llama", "--dropout", "0", *args]


def layouts_agree(folder):
    train(*base(folder, "one"))
    one = metrics(f"{folder}/one")
    for name, args in {"micro": ["--micro-batch", "1"], "dp": ["--ranks", "2"],
                       "tp": ["--ranks", "2", "--tp", "2"], "sp": ["--ranks", "2", "--tp", "2", "--sp"],
                       "zero": ["--ranks", "2", "--zero"], "recompute": ["--recompute", "full"]}.items():
        train(*base(folder, name, *args))
        for a, b in zip(one, metrics(f"{folder}/{name}")):
            for key in ("loss", "grad_norm"):
                assert abs(a[key] - b[key]) < 2e-4 * a[key], (name, a, b)
        assert abs(one[-1]["val_loss"] - metrics(f"{folder}/{name}")[-1]["val_loss"]) < 1e-4, name


def resumes(folder):
    more = ["--schedule", "constant", "--warmup", "0"]
    train(*base(folder, "whole", *more))
    train(*base(folder, "parts", *more, "--steps", "5"))
    train(*base(folder, "parts", *more, "--resume"))
    assert checkpoint_bytes(f"{folder}/whole", 12) == checkpoint_bytes(f"{folder}/parts", 12)
    done = run("train_gpt", *base(folder, "parts", *more, "--resume", "--pack", "x"))
    refused(done, 2, "loader: the saved position is for tokens")


def learns_what_a_stream_cannot_know(folder):
    """The first letter of a document determines all others. In a stream the previous document is
    visible."""
    train(*base(folder, "packed", "--steps", "300", "--lr", "0.01"))
    rows = metrics(f"{folder}/packed")
    assert rows[-1]["val_loss"] < 0.35, rows[-1]


def with_experts(folder):
    moe = ["--experts", "4", "--topk", "2", "--aux", "seq"]
    train(*base(folder, "one", *moe))
    train(*base(folder, "ep", *moe, "--ranks", "2", "--ep", "2"))
    for a, b in zip(metrics(f"{folder}/one"), metrics(f"{folder}/ep")):
        assert abs(a["loss"] - b["loss"]) < 1e-3 * a["loss"], (a, b)


def every_loss_in_every_layout(folder):
    """Rows have different numbers of targets and of padding, and a pass has one row, two or four."""
    more = ["--dtype", "f64", "--steps", "4", "--dropout", "0.1", "--mtp", "2", "--experts", "4", "--topk", "2",
            "--aux", "seq", "--aux-coeff", "0.5", "--z-loss", "0.1", "--dense-layers", "1"]
    train(*base(folder, "one", *more))
    one = metrics(f"{folder}/one")
    for name, args in {"micro": ["--micro-batch", "1"], "dp": ["--ranks", "2"],
                       "recompute": ["--recompute", "full", "--micro-batch", "2"],
                       "both": ["--ranks", "2", "--micro-batch", "1", "--zero"],
                       "ep": ["--ranks", "2", "--ep", "2"], "sp": ["--ranks", "2", "--tp", "2", "--sp"]}.items():
        train(*base(folder, name, *more, *args))
        for a, b in zip(one, metrics(f"{folder}/{name}"), strict=True):
            for key in ("loss", "grad_norm", "mtp_1_loss", "mtp_2_loss", "aux_loss", "z_loss"):
                assert abs(a[key] - b[key]) < 1e-9 * abs(a[key]), (name, key, a, b)


def token_files(folder):
    path = pathlib.Path(folder) / "tokens.bin"
    tokens = [t for i in range(300) for t in [1 + i % 7] * (2 + i % 11) + [0]]
    path.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    args = ["--data", str(path), "--vocab", "8", "--steps", "3", *SMALL]
    train(*args, "--pack", "0", "--out", f"{folder}/tokens")
    with open(f"{folder}/tokens/checkpoints/latest.json"):
        state = json.loads((pathlib.Path(folder) / "tokens/checkpoints/step_00000003/state.json").read_text())
    assert state["loader"]["documents"] == 271, state["loader"]
    refused(run("train_gpt", *args, "--out", f"{folder}/x", "--pack", "nine"), 2,
            "--pack: with a .bin file must be the number of a token, or its text in --tokenizer, got 'nine'")


main([layouts_agree, resumes, learns_what_a_stream_cannot_know, with_experts, every_loss_in_every_layout,
      token_files])
