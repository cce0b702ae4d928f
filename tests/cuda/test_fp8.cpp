// The codes and scales on a GPU are those on the CPU, bit for bit; products agree within rounding.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::fp8_cuda_test {

namespace {

using fp8::Quantized;
using fp8::Recipe;
using fp8::Scaling;
using test::for_each_order;
using test::kGpu;
using test::mismatch;
using test::random;

// "" when both hold the same bytes.
std::string other_bytes(const Tensor& gpu, const Tensor& cpu) {
  if (gpu.defined() != cpu.defined()) return "one is null";
  if (!gpu.defined()) return "";
  if (!(gpu.shape() == cpu.shape())) return "another shape";
  const Tensor host = gpu.to(kCpu);
  const auto n = static_cast<std::size_t>(host.numel()) * size_of(host.dtype());
  return n == 0 || std::memcmp(host.raw(), cpu.raw(), n) == 0 ? "" : "other bytes";
}

void check_same(const Quantized& gpu, const Quantized& cpu) {
  CHECK(other_bytes(gpu.rows, cpu.rows) == "");
  CHECK(other_bytes(gpu.columns, cpu.columns) == "");
  CHECK(other_bytes(gpu.inverse, cpu.inverse) == "");
}

// Values of all magnitudes, with some that have no finite neighbour.
Tensor hard(const Shape& shape, DType t, std::uint64_t seed) {
  Tensor x = mul(random(shape, seed), exp(mul(random(shape, seed + 1), 4))).to(t);
  return x;
}

}  // namespace

TEST_CASE("fp8: codes, scales and transposed copies are those of the CPU") {
  struct Case {
    std::vector<std::int64_t> rows;
    std::int64_t cols;
  };
  for (const Case& c :
       {Case{{1}, 1}, Case{{16}, 48}, Case{{70}, 131}, Case{{32, 0, 64}, 80}, Case{{3, 5}, 7},
        Case{{0}, 16}, Case{{0, 0}, 4}, Case{{40, 3}, 140}, Case{{130}, 12}}) {
    std::int64_t all = 0;
    for (const std::int64_t n : c.rows) all += n;
    const RowGroups groups{.count = static_cast<std::int64_t>(c.rows.size()),
                           .rows = c.rows.data()};
    for (const DType t : {DType::f32, DType::bf16})
      for (const DType to : {DType::e4m3, DType::e5m2}) {
        CAPTURE(c.cols);
        CAPTURE(all);
        const Tensor x = hard({all, c.cols}, t, 1);
        const Tensor there = x.to(kGpu);
        for (const fp8::Copies copies :
             {fp8::Copies{}, fp8::Copies{true, true}, fp8::Copies{false, true}}) {
          const Fp8Scaling how{.power_of_two = copies.columns};
          const Quantized want = fp8::quantize(x, groups, to, how, copies);
          for_each_order([&] { check_same(fp8::quantize(there, groups, to, how, copies), want); });
          if (copies.columns) continue;
          const Tensor back = fp8::dequantize(want, groups, t);
          for_each_order([&] {
            const Quantized got = fp8::quantize(there, groups, to, how, copies);
            CHECK(other_bytes(fp8::dequantize(got, groups, t), back) == "");
          });
        }
        for (const Fp8Tile tile : {Fp8Tile{1, 128}, Fp8Tile{128, 1}, Fp8Tile{16, 16},
                                   Fp8Tile{128, 128}, Fp8Tile{3, 5}}) {
          const Quantized want = fp8::quantize_tiles(x, groups, to, tile, {.power_of_two = true});
          const Tensor back = fp8::dequantize(want, groups, t);
          for_each_order([&] {
            const Quantized got =
                fp8::quantize_tiles(there, groups, to, tile, {.power_of_two = true});
            check_same(got, want);
            CHECK(other_bytes(fp8::dequantize(got, groups, t), back) == "");
          });
        }
      }
  }
}

TEST_CASE("fp8: more groups than fit into one launch") {
  const std::vector<std::int64_t> rows(130, 1);
  const RowGroups groups{.count = 130, .rows = rows.data()};
  const Tensor x = random({130, 24}, 7).to(DType::bf16);
  const fp8::Copies both{true, true};
  check_same(fp8::quantize(x.to(kGpu), groups, DType::e4m3, {}, both),
             fp8::quantize(x, groups, DType::e4m3, {}, both));
  for (const Fp8Tile tile : {Fp8Tile{1, 8}, Fp8Tile{8, 1}}) {
    const Quantized want = fp8::quantize_tiles(x, groups, DType::e4m3, tile, {});
    const Quantized got = fp8::quantize_tiles(x.to(kGpu), groups, DType::e4m3, tile, {});
    check_same(got, want);
    CHECK(other_bytes(fp8::dequantize(got, groups, DType::bf16),
                      fp8::dequantize(want, groups, DType::bf16)) == "");
  }
}

TEST_CASE("fp8: NaN, infinity and zero on a GPU") {
  for (const double special : {std::nan(""), HUGE_VAL, -0.0}) {
    Tensor x = Tensor::zeros({16, 16}, DType::f32);
    x.select(0, 3).select(0, 4).fill_(special);
    for (const DType to : {DType::e4m3, DType::e5m2})
      check_same(fp8::quantize(x.to(kGpu), {.each = 16}, to, {}),
                 fp8::quantize(x, {.each = 16}, to, {}));
    for (const Fp8Tile tile : {Fp8Tile{1, 8}, Fp8Tile{8, 1}, Fp8Tile{16, 16}, Fp8Tile{3, 5}})
      check_same(fp8::quantize_tiles(x.to(kGpu), {.each = 16}, DType::e4m3, tile, {}),
                 fp8::quantize_tiles(x, {.each = 16}, DType::e4m3, tile, {}));
  }
}

TEST_CASE("fp8: delayed scales on a GPU") {
  for (const std::int64_t history : {1, 3, 700}) {
    const Recipe recipe{.scaling = Scaling::delayed, .history = history, .margin = 1};
    fp8::Delayed cpu{Tensor::zeros({history, 3}), Tensor::zeros({3})};
    const fp8::Delayed gpu{cpu.history.to(kGpu), cpu.scale.to(kGpu)};
    for (int step = 0; step < 4; ++step) {
      const Tensor x = hard({16, 32}, DType::bf16, static_cast<std::uint64_t>(10 + step));
      const auto round = [&](const Tensor& t, const fp8::Delayed& state) {
        return fp8::quantize_delayed(t, {.each = 16}, DType::e5m2, state, fp8::Operand::gradient,
                                     true);
      };
      check_same(round(x.to(kGpu), gpu), round(x, cpu));
      fp8::roll(cpu, recipe);
      fp8::roll(gpu, recipe);
      CHECK(other_bytes(gpu.history, cpu.history) == "");
      CHECK(other_bytes(gpu.scale, cpu.scale) == "");
    }
  }
}

TEST_CASE("fp8_linear: results and gradients on a GPU, without a host wait") {
  for (const DType t : {DType::f32, DType::bf16})
    for (const Scaling scaling : {Scaling::current, Scaling::delayed, Scaling::block}) {
      CAPTURE(static_cast<int>(scaling));
      const Recipe recipe{.scaling = scaling, .history = 2};
      const auto run = [&](Device device) {
        const auto make = [&](const Shape& s, std::uint64_t seed) {
          Tensor x = random(s, seed).to(t).to(device);
          x.set_requires_grad();
          return x;
        };
        const Tensor x = make({3, 16, 32}, 1), w = make({48, 32}, 2), b = make({48}, 3);
        fp8::LayerState state;
        if (scaling == Scaling::delayed)
          state.delayed = {Tensor::zeros({2, 3}, DType::f32, device),
                           Tensor::zeros({3}, DType::f32, device)};
        const Tensor dy = random({3, 16, 48}, 4).to(t).to(device);
        Tape tape;
        const std::int64_t waits = cuda::host_syncs();
        const Tensor y = fp8_linear(x, w, b, recipe, &state);
        TensorList g = tape.gradients(y, {x, w, b}, dy);
        CHECK(cuda::host_syncs() == waits);
        g.push_back(y.detach());
        return g;
      };
      const TensorList cpu = run(kCpu), gpu = run(kGpu);
      for (int i = 0; i < cpu.size(); ++i) {
        CAPTURE(i);
        CHECK(mismatch(gpu[i].to(kCpu), cpu[i], t == DType::f32 ? 1e-5 : 1e-2) == "");
      }
    }
}

TEST_CASE("fp8_grouped_linear: results and gradients on a GPU") {
  const Tensor rows = Tensor::of({32, 0, 16}, {3}, DType::i64);
  for (const Scaling scaling : {Scaling::current, Scaling::block}) {
    const auto run = [&](Device device) {
      Tensor x = random({48, 32}, 1).to(DType::bf16).to(device),
             w = random({3, 16, 32}, 2).to(DType::bf16).to(device);
      x.set_requires_grad();
      w.set_requires_grad();
      const Tensor main = Tensor::ones({3, 16, 32}, DType::f32, device);
      w.set_main_grad(main);
      const Tensor dy = random({48, 16}, 4).to(DType::bf16).to(device);
      Tape tape;
      const Tensor y = fp8_grouped_linear(x, w, rows, {.scaling = scaling});
      y.backward(dy);
      return TensorList{y.detach(), x.grad(), main};
    };
    const TensorList cpu = run(kCpu), gpu = run(kGpu);
    for (int i = 0; i < cpu.size(); ++i) {
      CAPTURE(i);
      CHECK(mismatch(gpu[i].to(kCpu), cpu[i], 1e-2) == "");
    }
  }
}

}  // namespace weft::fp8_cuda_test
