// Rounding to FP8 with scales. tests/fixtures/make_fp8.py stores digests of PyTorch's casts.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8.h"
#include "weft/autograd/tape.h"
#include "weft/core/dispatch.h"
#include "weft/core/parallel.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::fp8_test {

namespace {

using fp8::Quantized;
using test::different_bits;
using test::error_of;
using test::random;

constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};

// Calls f with every table of row kernels that this processor runs.
template <class F>
void each_isa(F f) {
  const test::RestoreKernels kernels_of_process;
  for (const SimdTable* table : test::simd_tables()) {
    set_simd(table->name);
    CAPTURE(table->name);
    f();
  }
}

std::string fnv(const void* data, std::size_t n) {
  std::uint64_t h = 1469598103934665603u;
  for (std::size_t i = 0; i < n; ++i)
    h = (h ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(h));
  return text;
}

// Codes of x times one scale; every NaN is 0x7f, as in the fixture.
std::vector<std::uint8_t> codes_of(const Tensor& x, DType to, float scale = 1) {
  const Tensor s = Tensor::full({1}, static_cast<double>(scale)),
               out = Tensor::empty(x.shape(), to);
  cpu::quantize(x, {.count = 1, .each = x.dim(0)}, s, out, {});
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(x.numel()));
  std::memcpy(codes.data(), out.raw(), codes.size());
  for (std::uint8_t& c : codes)
    if (to == DType::e4m3 ? (c & 0x7f) == 0x7f : (c & 0x7f) > 0x7c) c = 0x7f;
  return codes;
}

std::string digest(const Tensor& x, DType to, float scale = 1) {
  const auto codes = codes_of(x, to, scale);
  return fnv(codes.data(), codes.size());
}

Tensor of_bits(std::int64_t n, std::uint32_t (*bits)(std::uint64_t i)) {
  Tensor x = Tensor::empty({n, 1}, DType::f32);
  for (std::int64_t i = 0; i < n; ++i)
    x.data<float>()[i] = std::bit_cast<float>(bits(static_cast<std::uint64_t>(i)));
  return x;
}

// The inputs of make_fp8.py.
std::uint32_t spread(std::uint64_t i) { return static_cast<std::uint32_t>(i * 2654435761u); }
std::uint32_t near_ties(std::uint64_t i) {
  const std::uint64_t exponent = 100 + i % 44;
  const std::uint64_t mantissa =
      ((i / 44 % 32) << 18) + (i / 1408 % 5 + (1u << 18) - 2) % (1u << 18);
  return static_cast<std::uint32_t>(i % 2 << 31 | exponent << 23 | mantissa % (1u << 23));
}
std::uint32_t of_matrix(std::uint64_t i) {
  const std::uint64_t r = i * 2654435761u % (std::uint64_t{1} << 32);
  return static_cast<std::uint32_t>((r >> 31) << 15 | (114 + (r >> 20) % 14) << 7 | (r >> 8) % 128)
         << 16;
}

float scale_of(float amax, float largest, const Fp8Scaling& how) {
  const Tensor a = Tensor::full({1}, static_cast<double>(amax)), s = Tensor::empty({1}),
               inverse = Tensor::empty({1});
  cpu::fp8_scale(a, largest, how, s, inverse);
  return s.data<float>()[0];
}

std::vector<int> bytes_of(const Tensor& q) {
  std::vector<int> out;
  for (std::int64_t i = 0; i < q.numel(); ++i)
    out.push_back(static_cast<const std::uint8_t*>(q.raw())[i]);
  return out;
}

}  // namespace

TEST_CASE("fp8: codes equal PyTorch's for every bf16 and a million f32") {
  const io::Json want = io::Json::parse(io::read_file(std::string(WEFT_FIXTURES) + "/fp8.json"));
  Tensor bf16s = Tensor::empty({65536, 1}, DType::bf16);
  for (int i = 0; i < 65536; ++i) bf16s.data<bf16>()[i].bits = static_cast<std::uint16_t>(i);
  const Tensor million = of_bits(1'000'000, spread), ties = of_bits(262'144, near_ties);
  for (const DType to : kFormats) {
    CAPTURE(std::string(name(to)));
    const io::Json& torch = want.at(name(to));
    each_isa([&] {
      const auto codes = codes_of(bf16s, to);
      for (std::size_t i = 0; i < 16; ++i) {
        CAPTURE(i);
        CHECK(fnv(codes.data() + 4096 * i, 4096) == torch.at("bf16").items()[i].as_string());
      }
      CHECK(digest(million, to) == torch.at("f32").as_string());
      CHECK(digest(ties, to) == torch.at("near").as_string());
    });
  }
}

TEST_CASE("fp8: scales and a scaled matrix equal PyTorch's") {
  const io::Json want = io::Json::parse(io::read_file(std::string(WEFT_FIXTURES) + "/fp8.json"));
  const Tensor million = of_bits(1'000'000, spread);
  const Tensor x = of_bits(96 * 80, of_matrix).view({96, 80}).to(DType::bf16);
  for (const DType to : kFormats) {
    CAPTURE(std::string(name(to)));
    const io::Json& torch = want.at(name(to));
    std::vector<float> scales;
    for (std::int64_t i = 0; i < million.numel(); i += 1000) {
      const float amax = std::fabs(million.data<float>()[i]);
      if (std::isfinite(amax) && amax > 0x1p-100f)
        scales.push_back(scale_of(amax, fp8_largest(to), {}));
    }
    CHECK(fnv(scales.data(), 4 * scales.size()) == torch.at("scales").as_string());
    each_isa([&] {
      const Quantized q = fp8::quantize(x, {.each = 96}, to, {}, {.rows = true, .columns = true});
      CHECK(fnv(q.inverse.raw(), 4) == torch.at("inverse").as_string());
      CHECK(fnv(q.rows.raw(), 96 * 80) == torch.at("matrix").as_string());
      const Tensor back = Tensor::wrap(q.columns.raw(), {80, 96}, DType::u8);
      CHECK(different_bits(back.t().contiguous(),
                           Tensor::wrap(q.rows.raw(), {96, 80}, DType::u8)) == "");
    });
  }
}

TEST_CASE("fp8: codes are those of the types") {
  const Tensor x = of_bits(200'000, near_ties);
  for (const DType to : kFormats) {
    const Tensor out = Tensor::empty(x.shape(), to);
    cpu::quantize(x, {.each = x.dim(0)}, Tensor::ones({1}), out, {});
    CHECK(different_bits(out, x.to(to)) == "");
  }
}

TEST_CASE("fp8: golden scales, codes and numbers of current scaling") {
  const Tensor x = Tensor::of({{0.1, -0.5, 1, 3.3, -0.001, 0}});
  const Quantized q = fp8::quantize(x, {.each = 1}, DType::e4m3, {});
  CHECK(q.inverse.item<float>() == 0.00736607099f);
  CHECK(scale_of(3.3f, 448, {}) == 135.757584f);
  CHECK(bytes_of(q.rows) == std::vector<int>{0x56, 0xe8, 0x70, 0x7e, 0xa1, 0});
  const auto close = [](const Tensor& got, const Tensor& want) {
    return test::mismatch(got, want, 1e-6);
  };
  CHECK(close(fp8::dequantize(q, {.each = 1}, DType::f32),
              Tensor::of({{0.103125, -0.471429, 0.942857, 3.3, -0.00103585, 0}})) == "");
  const Fp8Scaling pow2{.power_of_two = true};
  const Quantized p = fp8::quantize(x, {.each = 1}, DType::e4m3, pow2);
  CHECK(p.inverse.item() == 0.0078125);
  CHECK(bytes_of(p.rows) == std::vector<int>{0x55, 0xe8, 0x70, 0x7d, 0xa0, 0});
  CHECK(close(fp8::dequantize(p, {.each = 1}, DType::f32),
              Tensor::of({{0.1015625, -0.5, 1, 3.25, -0.000976562, 0}})) == "");
}

TEST_CASE("fp8: scales of zero, infinity, NaN, tiny numbers, and with an epsilon") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const bool pow2 : {false, true}) {
    const Fp8Scaling how{.power_of_two = pow2};
    CHECK(scale_of(1, 448, how) == (pow2 ? 256 : 448));
    CHECK(scale_of(448, 448, how) == 1);
    CHECK(scale_of(1000, 448, how) == (pow2 ? 0.25f : 0.448f));
    for (const float special : {0.0f, inf, nan}) CHECK(scale_of(special, 448, how) == 1);
    CHECK(scale_of(1e-37f, 448, how) == (pow2 ? 0x1p127f : std::numeric_limits<float>::max()));
  }
  CHECK(scale_of(1e-3f, 448, {.epsilon = 1}) == 448);
  CHECK(scale_of(0, 448, {.epsilon = 2}) == 224);
  CHECK(scale_of(nan, 448, {.epsilon = 2}) == 1);
  CHECK(scale_of(1, 448, {.margin = 2}) == 112);
}

TEST_CASE("fp8: the largest magnitude with NaN, infinity and without elements, for any threads") {
  const auto amax = [](const Tensor& x) {
    const Tensor out = Tensor::empty({1});
    cpu::fp8_amax(x, {.each = x.dim(0)}, false, out);
    return out.item<float>();
  };
  const test::RestoreThreads restore;
  for (const DType t : {DType::f32, DType::bf16})
    each_isa([&] {
      for (const int n : {1, 3}) {
        set_num_threads(n);
        Tensor x = random({333, 77}, 3).to(t);
        x.select(0, 200).select(0, 5).fill_(-20);
        CHECK(amax(x) == 20);
        x.select(0, 1).select(0, 5).fill_(-INFINITY);
        CHECK(std::isinf(amax(x)));
        x.select(0, 300).select(0, 76).fill_(NAN);
        CHECK(std::isnan(amax(x)));
        CHECK(amax(Tensor::empty({0, 7}, t)) == 0);
      }
    });
}

TEST_CASE("fp8: an infinite or NaN element stays visible, and the others keep their values") {
  const Tensor x = Tensor::of({{1, -INFINITY, NAN, 2}});
  const auto round = [&](DType to) {
    return fp8::dequantize(fp8::quantize(x, {.each = 1}, to, {}), {.each = 1}, DType::f32);
  };
  CHECK(different_bits(round(DType::e5m2), x, test::Nan::allowed) == "");
  // e4m3 has no infinity: the largest number.
  CHECK(different_bits(round(DType::e4m3), Tensor::of({{1, -448, NAN, 2}}), test::Nan::allowed) ==
        "");
}

TEST_CASE("fp8: groups of rows have their own scales, also an empty one") {
  const std::int64_t rows[] = {3, 0, 2};
  const RowGroups groups{.count = 3, .rows = rows};
  const Tensor x = random({5, 7}, 4, DType::f32);
  const Quantized all = fp8::quantize(x, groups, DType::e4m3, {}, {.rows = true, .columns = true});
  CHECK(all.inverse.select(0, 1).item() == 1);
  std::int64_t first = 0;
  for (const std::int64_t g : {0, 2}) {
    const Tensor part = x.narrow(0, first, rows[g]).contiguous();
    const Quantized own =
        fp8::quantize(part, {.each = rows[g]}, DType::e4m3, {}, {.rows = true, .columns = true});
    CHECK(all.inverse.select(0, g).item() == own.inverse.item());
    const auto same = [&](const Tensor& a, const Tensor& b) {
      return std::memcmp(static_cast<const char*>(a.raw()) + first * 7, b.raw(),
                         static_cast<std::size_t>(rows[g] * 7)) == 0;
    };
    CHECK(same(all.rows, own.rows));
    CHECK(same(all.columns, own.columns));
    first += rows[g];
  }
}

TEST_CASE("fp8: the reduction over ranks is called once, without rows too, and sets the scale") {
  int calls = 0;
  const fp8::ReduceAmax raise = [&](const Tensor& amax) {
    ++calls;
    amax.fill_(1e4);
  };
  const Quantized q =
      fp8::quantize(random({4, 8}, 1, DType::f32), {.each = 4}, DType::e4m3, {}, {}, raise);
  CHECK(calls == 1);
  CHECK(q.inverse.item<float>() == 1 / (448 / 1e4f));
  fp8::quantize(Tensor::empty({0, 8}), {.each = 0}, DType::e4m3, {}, {}, raise);
  CHECK(calls == 2);
}

TEST_CASE("fp8: block scales equal those of the blocks alone, and are powers of two") {
  const std::int64_t rows[] = {5, 0, 4};
  const RowGroups groups{.count = 3, .rows = rows};
  const Fp8Scaling how{.power_of_two = true};
  const Tensor x = random({9, 11}, 4, DType::f32);
  for (const Fp8Tile tile : {Fp8Tile{1, 4}, Fp8Tile{4, 1}, Fp8Tile{3, 3}, Fp8Tile{128, 128}}) {
    CAPTURE(tile.rows);
    CAPTURE(tile.columns);
    const Quantized q = fp8::quantize_tiles(x, groups, DType::e4m3, tile, how);
    const Tensor got = fp8::dequantize(q, groups, DType::f32), want = Tensor::empty({9, 11});
    std::int64_t block = 0, first = 0;
    for (const std::int64_t n : rows) {
      for (std::int64_t top = first; top < first + n; top += tile.rows)
        for (std::int64_t left = 0; left < 11; left += tile.columns) {
          const std::int64_t high = std::min(tile.rows, first + n - top),
                             wide = std::min<std::int64_t>(tile.columns, 11 - left);
          const Tensor part = x.narrow(0, top, high).narrow(1, left, wide).contiguous();
          const Quantized own = fp8::quantize(part, {.each = high}, DType::e4m3, how);
          const double inverse = own.inverse.item();
          CHECK(std::exp2(std::round(std::log2(inverse))) == inverse);
          CHECK(q.inverse.view({-1}).select(0, block++).item() == inverse);
          want.narrow(0, top, high)
              .narrow(1, left, wide)
              .copy_(fp8::dequantize(own, {.each = high}, DType::f32));
        }
      first += n;
    }
    CHECK(different_bits(got, want) == "");
    // Powers of two make the numbers exact in bf16.
    CHECK(different_bits(fp8::dequantize(q, groups, DType::bf16).to(DType::f32), got) == "");
  }
}

TEST_CASE("fp8: rows that travel round alike everywhere, and rounding again changes nothing") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t cols : {1, 128, 300}) {
      Tensor x = mul(random({5, cols}, 4), exp(mul(random({5, 1}, 6), 9))).to(dtype);
      x.select(0, 2).fill_(0);
      x.set_requires_grad();
      Tape tape;
      const Tensor y = fp8::rounded_rows(x);
      const Tensor dy = random(y.shape(), 3, dtype);
      CHECK(different_bits(tape.gradients(y, {x}, dy)[0], dy) == "");
      CHECK(different_bits(fp8::rounded_rows(y), y.detach()) == "");
      CHECK(test::mismatch(y, x.detach(), 0.07) == "");
      for (std::int64_t r = 0; r < 5; ++r)
        CHECK(different_bits(fp8::rounded_rows(x.detach().narrow(0, r, 1)),
                             y.detach().narrow(0, r, 1).clone()) == "");
    }
  CHECK(fp8::rounded_rows(Tensor::empty({0, 8})).shape() == Shape{0, 8});
  CHECK(std::isnan(fp8::rounded_rows(Tensor::of({{1, NAN}})).select(1, 1).item()));
  CHECK(error_of([&] {
          fp8::rounded_rows(random({2, 3}, 1));
        }) == "fp8::quantize_tiles: x must be f32 or bf16, got f64");
}

TEST_CASE("fp8: the error of rounding normal numbers is that of the reference") {
  const Tensor x = random({1024, 1024}, 5, DType::bf16);
  for (const bool pow2 : {false, true}) {
    const Quantized q = fp8::quantize(x, {.each = 1024}, DType::e4m3, {.power_of_two = pow2});
    const Tensor error = fp8::dequantize(q, {.each = 1024}, DType::f32) - x.to(DType::f32);
    const double relative = test::rms(error) / test::rms(x);
    CHECK(relative > 0.0255);
    CHECK(relative < 0.0275);
  }
}

TEST_CASE("fp8: delayed scales come from the steps before") {
  const fp8::Delayed state{.history = Tensor::zeros({3, 3}), .scale = Tensor::zeros({3})};
  const fp8::Recipe recipe{.scaling = fp8::Scaling::delayed, .history = 3, .margin = 1};
  const auto step = [&](double size, fp8::Operand operand) {
    const Tensor x = Tensor::full({16, 16}, size);
    const Quantized q = fp8::quantize_delayed(
        x, {.each = 16}, operand == fp8::Operand::gradient ? DType::e5m2 : DType::e4m3, state,
        operand, true);
    return 1 / q.inverse.item();
  };
  CHECK(step(7, fp8::Operand::x) == 1);  // no history yet
  CHECK(step(2, fp8::Operand::x) == 1);  // the larger one of a step counts
  CHECK(step(1, fp8::Operand::gradient) == 1);
  fp8::roll(state, recipe);
  CHECK(state.scale.select(0, 0).item() == 32);  // 448 / 7 / 2
  CHECK(state.scale.select(0, 1).item() == 0);   // never seen
  CHECK(state.scale.select(0, 2).item() == 57344 / 2);
  CHECK(step(3.5, fp8::Operand::x) == 32);
  fp8::roll(state, recipe);
  for (int i = 0; i < 2; ++i) {
    CHECK(step(3.5, fp8::Operand::x) == 32);  // 7 is one of the last three
    fp8::roll(state, recipe);
  }
  CHECK(step(3.5, fp8::Operand::x) == 64);
  fp8::quantize_delayed(Tensor::full({16, 16}, 100), {.each = 16}, DType::e4m3, state,
                        fp8::Operand::x, false);  // evaluation leaves no trace
  fp8::roll(state, recipe);
  CHECK(state.scale.select(0, 0).item() == 64);
}

TEST_CASE("fp8: wrong recipes and operands") {
  CHECK(error_of([] { fp8::Recipe{.history = 0}.validate(); }) ==
        "fp8: history must be in [1, 1048576], got 0");
  CHECK(error_of([] { fp8::Recipe{.margin = 33}.validate(); }) ==
        "fp8: margin must be in [-32, 32], got 33");
  CHECK(error_of([] { fp8::Recipe{.epsilon = -1}.validate(); }) ==
        "fp8: epsilon must be at least 0, got -1");
  const auto quantize = [](const Tensor& x, std::int64_t rows) {
    return error_of([&] { fp8::quantize(x, {.each = rows}, DType::e4m3, {}); });
  };
  CHECK(quantize(random({2, 3}), 2) == "fp8::quantize: x must be f32 or bf16, got f64");
  CHECK(quantize(random({2, 3}, 1, DType::f32).t(), 3) ==
        "fp8::quantize: x must be a contiguous matrix, got shape [3, 2]");
  CHECK(quantize(random({2, 3}, 1, DType::f32), 1) ==
        "fp8::quantize: the groups must have the 2 rows of x, got 1");
  CHECK(quantize({}, 1) == "fp8::quantize: x must be a tensor, got a null handle");
}

TEST_CASE("fp8: the meta device counts the same bytes") {
  const auto live = [](Device device) {
    const Tensor x = Tensor::zeros({48, 32}, DType::bf16, device);
    const std::int64_t before = memory_stats(device).live_bytes;
    const Quantized q = fp8::quantize(x, {.each = 48}, DType::e4m3, {});
    const Quantized t = fp8::quantize_tiles(x, {.each = 48}, DType::e4m3, {16, 16}, {});
    return memory_stats(device).live_bytes - before;
  };
  CHECK(live(kCpu) == live(kMeta));
  CHECK(live(kCpu) > 2 * 48 * 32);
}

}  // namespace weft::fp8_test
