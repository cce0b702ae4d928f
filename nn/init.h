#pragma once
#include <cstdint>

#include "weft/core/philox.h"
#include "weft/core/tensor.h"
#include "weft/nn/part.h"

namespace weft::nn {

class Module;

/// How a parameter starts. Each module states the rule of each of its parameters in visit().
struct Init {
  enum class Kind : std::uint8_t { constant, normal, truncated_normal, uniform, log_uniform };
  Kind kind = Kind::constant;
  double a =
      0;  ///< constant: the value; normal: mean; uniform: the bound; log_uniform: the low end
  double b = 0;  ///< normal, truncated normal: standard deviation; log_uniform: the high end

  static constexpr Init constant(double value) { return {Kind::constant, value, 0}; }
  static constexpr Init normal(double std, double mean = 0) { return {Kind::normal, mean, std}; }
  /// Normal, with everything outside mean +- 2 std drawn again.
  static constexpr Init truncated_normal(double std, double mean = 0) {
    return {Kind::truncated_normal, mean, std};
  }
  /// Uniform in [-bound, bound).
  static constexpr Init uniform(double bound) { return {Kind::uniform, bound, 0}; }
  /// The logarithm of a number that is uniform in [low, high).
  static constexpr Init log_uniform(double low, double high) {
    return {Kind::log_uniform, low, high};
  }
  /// Uniform with variance 2 / (fan_in + fan_out). Source: Glorot, Bengio 2010.
  static Init xavier_uniform(std::int64_t fan_in, std::int64_t fan_out, double gain = 1);
  /// Uniform with variance 1 / fan_in for gain 1 (2 / fan_in with gain sqrt(2) for relu).
  /// Source: He et al. 2015, arXiv:1502.01852.
  static Init kaiming_uniform(std::int64_t fan_in, double gain = 1);

  /// Fills t. Element i depends on the key and on key.first + i only; nothing happens on meta.
  void fill(const Tensor& t, const RandomKey& key) const;
};

/// Refills every parameter by the rule of its module, keyed by (seed, dotted name, element), so the
/// values depend neither on the order of construction nor on how a tensor is sharded. Also names
/// the modules (assign_names). A parameter in `parts` gets the values that its part of the whole
/// has.
/// Throws Error when a part is not what the parameter's shape says.
void init(Module& model, std::uint64_t seed, const Parts& parts = {});

/// Gives a model that was built on the meta device its memory on `device`, and fills it like
/// init().
///   DeviceScope on_meta(kMeta);
///   Gpt model(config);
///   materialise(model, kCpu, seed);
void materialise(Module& model, Device device, std::uint64_t seed, const Parts& parts = {});

}  // namespace weft::nn
