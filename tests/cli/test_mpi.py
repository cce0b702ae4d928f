"""Ranks as processes have the bits of ranks as threads; also tests the script that starts them."""
import pathlib

from support import BIN, main, run
from support_mpi import RUN_RANKS, run_ranks


def same_bits(folder):
    """Every collective, dtype and kind of shape over 2, 3 and 4 ranks."""
    for ranks in (2, 3, 4):
        threads, processes = pathlib.Path(folder, f"t{ranks}"), pathlib.Path(folder, f"p{ranks}")
        threads.mkdir()
        processes.mkdir()
        assert run("mpi_bits_program", threads, ranks).returncode == 0
        done = run_ranks(ranks, BIN / "mpi_bits_program", processes)
        assert done.returncode == 0, done.stderr
        for rank in range(ranks):
            want = (threads / str(rank)).read_text()
            assert len(want.splitlines()) > 400
            assert (processes / str(rank)).read_text() == want, (ranks, rank)


def keeps_the_rules_of_mpi(folder):
    for ranks in (2, 3):
        done = run_ranks(ranks, BIN / "mpi_rules_program")
        assert done.returncode == 0, done


def script(folder):
    """Wrong use gives one line; otherwise the script returns the program's status."""
    for arguments in ([], ["0", "true"], ["two", "true"], ["2"]):
        done = run(RUN_RANKS, *arguments)
        assert (done.returncode, done.stderr) == (
            2, "run_ranks: usage: run_ranks.sh RANKS PROGRAM [ARGUMENTS]\n"), done
    done = run(RUN_RANKS, 2, "/nowhere/program")
    assert (done.returncode, done.stderr) == (2, "run_ranks: there is no program /nowhere/program\n")
    pathlib.Path(folder, "bash").symlink_to("/usr/bin/bash")
    done = run(RUN_RANKS, 2, "true", env={"PATH": folder})
    assert (done.returncode, done.stderr) == (
        2, "run_ranks: there is no mpirun; install openmpi-bin (Debian), or run with --ranks 2 "
           "instead\n"), done
    assert run(RUN_RANKS, 2, "bash", "-c", "exit 7").returncode == 7
    assert run(RUN_RANKS, 2, "true").returncode == 0


if __name__ == "__main__":
    main([same_bits, keeps_the_rules_of_mpi, script])
