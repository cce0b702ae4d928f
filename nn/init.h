#pragma once
#include <cstdint>
#include <functional>

#include "weft/core/philox.h"
#include "weft/core/tensor.h"
#include "weft/nn/shard_spec.h"

namespace weft::nn {

class Module;

/// How a parameter is initialized. Each module states the rule of each parameter in visit().
struct Init {
  enum class Kind : std::uint8_t { constant, normal, truncated_normal, uniform, log_uniform };
  Kind kind = Kind::constant;
  double a = 0;  ///< constant: value; normal: mean; uniform: bound; log_uniform: low end
  double b = 0;  ///< normal, truncated_normal: standard deviation; log_uniform: high end

  static constexpr Init constant(double value) { return {Kind::constant, value, 0}; }
  static constexpr Init normal(double std, double mean = 0) { return {Kind::normal, mean, std}; }
  /// Normal; values outside mean +- 2 std are drawn again.
  static constexpr Init truncated_normal(double std, double mean = 0) {
    return {Kind::truncated_normal, mean, std};
  }
  /// Uniform in [-bound, bound).
  static constexpr Init uniform(double bound) { return {Kind::uniform, bound, 0}; }
  /// The logarithm of a uniform number in [low, high).
  static constexpr Init log_uniform(double low, double high) {
    return {Kind::log_uniform, low, high};
  }
  /// Uniform with variance 2 / (fan_in + fan_out). Source: Glorot, Bengio 2010.
  static Init xavier_uniform(std::int64_t fan_in, std::int64_t fan_out, double gain = 1);
  /// Uniform with variance 1 / fan_in for gain 1 (2 / fan_in with gain sqrt(2) for relu).
  /// Source: He et al. 2015, arXiv:1502.01852.
  static Init kaiming_uniform(std::int64_t fan_in, double gain = 1);

  /// Fills t. Element i depends only on the key and key.first + i; does nothing on meta.
  void fill(const Tensor& t, const RandomKey& key) const;
};

/// Initializes every parameter by its module's rule, keyed by (seed, dotted name, element): the
/// values depend neither on the order of construction nor on sharding. Also names the modules
/// (assign_names). A parameter in `parts` gets the values of its range of the whole tensor.
/// Throws Error if a parameter has no rule, or a shape that differs from its part's.
/// `only`, if not null, chooses the tensors; tables are filled where one of them is chosen.
using TensorFilter = std::function<bool(const Tensor& tensor, bool is_buffer)>;
void init(Module& model, std::uint64_t seed, const ShardSpecs& parts = {},
          const TensorFilter& only = {});

/// Allocates a model that was built on the meta device on `device`, and initializes it like init().
///   DeviceScope on_meta(kMeta);
///   Gpt model(config);
///   materialise(model, kCpu, seed);
/// `only`, as for init(), leaves the other tensors on the meta device.
void materialise(Module& model, Device device, std::uint64_t seed, const ShardSpecs& parts = {},
                 const TensorFilter& only = {});

/// The same for a model whose parameters are read next, from files for example: draws nothing, and
/// leaves parameters that are in memory as they are.
void to_empty(Module& model, Device device);

}  // namespace weft::nn
