// Products by oneDNN.
#include "weft/core/cpu/packed_product.h"
#include "weft/core/cpu/processor.h"

#if WEFT_USE_ONEDNN
#include <omp.h>

#include <exception>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#endif

namespace weft::cpu {
namespace {

template <class Out>
void bf16_loops(const Product<bf16, Out>& p) {
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      Out& c = p.c[i * p.ldc + j];
      float sum = p.accumulate ? static_cast<float>(c) : 0.0f;
      for (std::int64_t l = 0; l < p.k; ++l)
        sum += static_cast<float>(p.a[p.trans_a ? l * p.lda + i : i * p.lda + l]) *
               static_cast<float>(p.b[p.trans_b ? j * p.ldb + l : l * p.ldb + j]);
      c = Out(sum);
    }
}

template <class Out>
void small_bf16_product(const Product<bf16, Out>& p) {
  const auto room = static_cast<std::size_t>(p.m * p.k + p.k * p.n + p.m * p.n);
  auto* const a = static_cast<float*>(packing_buffer(room * sizeof(float)));
  if (a == nullptr) return bf16_loops(p);
  const auto copy = [](const auto* from, std::int64_t ld, std::int64_t rows, std::int64_t cols,
                       auto* to, std::int64_t ld_to) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        to[i * ld_to + j] =
            std::remove_pointer_t<decltype(to)>(static_cast<float>(from[i * ld + j]));
  };
  float *b = a + p.m * p.k, *c = b + p.k * p.n;
  const std::int64_t lda = p.trans_a ? p.m : p.k, ldb = p.trans_b ? p.k : p.n;
  copy(p.a, p.lda, p.trans_a ? p.k : p.m, lda, a, lda);
  copy(p.b, p.ldb, p.trans_b ? p.n : p.k, ldb, b, ldb);
  if (p.accumulate) copy(p.c, p.ldc, p.m, p.n, c, p.n);
  Product<float>{a, b, c, p.m, p.n, p.k, lda, ldb, p.n, p.trans_a, p.trans_b, p.accumulate}
      .plain_loops(0, p.m);
  copy(c, p.n, p.m, p.n, p.c, p.ldc);
}

}  // namespace

void widened_small_product(const Product<bf16, bf16>& p) { small_bf16_product(p); }
void widened_small_product(const Product<bf16, float>& p) { small_bf16_product(p); }

#if WEFT_USE_ONEDNN
namespace {

// Keeps the library on the calling thread: Weft chooses the number of threads. OpenMP stores it per
// calling thread.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) {
    if (threads_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (threads_ != 1) omp_set_num_threads(threads_);
  }
  OneThread(const OneThread&) = delete;

 private:
  int threads_;
};

// Intel's processors with these instructions but without AMX multiply bf16 at half the rate of f32,
// AMD's at twice that rate.
bool bf16_is_fast() {
  const auto has = [isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa())](dnnl::cpu_isa set) {
    const auto bits = static_cast<unsigned>(set);
    return (isa & bits) == bits;
  };
  return has(dnnl::cpu_isa::avx512_core_amx) || (has(dnnl::cpu_isa::avx512_core_bf16) && is_amd());
}

// A product of any size: sizes and strides are given when it runs.
dnnl::matmul make_product(const dnnl::engine& engine, bool trans_a, bool trans_b, bool accumulate,
                          dnnl::memory::data_type out) {
  using Dims = dnnl::memory::dims;
  constexpr auto kAny = DNNL_RUNTIME_DIM_VAL;
  const auto matrix = [&](dnnl::memory::data_type type, bool trans) {
    return dnnl::memory::desc({kAny, kAny}, type, trans ? Dims{1, kAny} : Dims{kAny, 1});
  };
  const auto bf16_type = dnnl::memory::data_type::bf16;
  const auto a = matrix(bf16_type, trans_a), b = matrix(bf16_type, trans_b), c = matrix(out, false);
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul({engine, a, b, c, attributes});
#else
  return dnnl::matmul({dnnl::matmul::desc(a, b, c), attributes, engine});
#endif
}

// Not every version of oneDNN need have all of them.
bool makes_all_products() {
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    for (int i = 0; i < 16; ++i)
      make_product(engine, i & 1, i & 2, i & 4,
                   i & 8 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

// Of one thread: a primitive may use memory of its own while it runs.
struct Bf16Products {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::optional<dnnl::matmul> made[16];

  template <class Out>
  void run(const Product<bf16, Out>& p) {
    constexpr auto kIn = dnnl::memory::data_type::bf16;
    constexpr auto kOut =
        std::is_same_v<Out, bf16> ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    auto& product =
        made[p.trans_a | p.trans_b << 1 | p.accumulate << 2 | int{std::is_same_v<Out, bf16>} << 3];
    if (!product) product = make_product(engine, p.trans_a, p.trans_b, p.accumulate, kOut);
    const auto matrix = [&](const void* data, dnnl::memory::data_type type, std::int64_t rows,
                            std::int64_t cols, std::int64_t ld, bool trans) {
      const dnnl::memory::desc desc({rows, cols}, type,
                                    trans ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1});
      return dnnl::memory(desc, engine, const_cast<void*>(data));
    };
    product->execute(stream, {{DNNL_ARG_SRC, matrix(p.a, kIn, p.m, p.k, p.lda, p.trans_a)},
                              {DNNL_ARG_WEIGHTS, matrix(p.b, kIn, p.k, p.n, p.ldb, p.trans_b)},
                              {DNNL_ARG_DST, matrix(p.c, kOut, p.m, p.n, p.ldc, false)}});
  }
};

template <class Out>
void bf16_product(const Product<bf16, Out>& p) {
  const OneThread scope;
  try {
    thread_local Bf16Products products;
    products.run(p);
  } catch (const std::exception&) {  // no memory is left, and nothing is written yet
    bf16_loops(p);
  }
}

}  // namespace

void library_product(const Product<float>& p) {
  const OneThread scope;
  const dnnl_status_t status =
      dnnl_sgemm(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, p.a, p.lda, p.b,
                 p.ldb, p.accumulate ? 1.0f : 0.0f, p.c, p.ldc);
  // The library refuses before it writes (out of memory for packing, unsupported stride).
  if (status != dnnl_success) p.plain_loops(0, p.m);
}

void library_product(const Product<bf16, bf16>& p) { bf16_product(p); }
void library_product(const Product<bf16, float>& p) { bf16_product(p); }

bool multiplies_bf16() {
  static const bool fast = bf16_is_fast() && makes_all_products();
  return fast && library_has_bf16();
}

#else

void library_product(const Product<float>& p) { p.plain_loops(0, p.m); }
void library_product(const Product<bf16, bf16>& p) { bf16_loops(p); }
void library_product(const Product<bf16, float>& p) { bf16_loops(p); }
bool multiplies_bf16() { return false; }

#endif

}  // namespace weft::cpu
