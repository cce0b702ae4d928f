#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weft/core/pattern.h"
#include "weft/distributed/layout.h"
#include "weft/distributed/plan.h"
#include "weft/distributed/unit_cut.h"
#include "weft/nn/linear.h"
#include "weft/nn/shard.h"

namespace weft::distributed {

/// One call of parallelize(). parallelize.cpp finds the rule of each module and places tensors,
/// parallelize_layers.cpp has a function for each kind of Placement, parallelize_adapters.cpp
/// places adapters.
class Parallelizer {
 public:
  Parallelizer(nn::Module& model, ProcessGroup& tp, const Plan& plan);
  Layout run();

 private:
  using Kind = Placement::Kind;
  using ShareRows = std::function<Tensor(const Tensor& t)>;

  int rule_of(const std::string& name) const;
  void place(const std::string& name, nn::Module& m, const Placement& p);
  void place_tensors(const std::string& name, nn::Module& m, ModulePlacements tensors);
  void place_tensor(const std::string& module, const std::string& name, const AxisPlacement& p,
                    bool partial);
  void place_the_rest();

  // A rule for each kind of Placement.
  void column(const std::string& name, const Placement& p, nn::Shard& s);
  void row(const std::string& name, const Placement& p, nn::Shard& s);
  void table(const std::string& name, const Placement& p, nn::Shard& s);
  void head(const std::string& name, const Placement& p, nn::Shard& s);
  void loss(const std::string& name, const Placement& p, nn::Shard& s);
  void heads(const std::string& name, const Placement& p, nn::Shard& s);
  void tokens(const std::string& name, const Placement& p, nn::Shard& s);
  void own_parameters(const std::string& name, const Placement& p, nn::Shard& s);
  void norm(const std::string& name, const Placement& p, nn::Shard& s);

  std::function<Tensor(const Tensor&)> entrance() const;
  std::function<Tensor(Tensor)> exit(bool scatters) const;
  ShareRows sharing(const std::vector<SharedRows>& rows, std::int64_t all) const;
  UnitCut::Ranges vocabulary(const Placement& p) const;
  bool gathers_again(const std::string& name) const;

  void place_adapters(const std::string& name, nn::Linear& layer, const Placement& p);

  /// A parameter of the module `name`, or null.
  Tensor own(const std::string& name, const char* tensor) const;
  bool is_placed(const Tensor& t) const { return placed_.contains(t.impl()); }
  /// Marks it as placed.
  ParameterLayout& layout_of(const Tensor& t);
  /// Keeps these ranges of an axis of t. Null for a tied weight that was sharded under another
  /// name.
  ParameterLayout* keep(const Tensor& t, int axis, const UnitCut::Ranges& ranges);

  nn::Module& model_;
  ProcessGroup& tp_;
  const Plan& plan_;
  std::vector<Pattern> patterns_;
  std::optional<Pattern> gathers_again_;
  std::vector<bool> used_;
  std::vector<std::pair<std::string, const TensorImpl*>> names_;  // in the order of the model
  std::map<std::string, Tensor> tensors_;  // parameters, with all names of tied ones
  std::unordered_set<const TensorImpl*> placed_;
  Layout layout_;
  std::unordered_map<const TensorImpl*, ParameterLayout*> layouts_;
};

}  // namespace weft::distributed
