#include "weft/distributed/device_mesh.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

/// The grid, the axes and the lane of a group name.
struct GroupAxes {
  std::string name;
  bool expert;
  std::vector<std::string> axes;
  Lane lane = Lane::model;
};

const std::vector<GroupAxes>& group_axes() {
  static const std::vector<GroupAxes> all = {
      {"tp", false, {"tp"}},
      {"cp", false, {"cp"}},
      {"dp", false, {"dp_shard", "dp_replicate"}, Lane::data},
      {"pp", false, {"pp"}, Lane::pipeline},
      {"dp_cp", false, {"dp_shard", "dp_replicate", "cp"}, Lane::data},
      {"tp_cp", false, {"tp", "cp"}},
      {"tp_dp_cp", false, {"tp", "dp_shard", "dp_replicate", "cp"}},
      {"mp", false, {"tp", "pp"}},
      {"etp", true, {"etp"}},
      {"ep", true, {"ep"}},
      {"edp", true, {"edp_shard", "edp_replicate"}, Lane::data},
      {"tp_ep", true, {"etp", "ep"}},
      {"tp_ep_pp", true, {"etp", "ep", "pp"}},
      {"dp_shard", false, {"dp_shard"}, Lane::data},
      {"dp_replicate", false, {"dp_replicate"}, Lane::data},
      {"dp_shard_cp", false, {"dp_shard", "cp"}, Lane::data},
      {"edp_shard", true, {"edp_shard"}, Lane::data},
      {"edp_replicate", true, {"edp_replicate"}, Lane::data},
      {"tp_grad", false, {"tp"}, Lane::data},
      {"etp_grad", true, {"etp"}, Lane::data},
      {"world", false, {"tp", "cp", "dp_shard", "dp_replicate", "pp"}},
  };
  return all;
}

// The names that torchtitan has for them.
std::string_view without_alias(std::string_view name) {
  return name == "fsdp" ? "dp_shard_cp" : name == "efsdp" ? "edp_shard" : name;
}

// Whether the ranks of a group include those along an axis that sums gradients.
bool sums_gradients(std::string_view group) {
  return group == "dp_cp" || group == "dp_shard_cp" || group == "tp_dp_cp" || group == "edp" ||
         group == "edp_shard";
}

std::vector<GroupAxes> group_axes(const std::vector<UserAxis>& axes) {
  std::vector<GroupAxes> all = group_axes();
  for (const UserAxis& a : axes)
    for (GroupAxes& g : all)
      if (g.name == "world" || (a.sums_gradients && sums_gradients(g.name)))
        g.axes.push_back(a.name);
  for (const UserAxis& a : axes) all.push_back({a.name, false, {a.name}});
  return all;
}

GroupAxes find_group(const std::vector<UserAxis>& axes, std::string_view name) {
  name = without_alias(name);
  std::string known;
  for (GroupAxes& g : group_axes(axes)) {
    if (g.name == name) return g;
    known += (known.empty() ? "" : " ") + g.name;
  }
  throw Error(message("mesh: a group must be one of {}, got {}", known, name));
}

void check_names(const std::vector<UserAxis>& axes) {
  std::vector<std::string> taken = mesh_group_names();
  for (const UserAxis& a : axes) {
    check(!a.name.empty(), "mesh: an axis must have a name, got an empty one");
    const bool free = std::find(taken.begin(), taken.end(), without_alias(a.name)) == taken.end();
    check(free, "mesh: an axis must have a name that no group has, got {}", a.name);
    taken.push_back(a.name);
  }
}

RankGrid grid(int world_size, const Degrees& d, bool expert) {
  const int edp = d.edp(world_size);
  std::vector<RankGrid::Axis> axes =
      expert ? std::vector<RankGrid::Axis>{{"etp", d.etp},
                                           {"ep", d.ep},
                                           {"edp_shard", edp / d.dp_replicate},
                                           {"edp_replicate", d.dp_replicate}}
             : std::vector<RankGrid::Axis>{{"tp", d.tp},
                                           {"cp", d.cp},
                                           {"dp_shard", d.dp / d.dp_replicate},
                                           {"dp_replicate", d.dp_replicate}};
  for (const UserAxis& a : d.axes) axes.push_back({a.name, a.size});
  axes.push_back({"pp", d.pp});
  return RankGrid(std::move(axes));
}

void check_fits(bool ok, const std::string& rule, int world_size, const Degrees& d) {
  std::string more = d.dp_replicate == 1 ? "" : message(", dp_replicate {}", d.dp_replicate);
  for (const UserAxis& a : d.axes) more += message(", {} {}", a.name, a.size);
  check(ok, "mesh: {}; got world size {}, dp {}, tp {}, cp {}, pp {}, ep {}, etp {}{}", rule,
        world_size, d.dp, d.tp, d.cp, d.pp, d.ep, d.etp, more);
}

}  // namespace

Degrees settle(int world_size, Degrees d) {
  check_names(d.axes);
  double user = 1;
  bool at_least_1 = true;
  std::string by_user;  // in products
  for (const UserAxis& a : d.axes) {
    user *= a.size;
    at_least_1 = at_least_1 && a.size >= 1;
    by_user += " * " + a.name;
  }
  const auto fits = [&](bool ok, const std::string& rule) { check_fits(ok, rule, world_size, d); };
  fits(world_size >= 1, "the world must have at least one rank");
  fits(d.dp >= -1 && d.tp >= 1 && d.cp >= 1 && d.pp >= 1 && d.ep >= 1 && d.etp >= 0 &&
           d.dp_replicate >= 1 && at_least_1,
       "degrees must be at least 1 (dp 0: what is left over, etp 0: as tp)");
  if (d.etp == 0) d.etp = d.tp;
  // In double, because degrees come from the command line and their product may overflow.
  const double model = user * d.tp * d.cp * d.pp, experts = user * d.etp * d.ep * d.pp;
  const auto divides = [&](double n) {
    return n <= world_size && world_size % static_cast<int>(n) == 0;
  };
  if (d.dp <= 0) {
    fits(divides(model), "tp * cp * pp" + by_user + " must divide the world size");
    d.dp = world_size / static_cast<int>(model);
  }
  fits(model * d.dp == world_size, "dp * tp * cp * pp" + by_user + " must be the world size");
  fits(divides(experts), "etp * ep * pp" + by_user + " must divide the world size");
  fits(d.dp % d.dp_replicate == 0 && d.edp(world_size) % d.dp_replicate == 0,
       "dp_replicate must divide dp and the data parallelism of experts, world size / (etp * ep * "
       "pp" +
           by_user + ")");
  return d;
}

RankGrid::RankGrid(std::vector<Axis> axes) : axes_(std::move(axes)) {}

int RankGrid::size() const {
  int n = 1;
  for (const Axis& a : axes_) n *= a.size;
  return n;
}

int RankGrid::coordinate(int rank, std::string_view axis) const {
  for (const Axis& a : axes_) {
    if (a.name == axis) return rank % a.size;
    rank /= a.size;
  }
  throw Error(message("mesh: the grid has no axis {}", axis));
}

RankLists RankGrid::groups(const std::vector<std::string>& axes) const {
  // Ranks of one group agree in the other axes' coordinates.
  RankLists lists;
  std::map<int, std::size_t> list_of;
  for (int rank = 0; rank < size(); ++rank) {
    int place = 0, stride = 1, rest = rank;
    for (const Axis& a : axes_) {
      const bool along = std::find(axes.begin(), axes.end(), a.name) != axes.end();
      if (!along) place += stride * (rest % a.size);
      stride *= a.size;
      rest /= a.size;
    }
    const auto [it, fresh] = list_of.emplace(place, lists.size());
    if (fresh) lists.emplace_back();
    lists[it->second].push_back(rank);
  }
  return lists;
}

const std::vector<std::string>& mesh_group_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const GroupAxes& g : group_axes()) all.emplace_back(g.name);
    return all;
  }();
  return names;
}

RankLists rank_lists(int world_size, const Degrees& degrees, std::string_view name) {
  const GroupAxes g = find_group(degrees.axes, name);
  return grid(world_size, settle(world_size, degrees), g.expert).groups(g.axes);
}

DeviceMesh::DeviceMesh(World& world, const Degrees& degrees)
    : world_(world), degrees_(settle(world.size(), degrees)) {
  for (const GroupAxes& g : group_axes(degrees_.axes)) {
    if (g.name == "world") continue;  // exists already
    groups_[g.name] =
        world.split(g.name, grid(world.size(), degrees_, g.expert).groups(g.axes), g.lane);
  }
}

ProcessGroup& DeviceMesh::group(std::string_view name) const {
  if (name == "world") return world_.all();
  const auto it = groups_.find(without_alias(name));
  if (it == groups_.end()) find_group(degrees_.axes, name);  // throws an Error with all names
  return *it->second;
}

bool DeviceMesh::is_first_replica(const std::vector<std::string>& cut_over) const {
  std::vector<std::string> others;
  for (const UserAxis& a : degrees_.axes)
    if (!a.sums_gradients) others.push_back(a.name);
  for (const std::string& name : cut_over) {
    const auto found = std::find(others.begin(), others.end(), name);
    check(found != others.end(),
          "mesh: cut_over must name user axes that do not sum gradients, each once, got {}", name);
    others.erase(found);
  }
  return std::all_of(others.begin(), others.end(),
                     [this](const std::string& name) { return group(name).rank() == 0; });
}

}  // namespace weft::distributed
