// Algorithms of products that are measured, kept in a file and read again.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/gemm.h"
#include "weft/tests/cuda/emu/lt_library.h"
#include "weft/tests/temp_folder.h"

namespace weft::gemm_choices_test {
namespace {

using test::different_bits;
using test::error_of;
using test::kGpu;
using test::LtLibrary;
using test::mismatch;
using test::random;

constexpr Device kSecond{Device::Kind::cuda, 1};

struct Folder {
  test::TempFolder temporary;
  std::filesystem::path path = temporary.path();
  std::string file() const { return (path / "plans.txt").string(); }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file()).rdbuf();
    return all.str();
  }
  void write(const std::string& text) const { std::ofstream(file()) << text; }
};

int count(const std::string& text, const std::string& word) {
  int n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

const std::string kHead =
    "weft gemm plans 1\ncard emulated GPU 0, compute capability 9.0\ncublaslt 0\n";

}  // namespace

TEST_CASE("gemm choices: the fastest algorithm is measured once, kept in a file and read again") {
  const LtLibrary library;
  const Folder folder;
  const Tensor a = random({5, 640}, 1, DType::f32).to(kGpu);
  const Tensor b = random({640, 7}, 2, DType::f32).to(kGpu), wide = random({640, 9}, 3).to(kGpu);
  const Tensor first = matmul(a, b);
  const auto speeds = [](int fastest) {
    for (int i = 0; i < 8; ++i) emu::control.product_ms[i] = i == fastest ? 100 : 1000;
  };
  speeds(3);
  cuda::GemmChoices::get().use("measure:" + folder.file());
  const Tensor measured = matmul(a, b);
  CHECK(different_bits(measured, first) != "");  // an odd algorithm sums in f64
  const std::string text = folder.text();
  CHECK(text.substr(0, kHead.size()) == kHead);
  CHECK(count(text, "\n") == 4);
  CHECK(count(text, " : algorithm 3 : 100") == 1);
  speeds(0);  // known now, so the times no longer matter
  CHECK(different_bits(matmul(a, b), measured) == "");
  for (const char* const setting : {"measure:", ""}) {
    cuda::GemmChoices::get().use(setting + folder.file());
    CHECK(different_bits(matmul(a, b), measured) == "");
    CHECK(folder.text() == text);
  }
  // A file that is only read is not added to: a product that it lacks uses the heuristic.
  const Tensor more = matmul(a.to(DType::f64), wide);
  CHECK(folder.text() == text);
  // The second emulated GPU has another name.
  CHECK(error_of([&] { (void)matmul(a.to(kSecond), b.to(kSecond)); }).find("the card of ") !=
        std::string::npos);
}

TEST_CASE("gemm choices: a product that adds to its output is measured beside it") {
  const LtLibrary library;
  const Folder folder;
  cuda::GemmChoices::get().use("measure:" + folder.file());
  const Tensor a = random({5, 8}, 1, DType::f32), b = random({8, 7}, 2, DType::f32);
  const Tensor all = Tensor::ones({5 * 7 + 1}, DType::f32).to(kGpu);
  for (const std::int64_t offset : {0, 1}) {
    const Tensor sum = all.narrow(0, offset, 35).reshape({5, 7}), before = sum.to(kCpu);
    gemm(a.to(kGpu), b.to(kGpu), sum, true);
    CHECK(mismatch(sum.to(kCpu), add(matmul(a, b), before), 1e-5) == "");
  }
  CHECK(count(folder.text(), " add 1 ") == 2);
}

TEST_CASE("gemm choices: an epilogue is measured against its parts") {
  const TensorList want = test::mlp_results(kCpu);
  const LtLibrary library;
  const Folder folder;
  cuda::GemmChoices::get().use("measure:" + folder.file());
  emu::control.epilogue_ms = 1000;
  const TensorList measured = test::mlp_results(kGpu);
  for (int i = 0; i < want.size(); ++i) CHECK(mismatch(measured[i], want[i], 1e-4) == "");
  const std::string text = folder.text();
  CHECK(count(text, " : parts : ") == test::kMlpEpilogues);
  CHECK(count(text, "epilogue 1 ") > 2);
  emu::control.epilogue_ms = 0;
  emu::control.at_matmul = test::refuse_epilogues;
  test::status_of_epilogues = test::with_epilogue = 0;
  cuda::GemmChoices::get().use(folder.file());
  const TensorList again = test::mlp_results(kGpu);
  for (int i = 0; i < want.size(); ++i) CHECK(different_bits(again[i], measured[i]) == "");
  CHECK(test::with_epilogue.load() == 0);
}

TEST_CASE("gemm choices: nothing is measured inside a capture") {
  const LtLibrary library;
  const Folder folder;
  const Tensor a = random({5, 8}, 1, DType::f32).to(kGpu), b = random({8, 7}, 2).to(kGpu);
  const Tensor out = Tensor::zeros({5, 7}, DType::f32, kGpu), right = b.to(DType::f32);
  cuda::GemmChoices::get().use("measure:" + folder.file());
  cuda::Graph graph;
  graph.capture([&] { gemm(a, right, out); });
  graph.replay();
  CHECK(mismatch(out.to(kCpu), matmul(a.to(kCpu), right.to(kCpu)), 1e-5) == "");
  gemm(a, right, out);  // has its algorithm already
  CHECK(count(folder.text(), " : ") == 0);
}

TEST_CASE("gemm choices: a file that does not fit is refused in one line") {
  const LtLibrary library;
  const Folder folder;
  const Tensor a = random({4, 4}, 1, DType::f32).to(kGpu);
  const auto refused = [&](const std::string& text) {
    folder.write(text);
    cuda::GemmChoices::get().use(folder.file());
    std::string why = error_of([&] { (void)matmul(a, a); });
    const std::size_t at = why.find(folder.file());
    return at == std::string::npos ? why : why.replace(at, folder.file().size(), "FILE");
  };
  const std::string again = "; measure again with WEFT_GEMM_PLANS=measure:FILE";
  CHECK(refused("hello\n") ==
        "WEFT_GEMM_PLANS: the first line of FILE must be \"weft gemm plans 1\", got \"hello\"" +
            again);
  CHECK(refused("weft gemm plans 1\ncard A, compute capability 8.0\ncublaslt 0\n") ==
        "WEFT_GEMM_PLANS: the card of FILE must be \"card emulated GPU 0, compute capability "
        "9.0\", got \"card A, compute capability 8.0\"" +
            again);
  std::string newer = kHead;
  newer.replace(newer.find("cublaslt 0"), 10, "cublaslt 130100");
  CHECK(refused(newer) ==
        "WEFT_GEMM_PLANS: the library of FILE must be \"cublaslt 0\", got \"cublaslt 130100\"" +
            again);
  for (const char* const line : {"D 4 x 4", "D 4 x 4 : algorithm 8 : 1 ms", "D 4 x 4 : none"})
    CHECK(refused(kHead + line) ==
          message("WEFT_GEMM_PLANS: line 4 of FILE must end in \"algorithm N\" with N below 8 or "
                  "\"parts\", got \"{}\"",
                  line) +
              again);
  cuda::GemmChoices::get().use("measure:" + folder.file() + "2");
  (void)matmul(a, a);
  std::filesystem::rename(folder.file() + "2", folder.file());
  std::string last = folder.text();
  last.replace(last.find("algorithm "), 11, "algorithm 7");
  CHECK(refused(last) ==
        "WEFT_GEMM_PLANS: FILE names algorithm 7 for a product of 4 x 4 x 4 that must be below 5; "
        "measure again into another file");
  cuda::GemmChoices::get().use("/nowhere/plans.txt");
  CHECK(error_of([&] { (void)matmul(a, a); }) ==
        "WEFT_GEMM_PLANS: /nowhere/plans.txt must be a file that can be read" + again);
  cuda::GemmChoices::get().use("measure:/nowhere/plans.txt");
  CHECK(error_of([&] { (void)matmul(a, a); }) ==
        "WEFT_GEMM_PLANS: cannot write /nowhere/plans.txt");
  CHECK(error_of([] { cuda::GemmChoices::get().use("measure:"); }) ==
        "WEFT_GEMM_PLANS: must be FILE or measure:FILE, got measure:");
}

}  // namespace weft::gemm_choices_test
