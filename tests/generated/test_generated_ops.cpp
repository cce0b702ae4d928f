#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string_view>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/cuda/emu/control.h"
#include "weft/tests/generated/op_runs.h"
#include "weft/tests/generated/ops_page.h"

// Compares every public op in every dtype, memory layout and kind of size, forward and backward,
// with the contiguous f64 run on the CPU.
//   WEFT_GENERATED_OP=softmax  runs only this op
//   WEFT_GENERATED_SHARE=8     runs every eighth case on the GPU (1), for slower builds

namespace weft::generated_ops_test {
using namespace weft::generated;

namespace {

constexpr Layout layout_of(int i) { return static_cast<Layout>(i); }

int share() {
  static const char* const text = std::getenv("WEFT_GENERATED_SHARE");
  return text ? std::max(std::atoi(text), 1) : 1;
}

// One op of the table on one device.
class Runs {
 public:
  Runs(const OpLine& line, Device device) : line_(line), device_(device), letters_(letters(line)) {}

  // CPU: each operand in each layout. GPU (the emulated one is slow): all operands in random
  // layouts.
  void all() {
    for (const DType dtype : dtypes()) {
      dtype_ = dtype;
      const bool every = !device_.is_gpu();
      sizes_text_ = "odd";
      with_sizes(odd_sizes(), every);
      for (const char c : letters_) {
        Sizes sizes = odd_sizes();
        sizes[c] = 1;
        sizes_text_ = message("{} = 1", std::string(1, c));
        with_sizes(sizes, every);
        sizes[c] = 0;
        sizes_text_ = message("{} = 0", std::string(1, c));
        with_sizes(sizes, false);
      }
      Sizes ones = odd_sizes(), longer = odd_sizes();
      for (const char c : letters_) ones[c] = 1;
      sizes_text_ = "all 1";
      with_sizes(ones, false);
      if (!letters_.empty()) longer[letters_.back()] = 67;
      sizes_text_ = "long";
      with_sizes(longer, false);
      if (is_compute(dtype) && !(line_.is('g') && device_.is_gpu())) specials();
    }
  }
  int cases() const { return cases_; }
  const std::string& failure() const { return failure_; }

 private:
  std::vector<DType> dtypes() const {
    std::vector<DType> found = {DType::f64, DType::f32, DType::bf16};
    // A product of many numbers is beyond the range of f16.
    if (line_.op != std::string_view("prod")) found.push_back(DType::f16);
    if (line_.is('n') || line_.is('a'))
      found.insert(found.end(), {DType::i32, DType::i64, DType::u8});
    if (line_.is('a')) found.push_back(DType::boolean);
    return found;
  }
  void with_sizes(const Sizes& sizes, bool every_layout) {
    std::vector<Operand> operands;
    if (!make_operands(line_, sizes, dtype_, Rng{17}, operands)) return;
    with_operands(operands, every_layout);
  }

  void specials() {
    std::vector<Operand> ordinary;
    if (!make_operands(line_, odd_sizes(), dtype_, Rng{18}, ordinary)) return;
    for (std::size_t i = 0; i < ordinary.size(); ++i)
      for (int s = 1; s < kSpecials; ++s) {
        std::vector<Operand> operands = ordinary;
        if (!plant(static_cast<Special>(s), operands[i])) continue;
        constexpr const char* kNames[] = {"", "NaN", "infinity", "a row of -infinity",
                                          "a row of 0"};
        sizes_text_ = message("odd, {} in operand {}", kNames[s], i);
        gradients_ = !line_.is('s');
        special_ = true;
        with_operands(operands, false);
      }
    gradients_ = true;
    special_ = false;
  }

  void with_operands(const std::vector<Operand>& operands, bool every_layout) {
    wanted_.clear();
    plain_.clear();
    std::vector<Layout> layouts(operands.size(), Layout::contiguous);
    once(operands, layouts, Layout::contiguous);
    if (every_layout)
      for (std::size_t i = 0; i < operands.size(); ++i)
        for (int l = 1; l < kLayouts; ++l) {
          if (!changes(operands[i].shape, layout_of(l))) continue;
          layouts[i] = layout_of(l);
          once(operands, layouts, Layout::contiguous);
          layouts[i] = Layout::contiguous;
        }
    for (int round = 0; round < (every_layout ? 4 : device_.is_gpu() ? 1 : 2); ++round) {
      for (Layout& l : layouts) l = layout_of(static_cast<int>(rng_.below(kLayouts)));
      once(operands, layouts, layout_of(static_cast<int>(rng_.below(kLayouts))));
    }
  }

  void once(std::vector<Operand> operands, const std::vector<Layout>& layouts, Layout cotangent) {
    if (!failure_.empty()) return;
    if (device_.is_gpu() && drawn_++ % share() != 0) return;
    // Rows of equal numbers cancel, and with an infinity rounding decides the result.
    if (line_.is('d') || (special_ && line_.is('c')))
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (repeated_axis(operands[i].shape, layouts[i]) >= 0) return;
    ++cases_;
    // Runs with equal values share one reference.
    std::string key;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      repeat_values(layouts[i], operands[i].shape, operands[i].values);
      key += static_cast<char>('1' + repeated_axis(operands[i].shape, layouts[i]));
    }
    const bool repeats =
        cotangent == Layout::broadcast_first || cotangent == Layout::broadcast_last;
    key += repeats ? static_cast<char>('0' + static_cast<int>(cotangent)) : ' ';
    const bool backward = gradients_ && is_compute(dtype_);
    const std::vector<Layout> contiguous(operands.size(), Layout::contiguous);
    const auto reference = [&](auto& known, DType dtype, Device device) -> const Outcome& {
      const auto [at, fresh] = known.try_emplace(key);
      if (fresh)
        at->second = run(line_, operands, contiguous, {cotangent, Layout::contiguous}, dtype,
                         device, backward);
      return at->second;
    };
    const Outcome& want = reference(wanted_, DType::f64, kCpu);
    const Outcome got =
        run(line_, operands, layouts, {cotangent, cotangent}, dtype_, device_, backward);
    std::string why = difference(got, want, line_, dtype_);
    if (why.empty() && !line_.is('~') && !device_.is_gpu())
      why = bit_difference(got, reference(plain_, dtype_, device_));
    if (why.empty()) return;
    std::string places;
    for (const Layout l : layouts) places += message("{} ", name(l));
    failure_ =
        message("WEFT_GENERATED_OP={} [{}] {} on {}, {}, layouts {}and {} cotangents: {}", line_.op,
                line_.operands, dtype_, device_, sizes_text_, places, name(cotangent), why);
  }

  const OpLine& line_;
  Device device_;
  std::string letters_, sizes_text_, failure_;
  DType dtype_ = DType::f64;
  Rng rng_{4};
  int cases_ = 0, drawn_ = 0;
  bool gradients_ = true, special_ = false;
  std::map<std::string, Outcome> wanted_, plain_;
};

void run_table(Device device) {
  const char* only = std::getenv("WEFT_GENERATED_OP");
  int cases = 0;
  std::set<std::string> ops;
  for (const OpLine& line : ops_table()) {
    if (only && std::string(only) != line.op) continue;
    // Only for every eighth op, because it is slow; the emulated_* tests use it for every kernel.
    emu::control.host_faults = ops.size() % 8 == 0;
    Runs runs(line, device);
    runs.all();
    cases += runs.cases();
    ops.insert(line.op);
    CHECK_MESSAGE(runs.failure().empty(), runs.failure());
  }
  std::cout << message("generated on {}: {} cases over {} ops\n", device, cases, ops.size());
  CHECK(cases > 0);
  emu::control.host_faults = true;
}

}  // namespace

TEST_CASE("generated: every op, dtype, layout and size on the CPU") { run_table(kCpu); }

TEST_CASE("generated: every op, dtype, layout and size on the emulated GPU") {
  run_table({Device::Kind::cuda, 0});
}

TEST_CASE("generated: the table has exactly the ops of docs/ops.md") {
  const std::map<std::string, OpRow> rows = read_ops_page();
  std::set<std::string> present;
  for (const OpLine& line : ops_table()) present.insert(line.op);
  CHECK(rows.size() > 100);
  for (const auto& [op, row] : rows) CHECK_MESSAGE(present.count(op) == 1, op);
  for (const std::string& op : present) CHECK_MESSAGE(rows.count(op) == 1, op);
}

}  // namespace weft::generated_ops_test
