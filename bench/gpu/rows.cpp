// Softmax, cross entropy, embedding gradient, row sums.
#include <algorithm>
#include <set>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/kernels/cross_entropy.h"
#include "weft/core/kernels/indexing.h"
#include "weft/core/kernels/softmax.h"

namespace weft::bench {
namespace {

using Values = Buffers::Values;

void measure_softmax(GpuBench& bench, const Shape& shape, DType dtype) {
  const int sets = cold_sets(shape, dtype);
  const Buffers x(shape, dtype, sets, Values::uniform), dy(shape, dtype, sets, Values::uniform);
  const Buffers y(shape, dtype, sets, Values::poison), dx(shape, dtype, sets, Values::poison);
  bench.memory_bound({row_name("softmax forward", dtype, shape), 2 * x.bytes(), {y}, [&](int i) {
                        cuda::softmax_fwd(x[i], y[i]);
                      }});
  for (int i = 0; i < sets; ++i) cuda::softmax_fwd(x[i], y[i]);
  bench.memory_bound({row_name("softmax backward", dtype, shape), 3 * x.bytes(), {dx}, [&](int i) {
                        cuda::softmax_bwd(y[i], dy[i], dx[i]);
                      }});
}

// The last rows must give the same result among all rows as alone: their offsets exceed 2^31. A
// wrong offset gives other values, not other rounding.
void check_last_rows(const Tensor& logits, const Tensor& targets, const Tensor& count,
                     const Tensor& losses) {
  const std::int64_t few = std::min<std::int64_t>(4, logits.dim(0)), first = logits.dim(0) - few;
  const Tensor alone = logits.narrow(0, first, few).clone();
  cuda::cross_entropy_in_place(alone, targets.narrow(0, first, few).clone(), count, -100, 0,
                               Tensor::empty({few}, losses.dtype(), kGpu));
  cuda::cross_entropy_in_place(logits, targets, count, -100, 0, losses);
  const double apart = max(abs(logits.narrow(0, first, few) - alone)).item();
  const double largest = max(abs(alone)).item();
  check(apart <= 0.01 * largest, "cross_entropy: the last of {} rows are {} apart from {} alone",
        logits.dim(0), apart, largest);
}

// The gradient overwrites the logits, so the next call uses the previous gradient as logits: other
// values, the same work.
void measure_cross_entropy(GpuBench& bench, const Shape& shape, DType dtype) {
  const std::int64_t rows = shape[0], classes = shape[1];
  const Buffers logits(shape, dtype, cold_sets(shape, dtype), Values::uniform);
  const Buffers losses({rows}, DType::f32, 1, Values::poison);
  const Tensor targets = spread_ids(rows, classes).to(kGpu);
  const Tensor count = Tensor::full({1}, static_cast<double>(rows), DType::i64, kGpu);
  check_last_rows(logits[0], targets, count, losses[0]);
  bench.memory_bound(
      {row_name("cross_entropy in place", dtype, shape), 2 * logits.bytes(), {losses}, [&](int i) {
         cuda::cross_entropy_in_place(logits[i], targets, count, -100, 0, losses[i]);
       }});
}

void measure_embedding(GpuBench& bench, std::int64_t tokens, std::int64_t width, std::int64_t vocab,
                       DType dtype) {
  const Tensor ids = spread_ids(tokens, vocab);
  const std::int32_t* p = ids.data<std::int32_t>();
  const auto used = static_cast<double>(std::set<std::int32_t>(p, p + tokens).size());
  const Tensor index = ids.to(kGpu);
  const Tensor scratch = Tensor::empty({index_add_scratch(tokens)}, DType::i32, kGpu);
  const int sets = cold_sets({tokens, width}, dtype);
  const Buffers dy({tokens, width}, dtype, sets, Values::uniform);
  const Buffers table({vocab, width}, dtype, sets, Values::zeros);
  const double row = dy.bytes() / static_cast<double>(tokens);
  const std::string name = row_name("embedding backward", dtype, {tokens, width, vocab});
  bench.memory_bound({name, dy.bytes() + 2 * used * row, {table}, [&](int i) {
                        cuda::index_add(dy[i], index, 0, scratch, table[i]);
                      }});
}

void measure_sum(GpuBench& bench, const Shape& shape, DType dtype) {
  const Buffers x(shape, dtype, cold_sets(shape, dtype), Values::uniform);
  bench.memory_bound(
      {row_name("sum over rows", dtype, shape), x.bytes(), {}, [&](int i) { sum(x[i], {0}); }});
}

}  // namespace

void rows_part(GpuBench& bench) {
  if (bench.quick()) {
    measure_softmax(bench, {4, 64}, DType::bf16);
    measure_cross_entropy(bench, {12, 320}, DType::bf16);
    measure_embedding(bench, 32, 16, 24, DType::bf16);
    return measure_sum(bench, {64, 32}, DType::bf16);
  }
  for (const DType dtype : {DType::bf16, DType::f32}) {
    measure_softmax(bench, {65536, 1024}, dtype);
    measure_cross_entropy(bench, {8192, 50304}, dtype);
    if (dtype == DType::bf16) measure_cross_entropy(bench, {65536, 50304}, dtype);
    measure_embedding(bench, 65536, 768, 50304, dtype);
    measure_sum(bench, {65536, 768}, dtype);
  }
}

}  // namespace weft::bench
