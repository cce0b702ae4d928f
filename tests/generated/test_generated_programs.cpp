#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/tests/generated/ops_page.h"
#include "weft/tests/generated/program_check.h"

// Compares random programs of up to 12 ops with the interpreter: every value, the gradient and the
// Hessian in a random direction, and the same under recompute.
//   WEFT_GENERATED_PROGRAMS=20000  number of programs (2000)
//   WEFT_GENERATED_SEED=7          seed of all of them (1)
//   WEFT_GENERATED_PROGRAM=381     runs only this one

namespace weft::generated_programs_test {
using namespace weft::generated;

namespace {

constexpr std::uint64_t kPrograms = 2000;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Composed ops round intermediate results too, and those may be beyond the range of f16.
bool overflows(const How& how, const std::string& why) {
  return how.dtype == DType::f16 &&
         (why.find("inf where") != why.npos || why.find("nan where") != why.npos);
}

// What the programs of a run contain.
struct Contents {
  std::map<int, std::uint64_t> ops;
  std::uint64_t programs = 0, steps = 0, of_ten = 0, twice_differentiable = 0;
  std::uint64_t overflows = 0, operand_twice = 0, broadcast = 0, empty = 0, not_contiguous = 0;

  void add(const Program& program, const std::vector<Array>& exact) {
    std::uint64_t count = 0;
    bool twice = false, broadcasts = false, none = false, strided = false;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Item& item = program[i];
      none |= exact[i].at.empty();
      strided |= item.op < 0 && changes(item.shape, item.layout);
      if (item.op < 0) continue;
      ++count;
      ++ops[item.op];
      if (item.in.size() < 2) continue;
      const auto shape = [&](std::size_t k) {
        return exact[static_cast<std::size_t>(item.in[k])].shape;
      };
      twice |= item.in[0] == item.in[1];
      broadcasts |= exact[i].shape == shape(0) && !(shape(1) == shape(0));
    }
    ++programs;
    steps += count;
    of_ten += count >= 10;
    twice_differentiable += start_of_order_two(program) > 2;
    operand_twice += twice;
    broadcast += broadcasts;
    empty += none;
    not_contiguous += strided;
  }
};

// The failing program and its shortest failing part.
std::string report(const Program& program, const How& how, Rng rng, std::uint64_t seed,
                   std::uint64_t number, std::string why) {
  Program least = program;
  for (int last = 0; last < static_cast<int>(program.size()); ++last) {
    const Program part = only_for(program, last);
    const std::string also = check_program(part, interpret(part), how, rng);
    if (also.empty()) continue;
    least = part;
    why = also;
    break;
  }
  return message("WEFT_GENERATED_SEED={} WEFT_GENERATED_PROGRAM={} ({} on {}): {}\n{}", seed,
                 number, how.dtype, how.device, why, to_string(least, interpret(least)));
}

Contents run_programs(const How& how) {
  const std::uint64_t seed = setting("WEFT_GENERATED_SEED", 1);
  const std::uint64_t first = setting("WEFT_GENERATED_PROGRAM", 0);
  const std::uint64_t end = std::getenv("WEFT_GENERATED_PROGRAM") ? first + 1 : how.count;
  Contents seen;
  std::uint64_t wrong = 0;
  for (std::uint64_t number = first; number < end; ++number) {
    const Rng rng{seed * 1000003 + number};
    std::vector<Array> exact;
    const Program program = make_program(rng, 12, how.rounding, exact);
    const std::string why = check_program(program, exact, how, rng);
    seen.add(program, exact);
    if (why.empty()) continue;
    if (overflows(how, why)) {
      ++seen.overflows;
      continue;
    }
    if (++wrong <= 10) {
      const std::string text = report(program, how, rng, seed, number, why);
      CHECK_MESSAGE(false, text);
    }
  }
  std::cout << message(
      "generated: {} programs ({} of ten ops or more), {} ops of {} kinds, {} on {}, seed {}\n",
      seen.programs, seen.of_ten, seen.steps, seen.ops.size(), how.dtype, how.device, seed);
  CHECK(wrong == 0);
  CHECK(seen.overflows <= seen.programs / 200);
  CHECK(seen.programs > 0);
  return seen;
}

std::uint64_t programs() { return setting("WEFT_GENERATED_PROGRAMS", kPrograms); }

constexpr Rounding kF32{0x1p-24, 0x1p-24, 1e-3};
constexpr Rounding kBf16{0x1p-8, 0x1p-24, 5e-2};
constexpr Rounding kF16{0x1p-11, 0x1p-24, 1e-2};

}  // namespace

TEST_CASE("generated: programs in values, gradients, second order and under recompute") {
  const Contents seen = run_programs({.count = programs()});
  if (seen.programs < kPrograms) return;
  for (std::size_t i = 0; i < program_ops().size(); ++i)
    CHECK_MESSAGE(seen.ops.count(static_cast<int>(i)) == 1, std::string(program_ops()[i].name));
  const std::uint64_t share = seen.programs / 50;
  CHECK(seen.of_ten > seen.programs / 2);
  CHECK(seen.twice_differentiable > seen.programs / 2);
  CHECK(seen.operand_twice > share);
  CHECK(seen.broadcast > share);
  CHECK(seen.empty > share);
  CHECK(seen.not_contiguous > seen.programs / 2);
}

TEST_CASE("generated: programs have every op of docs/ops.md") {
  const std::map<std::string, OpRow> page = read_ops_page();
  CHECK(page.size() > 100);
  std::set<std::string> present;
  for (const ProgramOp& op : program_ops()) {
    std::istringstream words(op.name);
    std::string word;
    words >> word;
    const bool known = word.starts_with("Tensor::") || page.count(word) == 1;
    CHECK_MESSAGE(known, std::string(op.name));
    do present.insert(word);
    while (words >> word);
  }
  // A row in tests/generated/program_*.cpp is missing for the op that a failure names.
  for (const auto& row : page) CHECK_MESSAGE(present.count(row.first) == 1, row.first);
}

TEST_CASE("generated: programs in f32") {
  run_programs({.dtype = DType::f32, .rounding = kF32, .count = programs()});
}

TEST_CASE("generated: programs in bf16") {
  run_programs({.dtype = DType::bf16, .rounding = kBf16, .count = programs()});
}

TEST_CASE("generated: programs in f16") {
  run_programs({.dtype = DType::f16, .rounding = kF16, .count = programs()});
}

TEST_CASE("generated: programs on the emulated GPU") {
  const Device gpu{Device::Kind::cuda, 0};
  run_programs({DType::f32, gpu, kF32, programs() / 10});
}

}  // namespace weft::generated_programs_test
