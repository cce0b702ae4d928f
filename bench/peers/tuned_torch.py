"""The environment in which PyTorch is fastest: its allocator keeps memory instead of fetching fresh pages, and MKL uses
the kernels that it reserves for Intel's processors, which are faster on others too."""
import pathlib
import subprocess

KEEP_MEMORY = ":".join(
    "glibc.malloc." + tunable
    for tunable in ("hugetlb=1", f"mmap_threshold={2**33}", f"trim_threshold={2**33}")
)
NAMES = ("GLIBC_TUNABLES", "LD_PRELOAD")
AS_ON_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def environment(folder, cpu):
    """`folder` takes a small library, except on Intel."""
    if "Intel" in cpu:
        return {"GLIBC_TUNABLES": KEEP_MEMORY}
    library = pathlib.Path(folder).resolve() / "as_intel.so"
    if not library.exists():
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=AS_ON_INTEL, text=True,
                       check=True)
    return {"GLIBC_TUNABLES": KEEP_MEMORY, "LD_PRELOAD": str(library)}
