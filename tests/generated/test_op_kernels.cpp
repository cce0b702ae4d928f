#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>

#include "weft/autograd/fp8.h"
#include "weft/autograd/sort.h"
#include "weft/autograd/tape.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/tests/generated/op_runs.h"
#include "weft/tests/generated/ops_page.h"

// Compares docs/ops.md with what every op does. On the meta devices dispatch reports which kernel
// it would run on the CPU or on a GPU: exactly those of a row must appear. Ops composed of other
// ops are recorded as these, on the CPU too.

namespace weft::op_kernels_test {
using namespace weft::generated;

namespace {

using Page = std::map<std::string, OpRow>;

// Ops that lines of the table call in addition to their own: to prepare operands, and where an
// operand is used twice, so that the tape adds two gradients.
const std::map<std::string, std::string> kBeside = {{"permute_tokens", "sort_by_expert"},
                                                    {"permute_probs", "sort_by_expert"},
                                                    {"combine_tokens", "sort_by_expert"},
                                                    {"balance_loss", "count_top_experts"},
                                                    {"cat", "add"}};
// Ops whose parts use one tensor twice: the tape adds its gradients, as the head of the page says.
const Names kUsedTwice = {"activation",
                          "binary_cross_entropy_with_logits",
                          "elu",
                          "huber_loss",
                          "kl_div",
                          "leaky_relu",
                          "prod",
                          "repeat",
                          "scaled_activation"};
// The name under which an op or its backward is recorded, if it differs.
const std::map<std::string, std::string> kRecordedAs = {{"attention_packed", "attention"},
                                                        {"rope_packed", "rope"},
                                                        {"permute_probs", "permute_tokens"},
                                                        {"gelu", "gelu_backward"},
                                                        {"activation", "gelu_backward"}};
// Lines that need a large operand, which is too slow for the emulated GPU.
const OpLine kLarge[] = {
    {"topk", "K", [](const TensorList& in) -> TensorList {
       return {topk(Tensor::empty({600}, in[0].dtype(), in[0].device()), 513).values};
     }}};

// Adds the ops that an op calls, recursively.
void add_calls(const Page& page, const std::string& op, bool backward, Names& ops) {
  if (!ops.insert(op).second) return;
  const Directions& calls = page.at(op).calls;
  for (const std::string& other : calls.forward) add_calls(page, other, backward, ops);
  if (!backward) return;
  for (const std::string& other : calls.backward) add_calls(page, other, true, ops);
}

Names kernels_of(const Page& page, const Names& ops, bool backward) {
  Names found;
  for (const std::string& op : ops) {
    const Directions& own = page.at(op).cpu;
    found.insert(own.forward.begin(), own.forward.end());
    if (backward) found.insert(own.backward.begin(), own.backward.end());
  }
  return found;
}

// While an object exists, the kernels that the meta devices skip are added to `names`.
class Noting {
 public:
  explicit Noting(Names& names) {
    into = &names;
    detail::on_skipped_kernel = note;
  }
  ~Noting() { detail::on_skipped_kernel = nullptr; }
  Noting(const Noting&) = delete;

 private:
  static void note(const char* signature) {
    const std::string text = signature;  // "... = weft::cpu::softmax_fwd]"
    const std::size_t at = text.rfind("::") + 2;
    into->insert(
        text.substr(at, text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", at) - at));
  }
  static inline Names* into = nullptr;
};

// The ops of a recording: the first words of its lines.
void add_recorded(const Tape& tape, Names& ops) {
  std::istringstream lines(tape.print());
  for (std::string line; std::getline(lines, line);) ops.insert(line.substr(0, line.find(' ')));
}

struct Seen {
  Directions kernels;
  Names recorded;        // ops, in both directions
  Names with_main_grad;  // kernels of a backward pass that adds to main_grad()
  int runs = 0;
};

class Runs {
 public:
  Runs(const OpLine& line, Seen& seen) : line_(line), seen_(seen) {}

  void all() {
    for (const Device device : {kCpu, kMeta, Device{Device::Kind::meta_cuda, 0}})
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64}) {
        if (!is_compute(dtype) && !line_.is('n') && !line_.is('a')) continue;
        const Sizes odd = odd_sizes();
        with_sizes(odd, dtype, device);
        for (const char c : letters(line_))
          for (const std::int64_t n : {0, 1}) {
            Sizes sizes = odd;
            sizes[c] = n;
            with_sizes(sizes, dtype, device);
          }
      }
  }

 private:
  void with_sizes(const Sizes& sizes, DType dtype, Device device) {
    std::vector<Operand> operands;
    if (!make_operands(line_, sizes, dtype, Rng{17}, operands)) return;
    for (int round = 0; round < 3; ++round) {
      TensorList in, leaves;
      for (const Operand& o : operands) {
        const auto layout =
            round == 0 ? Layout::contiguous : static_cast<Layout>(rng_.below(kLayouts));
        Tensor t = tensor_in(layout, o.shape, o.values, o.dtype(dtype), device);
        if (is_compute(t.dtype())) leaves.push_back(t.set_requires_grad());
        in.push_back(std::move(t));
      }
      try {
        once(in, leaves);
      } catch (const Error&) {  // sizes that the op refuses, or a second derivative
      }
    }
  }

  void once(const TensorList& in, const TensorList& leaves) {
    TensorList plain;
    {
      const Noting noting(seen_.kernels.forward);
      plain = line_.call(in);
    }
    ++seen_.runs;
    before_fp8_products(in);
    for (int i = 0; i < plain.size(); ++i) {
      if (!plain[i].defined() || !is_compute(plain[i].dtype())) continue;
      const TensorList reached = leaves_of(in, leaves, i);
      Tape tape;
      const Tensor y = forward(in, i);
      add_recorded(tape, seen_.recorded);
      if (!Tape::follows(y)) continue;
      const Tensor dy = zeros_like(y);
      const Noting noting(seen_.kernels.backward);
      tape.gradients(y, reached, dy);
    }
    for (int i = 0; i < plain.size(); ++i) into_main_grads(in, leaves, i);
    for (int i = 0; i < plain.size(); ++i) differentiated_again(in, leaves, i);
  }

  // Some ops find largest magnitudes for the product that follows.
  void before_fp8_products(const TensorList& in) {
    const fp8::Autocast scope(fp8::Recipe{});
    const Tape tape;
    const Noting noting(seen_.kernels.forward);
    (void)line_.call(in);
  }

  Tensor forward(const TensorList& in, int i) {
    const Noting noting(seen_.kernels.forward);
    return line_.call(in)[i];
  }

  // The leaves that result i depends on; for other leaves the tape would create zeros.
  TensorList leaves_of(const TensorList& in, const TensorList& leaves, int i) {
    TensorList found;
    Tape tape;
    const Tensor y = line_.call(in)[i];
    if (!y.defined() || !Tape::follows(y)) return found;
    y.backward(zeros_like(y));
    for (const Tensor& leaf : leaves)
      if (leaf.grad().defined()) {
        found.push_back(leaf);
        leaf.set_grad({});
      }
    return found;
  }

  void into_main_grads(const TensorList& in, const TensorList& leaves, int i) {
    TensorList sums;
    for (const Tensor& leaf : leaves) {
      sums.push_back(Tensor::zeros(
          leaf.shape(), leaf.dtype() == DType::f64 ? DType::f64 : DType::f32, leaf.device()));
      leaf.set_main_grad(sums[sums.size() - 1]);
    }
    {
      Tape tape;
      const Tensor y = line_.call(in)[i];
      if (y.defined() && Tape::follows(y)) {
        const Tensor dy = zeros_like(y);
        const Noting noting(seen_.with_main_grad);
        y.backward(dy);
      }
    }
    for (const Tensor& leaf : leaves) leaf.set_main_grad({});
  }

  void differentiated_again(const TensorList& in, const TensorList& leaves, int i) {
    const TensorList reached = leaves_of(in, leaves, i);
    Tape outer;
    Tape tape;
    const Tensor y = line_.call(in)[i];
    if (!y.defined() || !Tape::follows(y)) return;
    const Tensor dy = zeros_like(y);
    const Noting noting(seen_.kernels.backward);
    tape.gradients(y, reached, dy);
    add_recorded(outer, seen_.recorded);
  }

  const OpLine& line_;
  Seen& seen_;
  Rng rng_{4};
};

void check_part(const std::string& op, const char* what, const Names& part, const Names& whole) {
  for (const std::string& name : part)
    CHECK_MESSAGE(whole.count(name) == 1, message("{}: {} {}", op, name, what));
}

Names joined(Names a, const Names& b) {
  a.insert(b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("generated: docs/ops.md names the kernels and ops that every op runs") {
  const Page rows = read_ops_page();
  std::map<std::string, Seen> all;
  for (const OpLine& line : ops_table()) Runs(line, all[line.op]).all();
  for (const OpLine& line : kLarge) Runs(line, all[line.op]).all();
  for (const auto& [op, seen] : all) {
    REQUIRE_MESSAGE(rows.count(op) == 1, op);
    const OpRow& row = rows.at(op);
    CHECK_MESSAGE(seen.runs > 0, op);
    Names forward, both;
    add_calls(rows, op, false, forward);
    add_calls(rows, op, true, both);
    if (const auto beside = kBeside.find(op); beside != kBeside.end()) {
      add_calls(rows, beside->second, false, forward);
      add_calls(rows, beside->second, true, both);
    }
    Names added;
    if (kUsedTwice.count(op)) {
      add_calls(rows, "add", true, both);
      added.insert("add_scaled");
    }
    Names recorded = both;
    if (const auto as = kRecordedAs.find(op); as != kRecordedAs.end()) recorded.insert(as->second);
    check_part(op, "runs forward, and ops.md has it not", seen.kernels.forward,
               kernels_of(rows, forward, false));
    check_part(op, "runs backward, and ops.md has it not", seen.kernels.backward,
               joined(kernels_of(rows, both, true), added));
    check_part(op, "is recorded, and ops.md has it not", seen.recorded, recorded);
    check_part(op, "does not run forward, as ops.md says", row.cpu.forward, seen.kernels.forward);
    check_part(op, "does not run backward, as ops.md says", row.cpu.backward,
               joined(seen.kernels.backward, seen.with_main_grad));
  }
}

TEST_CASE("generated: docs/ops.md names the file of every kernel, for the CPU and for CUDA") {
  std::size_t kernels = 0;
  for (const auto& [op, row] : read_ops_page()) {
    CHECK_MESSAGE(row.cpu.forward == row.cuda.forward, op);
    CHECK_MESSAGE(row.cpu.backward == row.cuda.backward, op);
    kernels += row.files.size();
    for (const auto& [kernel, path] : row.files) {
      const std::string text = read_text(path), name = kernel.substr(kernel.find("::") + 2);
      // A GPU kernel may define its CPU loop at the call.
      const bool defined = text.find(message("\nvoid {}(", name)) != std::string::npos ||
                           (kernel.starts_with("cpu") &&
                            text.find(message("<cuda::{}>(", name)) != std::string::npos);
      CHECK_MESSAGE(defined, message("{}: {} is not defined in {}", op, kernel, path.string()));
    }
  }
  CHECK(kernels > 200);
}

}  // namespace weft::op_kernels_test
