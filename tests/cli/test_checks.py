"""Scripts: those that check sources and pages find planted faults, and quickstart.sh needs a file."""
import pathlib
import subprocess
import sys

from support import main, refused

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_includes  # noqa: E402
import check_readme  # noqa: E402
import run_pages  # noqa: E402


def finds_a_base_that_is_not_included(folder):
    root, names = pathlib.Path(folder), [pathlib.Path(f"nn/{stem}.h") for stem in ("module", "list", "mixer", "layer")]
    (root / "nn").mkdir()
    module, used, mixer, layer = (root / name for name in names)
    module.write_text("struct Module {\n};\n")
    used.write_text('#include "weft/nn/module.h"\n')
    layer.write_text('#include "weft/nn/mixer.h"\nclass Layer final : public nn::Mixer {\n};\nstruct Error : std::exception {\n};\n')
    mixer.write_text('#include "weft/nn/list.h"\nstruct Mixer : Module {\n};\n')
    assert list(check_includes.without_bases(root, names)) == []
    mixer.write_text("struct Mixer : Module {\n};\n")
    assert list(check_includes.without_bases(root, names)) == [
        "nn/mixer.h: Mixer needs the definition of Module: include weft/nn/module.h"]


def compares_what_pages_print(_):
    for printed, shown, same in (("loss 1.2345, 0.10", "loss 1.2347, 0.12", True), ("1.2345", "1.2348", False),
                                 ("0.5", "0.500002", True), ("12.34", "1.234", False), ("1.0", "0.10", False),
                                 ("step 2  0.50", "step 3  0.50", False)):
        assert run_pages.same(printed, shown) is same, (printed, shown)


def follows_links(folder):
    page, other = pathlib.Path(folder) / "page.md", pathlib.Path(folder) / "other.md"
    other.write_text("# Other\n\n## A `b` and [c](d.md), or e\n\n```\n# not a heading\n```\n")
    page.write_text("# Here\n[1](#here) [2](other.md#a-b-and-c-or-e) [3](other.md) [4](https://x.org/y#z) `[5](none.md)`\n")
    assert list(check_readme.broken_links(page)) == []
    page.write_text("[1](#here) [2](other.md#not-a-heading) [3](none.md#x)\n")
    assert list(check_readme.broken_links(page)) == [
        "page.md: link to #here, which page.md has not", "page.md: link to #not-a-heading, which other.md has not",
        "page.md: link to none.md, which is not there"]


def quickstart_needs_a_file(folder):
    for data, named in ((folder, folder), (f"{folder}/none", "none"), ("", "got ")):
        refused(subprocess.run([ROOT / "scripts/quickstart.sh", "--data", data], capture_output=True, text=True, cwd=folder), 2,
                "quickstart: --data: must be a file", named)


main([quickstart_needs_a_file, follows_links, finds_a_base_that_is_not_included, compares_what_pages_print])
