#include "weft/tests/generated/op_runs.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/error.h"

namespace weft::generated {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One word of a line: "B2F:w".
struct Word {
  std::string axes;
  char kind = 0;
  char bound = 0;
};

std::vector<Word> words(const OpLine& line) {
  std::vector<Word> found(1);
  bool axes = true;
  for (const char* p = line.operands; *p; ++p) {
    if (*p == ' ') {
      found.emplace_back();
      axes = true;
    } else if (*p == ':') {
      axes = false;
    } else if (axes) {
      found.back().axes += *p;
    } else if (found.back().kind == 0) {
      found.back().kind = *p;
    } else {
      found.back().bound = *p;
    }
  }
  return found;
}

Shape shape_of(const Word& word, const Sizes& sizes) {
  Shape shape;
  std::int64_t factor = 1;
  bool fixed = false;
  for (const char c : word.axes) {
    if (c == '=') {
      fixed = true;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      if (fixed)
        shape.push_back(c - '0');
      else
        factor = c - '0';
      fixed = false;
    } else {
      shape.push_back(factor * sizes.at(c));
      factor = 1;
    }
  }
  return shape;
}

bool is_index(char kind) { return kind == 'i' || kind == 'j'; }

double draw(char kind, std::int64_t bound, DType dtype, Rng& rng) {
  if (is_index(kind)) return static_cast<double>(rng.below(bound));
  if (kind == 'b' || dtype == DType::boolean) return static_cast<double>(rng.below(2));
  if (kind == 'u') return rng.uniform(0, 1);
  if (kind == 'n') return rng.uniform(-1, 0);
  if (kind == 'p' && is_floating(dtype)) return rng.uniform(0.5, 2);
  if (!is_floating(dtype))
    return static_cast<double>(kind == 'p' ? 1 + rng.below(9) : rng.below(10));
  return rng.normal();
}

// Numbers that bf16 represents exactly, so that a cotangent is the same in every dtype.
std::vector<double> cotangent_values(std::int64_t count, std::uint64_t seed) {
  Rng rng{seed * 1000 + 77};
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<double>(rng.below(257) - 128) / 64);
  return values;
}

Outcome::Part part(std::string what, const Tensor& t) {
  return {std::move(what), t.dtype(), t.shape(), values_of(t)};
}

double bound_of(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 2e-2;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double v : values)
    if (std::isfinite(v)) most = std::max(most, std::abs(v));
  return most;
}

std::string part_difference(const Outcome::Part& got, const Outcome::Part& want, const OpLine& line,
                            DType dtype) {
  if (!(got.shape == want.shape))
    return message("{}: shape {} where {} was expected", got.what, got.shape, want.shape);
  // A result wider than the operands has their error, a narrower one its own.
  const DType coarse =
      is_floating(got.dtype) && size_of(got.dtype) < size_of(dtype) ? got.dtype : dtype;
  double bound = is_compute(coarse) ? bound_of(coarse) : 0;
  if (line.is('l')) bound *= 8;
  bound *= std::max(largest(want.values), line.is('c') ? 1 : 1e-3);
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    double a = got.values[i], b = want.values[i];
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b) continue;
    if (got.dtype == DType::u8 && a == b - 256 * std::floor(b / 256)) continue;  // wraps
    const bool exact = !is_compute(got.dtype) && !is_floating(want.dtype);
    if (exact || !(std::abs(a - b) <= bound))
      return message("{} {} {}, element {}: {} where {} was expected", got.what, got.dtype,
                     got.shape, i, a, b);
  }
  return "";
}

}  // namespace

DType Operand::dtype(DType run) const {
  if (kind == 'b') return DType::boolean;
  if (kind == 'i') return DType::i64;
  if (kind == 'j') return DType::i32;
  if (kind == 'h') return DType::f32;
  if (kind == 'w' || kind == 'u' || kind == 'n') return run == DType::f64 ? run : DType::f32;
  return run;
}

Sizes odd_sizes() {
  return {{'A', 2}, {'B', 2}, {'C', 5}, {'D', 3}, {'E', 4}, {'F', 3}, {'H', 2}, {'I', 5},
          {'K', 5}, {'M', 3}, {'N', 7}, {'O', 3}, {'S', 6}, {'T', 5}, {'V', 7}};
}

std::string letters(const OpLine& line) {
  std::string found;
  for (const Word& word : words(line))
    for (const char c : word.axes)
      if (std::isalpha(static_cast<unsigned char>(c)) && found.find(c) == std::string::npos)
        found += c;
  return found;
}

bool make_operands(const OpLine& line, const Sizes& sizes, DType dtype, Rng rng,
                   std::vector<Operand>& operands) {
  operands.clear();
  for (const Word& word : words(line)) {
    Operand operand{shape_of(word, sizes), word.kind, {}};
    const std::int64_t count = operand.shape.numel();
    std::int64_t bound = 0;
    if (is_index(word.kind)) {
      bound = std::isdigit(static_cast<unsigned char>(word.bound)) ? word.bound - '0'
                                                                   : sizes.at(word.bound);
      if (bound == 0 && count > 0) return false;
    }
    const DType own = operand.dtype(dtype);
    for (std::int64_t i = 0; i < count; ++i)
      operand.values.push_back(draw(word.kind, bound, own, rng));
    // The f64 reference starts from the same rounded numbers.
    const DType narrow = is_compute(dtype) && is_compute(own) ? dtype : own;
    operand.values = values_of(Tensor::from<double>(operand.values, operand.shape).to(narrow));
    operands.push_back(std::move(operand));
  }
  return true;
}

bool plant(Special special, Operand& operand) {
  if (operand.kind != 0 && operand.kind != 'w') return false;
  const std::size_t count = operand.values.size();
  if (count == 0 || operand.shape.empty()) return false;
  const auto row = static_cast<std::size_t>(operand.shape.back());
  const std::size_t start = (count / 2) / row * row;
  if (special == Special::nan) operand.values[count / 2] = std::nan("");
  if (special == Special::infinity) operand.values[count / 2] = kInf;
  for (std::size_t i = start; i < start + row; ++i) {
    if (special == Special::masked_row) operand.values[i] = -kInf;
    if (special == Special::zeros) operand.values[i] = 0;
  }
  return true;
}

Outcome run(const OpLine& line, const std::vector<Operand>& operands,
            const std::vector<Layout>& layouts, const Cotangent& cotangent, DType dtype,
            Device device, bool gradients) {
  Outcome outcome;
  try {
    TensorList in, leaves;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Operand& o = operands[i];
      Tensor t = tensor_in(layouts[i], o.shape, o.values, o.dtype(dtype), device);
      if (is_compute(t.dtype())) leaves.push_back(t.set_requires_grad());
      in.push_back(std::move(t));
    }
    const TensorList plain = line.call(in);
    for (int i = 0; i < plain.size(); ++i)
      if (plain[i].defined()) outcome.parts.push_back(part(message("result {}", i), plain[i]));
    for (int i = 0; gradients && i < plain.size(); ++i) {
      if (!plain[i].defined() || !is_compute(plain[i].dtype())) continue;
      Tape tape;
      Tensor y = line.call(in)[i];
      if (std::any_of(in.begin(), in.end(), [&y](const Tensor& x) { return x.same(y); }))
        y = mul(y, 1);  // an op may return its operand, which no op has recorded
      if (!Tape::follows(y)) continue;
      std::vector<double> dy = cotangent_values(y.numel(), static_cast<std::uint64_t>(i));
      repeat_values(cotangent.values, y.shape(), dy);
      const TensorList found = tape.gradients(
          y, leaves, tensor_in(cotangent.memory, y.shape(), dy, y.dtype(), y.device()));
      for (int k = 0; k < found.size(); ++k)
        if (found[k].defined())
          outcome.parts.push_back(
              part(message("d(result {})/d(floating operand {})", i, k), found[k]));
    }
  } catch (const Error& e) {
    outcome.error = e.what();
  }
  return outcome;
}

std::string difference(const Outcome& got, const Outcome& want, const OpLine& line, DType dtype) {
  if (got.error.empty() != want.error.empty())
    return message("error '{}' where '{}' was expected", got.error, want.error);
  if (!want.error.empty()) return "";
  if (got.parts.size() != want.parts.size())
    return message("{} results and gradients where {} were expected", got.parts.size(),
                   want.parts.size());
  for (std::size_t i = 0; i < want.parts.size(); ++i)
    if (const std::string why = part_difference(got.parts[i], want.parts[i], line, dtype);
        !why.empty())
      return why;
  return "";
}

std::string bit_difference(const Outcome& got, const Outcome& want) {
  if (got.error != want.error)
    return message("error '{}' where '{}' was expected", got.error, want.error);
  for (std::size_t i = 0; i < want.parts.size(); ++i) {
    const Outcome::Part &a = got.parts[i], &b = want.parts[i];
    for (std::size_t k = 0; k < a.values.size(); ++k) {
      const double x = a.values[k], y = b.values[k];
      if (std::isnan(x) && std::isnan(y)) continue;
      if (std::memcmp(&x, &y, sizeof x) != 0)
        return message("{} {} {}, element {}: {} where the contiguous run gives {}", a.what,
                       a.dtype, a.shape, k, x, y);
    }
  }
  return "";
}

}  // namespace weft::generated
