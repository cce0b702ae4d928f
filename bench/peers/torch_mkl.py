"""MKL, which PyTorch calls: the kernels that it reserves for Intel's processors are faster on others too."""
import pathlib
import subprocess

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def as_on_intel(folder, cpu):
    """The environment of a program whose MKL uses these kernels; `folder` takes a small library, except on Intel."""
    if "Intel" in cpu:
        return {}
    library = pathlib.Path(folder).resolve() / "as_intel.so"
    if not library.exists():
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=SOURCE, text=True,
                       check=True)
    return {"LD_PRELOAD": str(library)}
