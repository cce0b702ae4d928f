#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "weft/core/low_precision.h"
#include "weft/tests/cuda/gpu.h"
#include "weft/tests/cuda/ptx_kernels.h"

// Tests every wrapper of cuda/ptx.h on random operands against a second implementation of the
// instruction set manual's rules. On the emulated GPU this checks the wrappers' C++ bodies, on a
// real one the instructions.
namespace weft::ptx_test {
namespace {

using test::error_of;
using test::kGpu;

// Reproducible random bits.
std::vector<std::uint32_t> random_words(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> words(n);
  for (std::size_t i = 0; i < n; ++i) words[i] = random_bits({seed, 0, 0}, i);
  return words;
}
template <class T>
T random_half(std::uint64_t seed, std::uint64_t i) {
  return T(uniform_from_bits(random_bits({seed, 0, 0}, i)) * 4 - 2);
}

Tensor on_gpu(const std::vector<std::uint32_t>& words, const Shape& shape, DType dtype) {
  const Tensor t = Tensor::empty(shape, dtype);
  std::memcpy(t.raw(), words.data(), words.size() * 4);
  return t.to(kGpu);
}
std::vector<std::uint32_t> words_of(const Tensor& t) {
  const Tensor host = t.to(kCpu);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(host.numel()));
  std::memcpy(words.data(), host.raw(), words.size() * 4);
  return words;
}

template <class T>
std::uint32_t pair(T low, T high) {
  return static_cast<std::uint32_t>(low.bits) | static_cast<std::uint32_t>(high.bits) << 16;
}

}  // namespace

TEST_CASE_TEMPLATE("ptx: mma_16816 multiplies the fragments of a warp", T, bf16, f16) {
  // For each element: which lane and which register hold it.
  T a[16][16], b[16][8];
  float c[16][8];
  std::vector<std::uint32_t> ra(128), rb(64), rc(128);
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k)
      a[i][k] = random_half<T>(1, static_cast<std::uint64_t>(16 * i + k));
  for (int k = 0; k < 16; ++k)
    for (int j = 0; j < 8; ++j) b[k][j] = random_half<T>(2, static_cast<std::uint64_t>(8 * k + j));
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) c[i][j] = random_half<T>(3, static_cast<std::uint64_t>(8 * i + j));
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; k += 2) {
      const int lane = i % 8 * 4 + k % 8 / 2, reg = i / 8 + k / 8 * 2;
      ra[static_cast<std::size_t>(4 * lane + reg)] = pair(a[i][k], a[i][k + 1]);
    }
  for (int k = 0; k < 16; k += 2)
    for (int j = 0; j < 8; ++j)
      rb[static_cast<std::size_t>(2 * (4 * j + k % 8 / 2) + k / 8)] = pair(b[k][j], b[k + 1][j]);
  const auto place = [](int i, int j) {
    return static_cast<std::size_t>(4 * (i % 8 * 4 + j / 2) + i / 8 * 2 + j % 2);
  };
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) rc[place(i, j)] = std::bit_cast<std::uint32_t>(c[i][j]);

  const Tensor ga = on_gpu(ra, {32, 4}, DType::i32), gb = on_gpu(rb, {32, 2}, DType::i32);
  test::for_each_order([&] {
    const Tensor gc = on_gpu(rc, {32, 4}, DType::f32);
    test::run_mma(dtype_of<T>(), ga, gb, gc);
    const std::vector<std::uint32_t> got = words_of(gc);
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) {
        double want = c[i][j];
        for (int k = 0; k < 16; ++k) want += double{a[i][k]} * double{b[k][j]};
        CHECK(std::bit_cast<float>(got[place(i, j)]) == doctest::Approx(want).epsilon(1e-5));
      }
  });
}

TEST_CASE("ptx: ldmatrix_x4 distributes four matrices to the lanes, plain and transposed") {
  const std::vector<std::uint32_t> words = random_words(512, 4);
  const Tensor tile = Tensor::empty({2048}, DType::u8);
  std::memcpy(tile.raw(), words.data(), 2048);
  std::vector<std::uint32_t> offset = random_words(32, 5);  // rows at any offset, repeats included
  for (std::uint32_t& o : offset) o = o % 128 * 16;
  const auto element = [&](int matrix, int row, int column) {
    std::uint16_t v;
    std::memcpy(&v,
                static_cast<const char*>(tile.raw()) +
                    offset[static_cast<std::size_t>(8 * matrix + row)] + 2 * column,
                2);
    return static_cast<std::uint32_t>(v);
  };
  const Tensor gt = tile.to(kGpu), go = on_gpu(offset, {32}, DType::i32);
  for (bool transposed : {false, true}) {
    std::vector<std::uint32_t> want;
    for (int lane = 0; lane < 32; ++lane)
      for (int j = 0; j < 4; ++j) {
        const int line = lane / 4, two = lane % 4 * 2;
        want.push_back(transposed ? element(j, two, line) | element(j, two + 1, line) << 16
                                  : element(j, line, two) | element(j, line, two + 1) << 16);
      }
    test::for_each_order([&] {
      const Tensor out = Tensor::empty({32, 4}, DType::i32, kGpu);
      test::run_ldmatrix(transposed, gt, go, out);
      CHECK(words_of(out) == want);
    });
  }
}

TEST_CASE("ptx: cp_async16 copies or writes zeros and each group arrives by its wait") {
  const std::vector<std::uint32_t> words = random_words(256, 6);
  std::vector<std::uint32_t> present = random_words(64, 7), want(512);
  for (std::uint32_t& p : present) p %= 2;
  for (std::size_t i = 0; i < 512; ++i) want[i] = present[i % 256 / 4] ? words[i % 256] : 0;
  const Tensor from = on_gpu(words, {64, 4}, DType::i32), mask = on_gpu(present, {64}, DType::i32);
  test::for_each_order([&] {
    const Tensor out = Tensor::empty({2, 64, 4}, DType::i32, kGpu);
    test::run_cp_async(from, mask, out);
    CHECK(words_of(out) == want);
  });
}

TEST_CASE_TEMPLATE("ptx: pack_halves and round_half round like the CPU", T, bf16, f16) {
  std::vector<std::uint32_t> words = random_words(512, 8);
  // Ties, the largest numbers, subnormals, infinities and NaN.
  const std::uint32_t special[] = {0x3f808000, 0x3f818000, 0x7f7fffff, 0x00000001, 0x80000000,
                                   0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x00008000,
                                   0x477fefff, 0x477ff000, 0x387fefff, 0x33000000, 0x33000001};
  std::copy(std::begin(special), std::end(special), words.begin());
  const auto rounded = [](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    return std::isnan(x) ? std::uint32_t{0x7fff} : std::uint32_t{T(x).bits};
  };
  std::vector<std::uint32_t> want;
  for (std::size_t i = 0; i < 512; i += 2)
    want.push_back(rounded(words[i]) | rounded(words[i + 1]) << 16);
  const Tensor x = on_gpu(words, {512}, DType::f32);
  const Tensor out = Tensor::empty({256}, DType::i32, kGpu);
  test::run_pack(dtype_of<T>(), x, out);
  CHECK(words_of(out) == want);
  const Tensor one_by_one = Tensor::empty({512}, dtype_of<T>(), kGpu);
  test::run_round(x, one_by_one);
  const Tensor host = one_by_one.to(kCpu);
  std::vector<std::uint32_t> got(256);
  std::memcpy(got.data(), host.raw(), 1024);
  CHECK(got == want);
}

TEST_CASE("ptx: widen_f16 is exact") {
  const Tensor x = Tensor::empty({512}, DType::f16), y = Tensor::empty({512}, DType::f32, kGpu);
  for (std::int64_t i = 0; i < 512; ++i)
    x.data<f16>()[i].bits = static_cast<std::uint16_t>(i * 127 + (i & 1));  // of all exponents
  test::run_widen(x.to(kGpu), y);
  const Tensor got = y.to(kCpu);
  for (std::int64_t i = 0; i < 512; ++i) {
    CAPTURE(x.data<f16>()[i].bits);
    const float want = x.data<f16>()[i];
    CHECK((std::isnan(want) ? std::isnan(got.data<float>()[i]) : got.data<float>()[i] == want));
  }
}

TEST_CASE("ptx: exp2_approx is accurate") {
  std::vector<double> x = {0,   -0.0, 1,      -1,   10.5, -20.25, 127.5,
                           128, 200,  -125.5, -127, -160, 1e-40};
  x.push_back(INFINITY);
  x.push_back(-INFINITY);
  x.push_back(NAN);
  for (std::uint64_t i = 0; i < 200; ++i)
    x.push_back((uniform_from_bits(random_bits({9, 0, 0}, i)) - 0.5) * 200);
  const Tensor in = Tensor::from<double>(x, {static_cast<std::int64_t>(x.size())}).to(DType::f32);
  const Tensor out = Tensor::empty(in.shape(), DType::f32, kGpu);
  test::run_exp2(in.to(kGpu), out);
  const std::vector<std::uint32_t> got = words_of(out);
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    const float y = std::bit_cast<float>(got[i]);
    const double want = std::exp2(double{in.data<float>()[i]});
    if (std::isnan(want))
      CHECK(std::isnan(y));
    else if (want < 0x1p-126)
      CHECK(y == 0);
    else if (want >= 0x1p128)
      CHECK(std::isinf(y));
    else
      CHECK(std::abs(y - want) <= 1e-6 * want);
  }
}

TEST_CASE("ptx: the emulated GPU refuses addresses that the real one faults on") {
  if (!test::emulated()) return;
  const auto after = [](const auto& f) {
    return error_of([&] {
      f();
      cuda::synchronize();
    });
  };
  const auto starts = [](const std::string& text, const std::string& with) {
    CAPTURE(text);
    CHECK(text.substr(0, with.size()) == with);
  };
  const Tensor tile = Tensor::zeros({2048}, DType::u8, kGpu);
  std::vector<std::uint32_t> offset(32, 0);
  offset[7] = 8;
  const Tensor rows = on_gpu(offset, {32}, DType::i32);
  const Tensor out = Tensor::empty({32, 4}, DType::i32, kGpu);
  starts(after([&] { test::run_ldmatrix(false, tile, rows, out); }),
         "emulator: ldmatrix: the shared address must be a multiple of 16, is 8 past one, at "
         "ptx_kernels.cu:");
  starts(after([&] { test::run_misaligned_cp_async(tile, 4, 0); }),
         "emulator: cp.async: the shared address must be a multiple of 16, is 4 past one, at "
         "ptx_kernels.cu:");
  starts(after([&] { test::run_misaligned_cp_async(tile, 0, 2); }),
         "emulator: cp.async: the global address must be a multiple of 16, is 2 past one, at "
         "ptx_kernels.cu:");
  starts(after([&] { test::run_cp_async_to_global(tile); }),
         "emulator: cp.async: the address is not in shared memory, at ptx_kernels.cu:");
}

}  // namespace weft::ptx_test
