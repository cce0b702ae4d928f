"""scripts/check_sass.py against machine code with planted faults. A stand-in for cuobjdump prints the code, so that
neither the tool nor a compiled kernel is needed."""
import pathlib
import sys

from support import main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_sass  # noqa: E402

REGISTERS = 168  # 21 units of 256 for a warp: 12 warps
WRITTEN = {"wide loads": "LDG.E.128", "narrow loads": "LDG.E", "wide stores": "STG.E.128", "narrow stores": "STG.E.64",
           "tensor": "HMMA.16816.F32.BF16", "local": "LDL"}


def hot_kernel(*columns):
    """The first row of docs/sass.md with something in these columns, and its key."""
    return next((key, row) for key, row in sorted(check_sass.stored().items()) if all(row[c] for c in columns))


def code_of(row):
    lines = ["\t\tFunction : attention_kernel", "        /*0000*/                   MOV R1, c[0x0][0x28] ;"]
    for column, instruction in WRITTEN.items():
        lines += [f"        /*0010*/              @!P0 {instruction} R2, [R4.64] ;"] * row[column]
    return lines


def found(folder, lines, registers=REGISTERS):
    """The table that the script makes of this code, which it reads through cuobjdump."""
    tool = pathlib.Path(folder) / "cuobjdump"
    (pathlib.Path(folder) / "code").write_text("\n".join(lines) + "\n")
    tool.write_text("#!/bin/sh\n"
                    f"[ $1 = -sass ] && exec cat {folder}/code\n"
                    f"printf 'Function attention_kernel:\\n  REG:{registers} STACK:0\\n'\n")
    tool.chmod(0o755)
    return check_sass.instances("none", "sm_90a", {"PATH": f"{folder}:/usr/bin:/bin"})["attention_kernel"]


def problems(folder, kernel, lines, registers):
    key, row = kernel
    return list(check_sass.problems({key: (row["instances"], found(folder, lines, registers))}))


def registers_of(row):
    """The most registers with which as many warps fit."""
    return next(r for r in range(255, 0, -1)
                if check_sass.PER_MULTIPROCESSOR // (-(-r * 32 // check_sass.UNIT) * check_sass.UNIT) >= row["warps"])


def reads_code(folder):
    _, row = hot_kernel("tensor", "wide stores", "narrow stores")
    counts = found(folder, code_of(row))
    assert counts == {**{column: row[column] for column in WRITTEN if row[column]}, "warps": 12}, counts


def finds_planted_faults(folder):
    key, row = kernel = hot_kernel("tensor", "wide stores", "narrow stores")
    where, registers, good = f"{key[0]}: {key[1]} on {key[2]}", registers_of(row), code_of(row)
    assert problems(folder, kernel, good, registers) == []
    store = next(i for i, line in enumerate(good) if "STG.E.128" in line)
    product = next(i for i, line in enumerate(good) if "HMMA" in line)
    spill = "        /*0020*/                   STL [R1], R2 ;"
    for column, got, lines in (
            ("narrow stores", row["narrow stores"] + 1,
             [line.replace(".128", "") if i == store else line for i, line in enumerate(good)]),
            ("local", row["local"] + 1, [*good, spill]),
            ("tensor", row["tensor"] - 1,
             [line.replace("HMMA.16816.F32.BF16", "FFMA") if i == product else line for i, line in enumerate(good)])):
        assert problems(folder, kernel, lines, registers) == [
            f"{where}: {column}: docs/sass.md says {row[column]}, got {got}"], column


def counts_accesses_of_unknown_space(folder):
    lines = ["\t\tFunction : attention_kernel"]
    lines += [f"        /*0010*/                   {instruction} ;" for instruction in
              ("LD.E.128 R4, [R2.64]", "LD.E R4, [R2.64]", "@P1 ST.E.U16 [R2.64], R4", "ST.E.128 [R2.64], R4", "LDS R1, [R2]",
               "STS [R2], R1", "LDC R1, c[0x0][0x28]")]
    counts = found(folder, lines)
    assert counts == {"wide loads": 1, "narrow loads": 1, "wide stores": 1, "narrow stores": 1, "warps": 12}, counts


def finds_fewer_warps(folder):
    key, row = kernel = next((key, row) for key, row in sorted(check_sass.stored().items()) if 8 < row["warps"] < 64)
    good, registers = code_of(row), registers_of(row)
    assert problems(folder, kernel, good, registers) == []
    got = problems(folder, kernel, good, registers + 8)
    assert len(got) == 1 and got[0].startswith(
        f"{key[0]}: {key[1]} on {key[2]}: warps: docs/sass.md says {row['warps']}, got "), got


def finds_rounding_in_software(folder):
    key, row = hot_kernel("tensor")
    counts = found(folder, [*code_of(row), "        /*0030*/                   IADD3 R2, R2, 0x7fff, RZ ;"])
    assert list(check_sass.software_rounding({key: (row["instances"], counts)})) == [
        f"{key[0]}: {key[1]} on {key[2]} rounds to bf16 in software 1 times; use narrow<T>() of cuda/math.h"]


def wants_every_instance_on_the_page(_):
    key, row = hot_kernel("tensor")
    for name, instances in ((key, row["instances"] + 1), (("none.cu", *key[1:]), row["instances"])):
        got = list(check_sass.problems({name: (instances, row)}))
        assert len(got) == 1 and f"does not list its {instances} instances" in got[0], got


def refuses_local_memory_that_the_page_allows(_):
    key, row = hot_kernel("tensor")
    assert list(check_sass.local_memory({key: (row["instances"], row)})) == []
    assert list(check_sass.local_memory({key: (row["instances"], {**row, "local": 3})})) == [
        f"{key[0]}: {key[1]} on {key[2]} accesses local memory in 3 places"]
    assert list(check_sass.local_memory({(file, kernel, "sm_90a"): (1, {**row, "local": 3})
                                         for file, kernel in check_sass.LOCAL})) == []


def misses_a_kernel_that_is_gone(_):
    table = {key: (row["instances"], row) for key, row in check_sass.stored().items() if key[2] == "sm_90a"}
    assert list(check_sass.gone(table)) == []
    key, _ = table.popitem()
    assert list(check_sass.gone(table)) == [
        f"{key[0]}: {key[1]} on {key[2]}: docs/sass.md lists it, and it is gone; run scripts/check_sass.py BUILD"]


main([reads_code, finds_planted_faults, counts_accesses_of_unknown_space, finds_fewer_warps, finds_rounding_in_software,
      wants_every_instance_on_the_page, refuses_local_memory_that_the_page_allows, misses_a_kernel_that_is_gone])
