#include "weft/core/random.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numbers>
#include <numeric>
#include <vector>

#include "weft/core/cuda_graph.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/in_place.h"
#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/random.h"
#include "weft/core/numbers.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constinit thread_local const RandomState* current_state = nullptr;

// Draws are numbered so that no two threads of one seed share a number: the thread that was seeded
// counts from 0, the others from k * 2^40.
constexpr int kCallBits = 40;
constexpr std::uint64_t kOwnSeed = UINT64_MAX;
struct Generator {
  std::uint64_t seed = 0, calls = 0;
  std::uint64_t epoch = 0;  ///< the epoch of the process seed that it follows; kOwnSeed: none
};
constinit thread_local Generator generator;

// The seed of threads that have none of their own.
struct ProcessSeed {
  std::mutex mutex;
  std::atomic<std::uint64_t> epoch{1};  ///< incremented by each manual_seed()
  std::uint64_t seed = 0, threads = 0;
};
constinit ProcessSeed process_seed;
// The lock must not be held in a child of fork() by a thread that does not exist there.
const int at_fork =
    pthread_atfork([] { process_seed.mutex.lock(); }, [] { process_seed.mutex.unlock(); },
                   [] { process_seed.mutex.unlock(); });

bool is_main_thread() { return gettid() == getpid(); }

// Runs before the first draw of a thread, and before its first draw after another thread's
// manual_seed().
void follow_process_seed() {
  const std::lock_guard lock(process_seed.mutex);
  const std::uint64_t epoch = process_seed.epoch.load(std::memory_order_relaxed);
  const bool first = epoch == 1 && is_main_thread();
  const std::uint64_t thread = first ? 0 : ++process_seed.threads;
  generator = {process_seed.seed, thread << kCallBits, epoch};
}

Generator& own_generator() {
  if (generator.epoch != kOwnSeed &&
      generator.epoch != process_seed.epoch.load(std::memory_order_relaxed))
    follow_process_seed();
  return generator;
}

constexpr std::uint64_t mix(std::uint64_t x) {  // SplitMix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr std::uint64_t combine(std::uint64_t a, std::uint64_t b) {
  return mix(a + 0x9e3779b97f4a7c15u + mix(b));
}

// The random bits of one key, element by element. Caches the last Philox block, whose four numbers
// belong to neighbouring elements.
class Bits {
 public:
  explicit Bits(const RandomKey& key) : key_(key) {}
  /// Bits of element i, equal to random_bits().
  std::uint32_t at(std::uint64_t i) {
    const std::uint64_t n = key_.first + i;
    if (n >> 2 != block_) {
      block_ = n >> 2;
      values_ = random_block(key_, block_);
    }
    return values_[n & 3];
  }
  double open_uniform(std::uint64_t i) { return weft::open_uniform(at(i)); }
  /// Uniform in [0, 1), exact in f32.
  double uniform(std::uint64_t i) { return static_cast<double>(uniform_from_bits(at(i))); }

 private:
  RandomKey key_;
  std::uint64_t block_ = UINT64_MAX;  // no element has this block: it would be number 2^66
  std::array<std::uint32_t, 4> values_{};
};

// Standard normal numbers by Box-Muller: elements 2k and 2k+1 of the sequence (counting key.first)
// are the cosine and the sine of uniforms 2k and 2k+1.
class Normals {
 public:
  explicit Normals(const RandomKey& key) : bits_({key.seed, key.stream, 0}), first_(key.first) {}
  double at(std::uint64_t i) {
    const std::uint64_t n = first_ + i, pair = n & ~std::uint64_t{1};
    if (pair != pair_) {
      pair_ = pair;
      const std::uint32_t first = bits_.at(pair);
      values_ = normal_pair(first, bits_.at(pair + 1));
    }
    return values_[n & 1];
  }

 private:
  Bits bits_;
  std::uint64_t first_;
  std::uint64_t pair_ = UINT64_MAX;  // odd, so never the index of a pair
  std::array<double, 2> values_{};
};

// Inverse of the normal distribution function: a rational approximation (Acklam) and one Halley
// step.
double inverse_normal(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                          6.680131188771972e+01, -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                          3.754408661907416e+00};
  const auto tail = [&](double q) {
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  };
  double x;
  if (p < 0.02425) {
    x = tail(std::sqrt(-2 * std::log(p)));
  } else if (p > 1 - 0.02425) {
    x = -tail(std::sqrt(-2 * std::log1p(-p)));
  } else {
    const double q = p - 0.5, r = q * q;
    x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
        (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
  }
  const double e = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
  const double u = e * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
  return x - u / (1 + x * u / 2);
}

// Draws on the host: weights are drawn once per run, and a kernel would need the inverse
// distribution function.
void draw_on_host(const Tensor& t, const RandomKey& key, double mean, double std, double low,
                  double high) {
  t.copy_(truncated_normal_(Tensor::empty(t.shape(), t.dtype()), key, mean, std, low, high));
}

// Writes draw(i) to every element, in parallel. Each range uses its own copy of draw, which may
// keep state between elements. On a GPU, Cuda(t, args...) does the work.
template <auto Cuda, class Draw, class... Args>
const Tensor& draw_into(const char* op, const Tensor& t, const Draw& draw, const Args&... args) {
  detail::check_target(op, t);
  check(t.is_contiguous(), "{}: the tensor must be contiguous, got strides {}", op, t.strides());
  t.bump_version();
  if (t.is_meta()) {
    detail::skip_kernel<Cuda>();
    return t;
  }
  if constexpr (kWithCuda) {
    if (t.device().is_cuda()) {
      cuda::detail::use_device(t.device().index);
      Cuda(t, args...);
      return t;
    }
  }
  dispatch_all(t.dtype(), [&]<class T>() {
    T* p = t.data<T>();
    parallel_for(t.numel(), 32, [&](std::int64_t begin, std::int64_t end) {
      Draw mine = draw;
      for (std::int64_t i = begin; i < end; ++i) {
        const double v = mine(static_cast<std::uint64_t>(i));
        if constexpr (std::is_arithmetic_v<T>)
          p[i] = convert<T>(v);
        else
          p[i] = T(static_cast<float>(v));
      }
    });
  });
  return t;
}

}  // namespace

std::uint64_t stream_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(h);
}

void manual_seed(std::uint64_t seed) {
  generator = {seed, 0, kOwnSeed};
  const std::lock_guard lock(process_seed.mutex);
  process_seed.seed = seed;
  process_seed.threads = 0;
  process_seed.epoch.fetch_add(1, std::memory_order_relaxed);
}

RandomKey next_random_key() {
  cuda::detail::refuse_in_capture(
      "graph: random numbers inside a capture need a RandomScope, or every replay would draw the "
      "same");
  Generator& g = own_generator();
  return {g.seed, combine(1, g.calls++), 0};
}

RandomScope::RandomScope(const RandomState& state) : state_(state), previous_(current_state) {
  current_state = &state_;
}
RandomScope::~RandomScope() { current_state = previous_; }
const RandomState* RandomScope::current() { return current_state; }

RandomSnapshot RandomSnapshot::take() {
  const Generator& g = own_generator();
  RandomSnapshot s{current_state != nullptr, {}, g.seed, g.calls};
  if (current_state) s.state = *current_state;
  return s;
}

RandomReplay::RandomReplay(const RandomSnapshot& s)
    : state_(s.state),
      previous_(current_state),
      seed_(generator.seed),
      calls_(generator.calls),
      epoch_(generator.epoch) {
  current_state = s.scoped ? &state_ : nullptr;
  generator = {s.seed, s.calls, kOwnSeed};
}
RandomReplay::~RandomReplay() {
  current_state = previous_;
  generator = {seed_, calls_, epoch_};
}

RandomKey RandomScope::key_for(std::uint64_t layer_stream, std::uint64_t row_elements,
                               std::uint64_t token_elements) {
  if (!current_state) return next_random_key();
  const RandomState& s = *current_state;
  cuda::Graph* const graph = cuda::Graph::capturing();
  if (s.use > 0) layer_stream = combine(layer_stream, s.use);
  return {s.seed, stream_for(layer_stream, s.step, s.micro_batch),
          s.first_global_row * row_elements + s.seq_offset * token_elements,
          graph ? graph->random_stream(layer_stream, s) : nullptr};
}

std::uint64_t RandomScope::stream_for(std::uint64_t layer_stream, std::uint64_t step,
                                      std::uint64_t micro_batch) {
  return combine(combine(layer_stream, step), micro_batch);
}

double uniform_limit(DType dtype, double low, double high) {
  const double limit = is_floating(dtype) ? largest_below(dtype, high) : high;
  return limit >= low ? limit : high;
}

const Tensor& uniform_(const Tensor& t, const RandomKey& key, double low, double high) {
  detail::check_target("uniform_", t);
  check(low <= high, "uniform_: low must be at most high {}, got {}", high, low);
  const auto one = [=, bits = Bits(key),
                    limit = uniform_limit(t.dtype(), low, high)](std::uint64_t i) mutable {
    return std::min(low + (high - low) * bits.uniform(i), limit);
  };
  return draw_into<cuda::draw>("uniform_", t, one, key, Distribution::uniform, low, high);
}

const Tensor& normal_(const Tensor& t, const RandomKey& key, double mean, double std) {
  check(std >= 0, "normal_: std must be at least 0, got {}", std);
  const auto one = [=, normals = Normals(key)](std::uint64_t i) mutable {
    return mean + std * normals.at(i);
  };
  return draw_into<cuda::draw>("normal_", t, one, key, Distribution::normal, mean, std);
}

const Tensor& truncated_normal_(const Tensor& t, const RandomKey& key, double mean, double std,
                                double low, double high) {
  check(low < high, "truncated_normal_: low must be below high {}, got {}", high, low);
  check(std > 0, "truncated_normal_: std must be above 0, got {}", std);
  // Above the mean the distribution function is close to 1 and loses digits, so the mirror image is
  // drawn there.
  const double side = low > mean ? -1 : 1;
  const auto cdf = [&](double x) {
    return 0.5 * std::erfc(-side * (x - mean) / std / std::numbers::sqrt2);
  };
  const double from = cdf(low), to = cdf(high);
  const auto one = [=, bits = Bits(key)](std::uint64_t i) mutable {
    const double p = std::clamp(from + (to - from) * bits.open_uniform(i), 1e-300, 1 - 0x1p-53);
    return std::clamp(mean + side * std * inverse_normal(p), low, high);
  };
  return draw_into<draw_on_host>("truncated_normal_", t, one, key, mean, std, low, high);
}

const Tensor& bernoulli_(const Tensor& t, const RandomKey& key, double p) {
  check(p >= 0 && p <= 1, "bernoulli_: p must be in [0, 1], got {}", p);
  const auto one = [=, bits = Bits(key)](std::uint64_t i) mutable {
    return bits.uniform(i) < p ? 1.0 : 0.0;
  };
  return draw_into<cuda::draw>("bernoulli_", t, one, key, Distribution::bernoulli, p, 0.0);
}

Tensor rand_uniform(const Shape& shape, double low, double high, DType dtype) {
  return Tensor(uniform_(Tensor::empty(shape, dtype), next_random_key(), low, high));
}
Tensor rand_normal(const Shape& shape, double mean, double std, DType dtype) {
  return Tensor(normal_(Tensor::empty(shape, dtype), next_random_key(), mean, std));
}

Tensor rand(const Shape& shape, DType dtype) { return rand_uniform(shape, 0, 1, dtype); }
Tensor randn(const Shape& shape, DType dtype) { return rand_normal(shape, 0, 1, dtype); }
Tensor randperm(std::int64_t n) { return permutation(n, next_random_key()); }

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape) {
  check(low < high, "randint: low must be below high, got {} and {}", low, high);
  Tensor out = Tensor::empty(shape, DType::i64);
  Bits draws(next_random_key());
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::int64_t n = out.numel();
  for (std::int64_t i = 0; i < n; ++i) {  // with 64 bits the bias is negligible
    const auto at = 2 * static_cast<std::uint64_t>(i);
    const std::uint64_t bits = static_cast<std::uint64_t>(draws.at(at)) << 32 | draws.at(at + 1);
    out.data<std::int64_t>()[i] =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + bits % range);
  }
  return out;
}

void permute_range(std::span<std::int64_t> out, const RandomKey& key) {
  Bits draws(key);
  std::iota(out.begin(), out.end(), std::int64_t{0});
  for (std::size_t i = out.size(); i-- > 1;) {  // Fisher-Yates; with 64 bits the bias is negligible
    const std::uint64_t bits =
        static_cast<std::uint64_t>(draws.at(2 * i)) << 32 | draws.at(2 * i + 1);
    std::swap(out[i], out[bits % (i + 1)]);
  }
}

Tensor permutation(std::int64_t n, const RandomKey& key) {
  check(n >= 0, "permutation: n must be at least 0, got {}", n);
  Tensor out = Tensor::empty({n}, DType::i64);
  permute_range({out.data<std::int64_t>(), static_cast<std::size_t>(n)}, key);
  return out;
}

Tensor multinomial(const Tensor& weights, std::int64_t count, const RandomKey& key) {
  check(weights.ndim() == 1 || weights.ndim() == 2,
        "multinomial: weights must have shape (n) or (rows, n), got {}", weights.shape());
  check(count >= 0, "multinomial: count must be at least 0, got {}", count);
  const std::int64_t n = weights.dim(-1), rows = weights.ndim() == 2 ? weights.dim(0) : 1;
  const Shape shape = weights.ndim() == 2 ? Shape{rows, count} : Shape{count};
  if (weights.device().is_meta()) return Tensor::empty(shape, DType::i64, weights.device());
  std::vector<double> w(static_cast<std::size_t>(weights.numel()));
  weights.copy_to(w);
  Tensor out = Tensor::empty(shape, DType::i64);
  Bits bits(key);
  for (std::int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double v = w[static_cast<std::size_t>(r * n + i)];
      check(v >= 0 && std::isfinite(v),
            "multinomial: weights must be finite and at least 0, got {}", v);
      total += v;
    }
    check(total > 0, "multinomial: a row of weights must have a positive sum, got {}", total);
    for (std::int64_t c = 0; c < count; ++c) {
      double left = total * bits.open_uniform(static_cast<std::uint64_t>(r * count + c));
      std::int64_t pick = -1;
      for (std::int64_t i = 0; i < n; ++i) {
        const double v = w[static_cast<std::size_t>(r * n + i)];
        if (v <= 0) continue;
        pick = i;
        if ((left -= v) < 0) break;
      }
      out.data<std::int64_t>()[r * count + c] = pick;
    }
  }
  return out.to(weights.device());
}

}  // namespace weft
