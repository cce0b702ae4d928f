#include <doctest/doctest.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/tests/support.h"

namespace weft::distributed::device_mesh_test {
namespace {

using Lists = RankLists;

Lists pairs(int ranks) {
  Lists out;
  for (int r = 0; r < ranks; r += 2) out.push_back({r, r + 1});
  return out;
}

Lists singletons(int ranks) {
  Lists out;
  for (int r = 0; r < ranks; ++r) out.push_back({r});
  return out;
}

const Lists kApart4 = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
const Lists kApart2 = {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
const Lists kFours = {{0, 1, 2, 3}, {4, 5, 6, 7}};
const Lists kAll8 = {{0, 1, 2, 3, 4, 5, 6, 7}};

}  // namespace

TEST_CASE("mesh: tp 2 x cp 2 with experts over four ranks") {
  const auto lists = [](const char* name) {
    return rank_lists(8, {.tp = 2, .cp = 2, .ep = 4, .etp = 1}, name);
  };
  CHECK(lists("tp") == pairs(8));
  CHECK(lists("cp") == kApart2);
  CHECK(lists("dp") == kApart4);
  CHECK(lists("dp_cp") == Lists{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(lists("tp_cp") == kFours);
  CHECK(lists("tp_dp_cp") == kAll8);
  CHECK(lists("ep") == kFours);
  CHECK(lists("edp") == kApart4);
  CHECK(lists("world") == kAll8);
}

TEST_CASE("mesh: tp 2 x pp 2 with experts split like the rest") {
  const auto lists = [](const char* name) {
    return rank_lists(8, {.tp = 2, .pp = 2, .ep = 2, .etp = 2}, name);
  };
  CHECK(lists("tp") == pairs(8));
  CHECK(lists("dp") == kApart2);
  CHECK(lists("pp") == kApart4);
  CHECK(lists("mp") == Lists{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(lists("ep") == kApart2);
  CHECK(lists("etp") == pairs(8));
  CHECK(lists("edp") == singletons(8));
  CHECK(lists("tp_ep") == kFours);
  CHECK(lists("tp_ep_pp") == kAll8);
}

TEST_CASE("mesh: experts over more ranks than dp has") {
  const auto lists = [](const char* name) {
    return rank_lists(8, {.tp = 4, .ep = 8, .etp = 1}, name);
  };
  CHECK(lists("dp") == kApart4);
  CHECK(lists("ep") == kAll8);
  CHECK(lists("etp") == singletons(8));
  CHECK(lists("edp") == singletons(8));
}

TEST_CASE("mesh: sixteen ranks with every axis in use") {
  const auto lists = [](const char* name) {
    return rank_lists(16, {.tp = 2, .cp = 2, .pp = 2, .ep = 4, .etp = 1}, name);
  };
  CHECK(lists("pp") == Lists{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}});
  CHECK(lists("ep") == Lists{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}});
  CHECK(lists("edp") ==
        Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}});
  CHECK(lists("mp") == Lists{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}});
  CHECK(lists("tp_ep_pp") == Lists{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}});
}

TEST_CASE("mesh: dp is the world size divided by the other degrees") {
  CHECK(settle(8, {.tp = 2}).dp == 4);
  CHECK(settle(8, {.dp = -1, .tp = 2, .pp = 2}).dp == 2);
  const auto lists = [](const char* name) {
    return rank_lists(8, {.dp = -1, .tp = 2, .ep = 4, .etp = 1}, name);
  };
  CHECK(lists("tp") == pairs(8));
  CHECK(lists("dp") == Lists{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(lists("ep") == kFours);
  CHECK(lists("edp") == kApart4);
}

TEST_CASE("mesh: expert data parallelism is the rest of the world before and after settle()") {
  CHECK(Degrees{}.edp(8) == 8);
  CHECK(Degrees{.tp = 2, .ep = 2}.edp(8) == 2);
  CHECK(Degrees{.tp = 2, .ep = 2, .etp = 1}.edp(8) == 4);
  CHECK(settle(8, {.tp = 2, .ep = 2}).edp(8) == 2);
}

TEST_CASE("mesh: dp and edp have an axis of shards and one of replicas") {
  // torchtitan's lists for the same degrees.
  const Degrees d{.tp = 2, .ep = 4, .etp = 1, .dp_replicate = 2};
  CHECK(settle(8, d).dp == 4);
  CHECK(rank_lists(8, d, "dp_replicate") == kApart4);
  CHECK(rank_lists(8, d, "dp_shard") == kApart2);
  CHECK(rank_lists(8, d, "fsdp") == kApart2);
  CHECK(rank_lists(8, d, "dp") == Lists{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(rank_lists(8, d, "ep") == kFours);
  CHECK(rank_lists(8, d, "edp_replicate") == kApart4);
  CHECK(rank_lists(8, d, "efsdp") == singletons(8));
  CHECK(
      test::error_of([] { settle(8, {.dp_replicate = 3}); }) ==
      "mesh: dp_replicate must divide dp and the data parallelism of experts, world size / (etp * "
      "ep * pp); got world size 8, dp 8, tp 1, cp 1, pp 1, ep 1, etp 1, dp_replicate 3");
}

TEST_CASE("mesh: a grid with two axes of data parallelism") {
  const RankGrid dense({{"tp", 2}, {"shard", 2}, {"replicate", 2}});
  CHECK(dense.groups({"replicate"}) == kApart4);
  CHECK(dense.groups({"shard"}) == kApart2);
  CHECK(dense.coordinate(6, "tp") == 0);
  CHECK(dense.coordinate(6, "shard") == 1);
  CHECK(dense.coordinate(6, "replicate") == 1);
  const RankGrid experts({{"ep", 4}, {"shard", 1}, {"replicate", 2}});
  CHECK(experts.groups({"ep"}) == kFours);
  CHECK(experts.groups({"shard"}) == singletons(8));
  CHECK(test::error_of([&] { experts.coordinate(0, "tp"); }) == "mesh: the grid has no axis tp");
}

TEST_CASE("mesh: every kind of group contains every rank once") {
  for (const int world : {1, 2, 4, 6, 8, 24})
    for (const int tp : {1, 2, 3})
      for (const int pp : {1, 2})
        for (const int ep : {1, 2, 4}) {
          if (world % (tp * pp) != 0 || world % (ep * pp) != 0) continue;
          const Degrees d = {.tp = tp, .pp = pp, .ep = ep, .etp = 1};
          for (const std::string& name : mesh_group_names()) {
            std::vector<int> all;
            const Lists lists = rank_lists(world, d, name);
            for (const std::vector<int>& ranks : lists) {
              CHECK(ranks.size() == lists[0].size());
              all.insert(all.end(), ranks.begin(), ranks.end());
            }
            std::sort(all.begin(), all.end());
            for (int r = 0; r < world; ++r) CHECK(all[static_cast<std::size_t>(r)] == r);
          }
          const int edp = world / (ep * pp);
          const RankGrid experts({{"etp", 1}, {"ep", ep}, {"edp", edp}, {"pp", pp}});
          CHECK(experts.groups({"pp"}) == rank_lists(world, d, "pp"));
        }
}

TEST_CASE("mesh: the ranks of tp must be on one machine") {
  const RankLists tp = rank_lists(4, {.tp = 2}, "tp");
  const auto text = [&](std::vector<std::string> machines) {
    std::vector<std::string> texts(4);
    run_ranks(4, [&](World& w) {
      const auto me = static_cast<std::size_t>(w.rank());
      texts[me] = test::error_of([&] { check_one_machine(w, tp, "--tp", {machines[me], {}}); });
    });
    for (const std::string& t : texts) CHECK(t == texts[0]);
    return texts[0];
  };
  CHECK(text({"a", "a", "b", "b"}) == "no error");
  CHECK(text({"a", "b", "a", "b"}) ==
        "mesh: the 2 ranks of --tp that start with rank 0 must be on one machine, and rank 1 is on "
        "another; start the ranks of a machine one after another, a multiple of 2 on each");
  CHECK(
      text({"a", "a", "a", "b"})
          .starts_with("mesh: the 2 ranks of --tp that start with rank 2 must be on one machine"));
}

TEST_CASE("mesh: incompatible degrees are refused with all numbers") {
  const auto refused = [](int world, const Degrees& d) {
    return test::error_of([&] { settle(world, d); });
  };
  CHECK(refused(8, {.dp = 3, .tp = 2}) ==
        "mesh: dp * tp * cp * pp must be the world size; got world size 8, dp 3, tp 2, cp 1, pp 1, "
        "ep 1, etp 2");
  CHECK(refused(8, {.tp = 3}) ==
        "mesh: tp * cp * pp must divide the world size; got world size 8, dp 0, tp 3, cp 1, pp 1, "
        "ep 1, etp 3");
  CHECK(refused(2, {.tp = 2, .ep = 3, .etp = 1}) ==
        "mesh: etp * ep * pp must divide the world size; got world size 2, dp 1, tp 2, cp 1, pp 1, "
        "ep 3, etp 1");
  CHECK(refused(4, {.cp = 0}) ==
        "mesh: degrees must be at least 1 (dp 0: what is left over, etp 0: as tp); got world size "
        "4, dp 0, tp 1, cp 0, pp 1, ep 1, etp 0");
  CHECK(refused(0, {}) ==
        "mesh: the world must have at least one rank; got world size 0, dp 0, tp 1, cp 1, pp 1, ep "
        "1, etp 0");
  CHECK(refused(4, {.dp = 65536, .tp = 65536, .cp = 65536, .pp = 65536}) ==
        "mesh: dp * tp * cp * pp must be the world size; got world size 4, dp 65536, tp 65536, cp "
        "65536, pp 65536, ep 1, etp 65536");
}

TEST_CASE("mesh: user axes lie between dp and pp, the first fastest") {
  const Degrees d{.tp = 2, .pp = 2, .axes = {{"chain", 2}, {"member", 2}}};
  CHECK(settle(16, d).dp == 1);
  CHECK(settle(32, d).dp == 2);
  CHECK(settle(32, d).edp(32) == 2);
  const auto first = [&](const Degrees& of, const char* name) {
    return rank_lists(32, of, name)[0];
  };
  CHECK(first(d, "tp") == std::vector{0, 1});
  CHECK(first(d, "dp") == std::vector{0, 2});
  CHECK(first(d, "chain") == std::vector{0, 4});
  CHECK(first(d, "member") == std::vector{0, 8});
  CHECK(first(d, "pp") == std::vector{0, 16});
  CHECK(first(d, "world").size() == 32);
  for (const char* name : {"dp_cp", "dp_shard_cp", "edp", "edp_shard"})
    CHECK(first(d, name) == std::vector{0, 2});
  Degrees sums = d;
  sums.axes[0].sums_gradients = true;
  for (const char* name : {"dp_cp", "dp_shard_cp", "edp", "edp_shard"})
    CHECK(first(sums, name) == std::vector{0, 2, 4, 6});
  CHECK(first(sums, "dp") == std::vector{0, 2});
  CHECK(first(sums, "tp_dp_cp") == std::vector{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("mesh: user axes that do not fit are refused") {
  const auto refused = [](std::vector<UserAxis> axes) {
    return test::error_of([&] { settle(8, {.tp = 2, .axes = std::move(axes)}); });
  };
  CHECK(refused({{"chain", 2}}) == "no error");
  CHECK(refused({{"chain", 3}}) ==
        "mesh: tp * cp * pp * chain must divide the world size; got world size 8, dp 0, tp 2, cp "
        "1, pp 1, ep 1, etp 2, chain 3");
  CHECK(refused({{"chain", 0}})
            .starts_with("mesh: degrees must be at least 1 (dp 0: what is left over, etp 0: as "
                         "tp); got world size 8,"));
  for (const char* name : {"tp", "world", "fsdp", "dp_shard"})
    CHECK(refused({{name, 2}}) ==
          message("mesh: an axis must have a name that no group has, got {}", name));
  CHECK(refused({{"chain", 2}, {"chain", 2}}) ==
        "mesh: an axis must have a name that no group has, got chain");
  CHECK(refused({{"", 2}}) == "mesh: an axis must have a name, got an empty one");
  CHECK(test::error_of([] {
          rank_lists(8, {.axes = {{"chain", 2}}}, "chains");
        }).ends_with(" etp_grad world chain, got chains"));
}

TEST_CASE("mesh: communicators are made at first use, not for one rank, and once for equal ranks") {
  const auto use = [](World& world, const Degrees& degrees,
                      std::initializer_list<const char*> names) {
    const DeviceMesh mesh(world, degrees);
    CHECK(world.communicators() == 1);  // the world's
    const Tensor x = Tensor::zeros({4}, DType::f32, kMeta);
    for (const char* name : names)
      for (int i = 0; i < 2; ++i) mesh.group(name).all_reduce(x).wait();
    return world.communicators();
  };
  for (const int size : {8, 64, 1024, 4096}) {
    const auto world = fake_world(size - 1, size);
    // All fourteen names: tp = ep = tp_ep = mp, dp = dp_cp = edp, and the world.
    const Degrees degrees{.tp = 8, .ep = 8, .etp = 1};
    CHECK(use(*world, degrees,
              {"tp", "cp", "dp", "pp", "dp_cp", "tp_cp", "tp_dp_cp", "mp", "etp", "ep", "edp",
               "tp_ep", "tp_ep_pp", "world"}) == (size == 8 ? 1 : 3));
  }
  CHECK(use(*fake_world(0, 64), {.tp = 2, .cp = 2, .pp = 2, .ep = 4}, {"tp", "dp_cp", "world"}) ==
        3);
  CHECK(use(*fake_world(0, 1), {}, {"tp", "dp", "world"}) == 1);
  // Made when the groups are: not every rank can wait for a collective of one of them.
  const auto world = fake_world(0, 4);
  const auto some = world->group("some", {3, 0});
  CHECK(world->communicators() == 2);
  const auto none = world->group("none", {2});
  CHECK(none == nullptr);
  CHECK(world->communicators() == 2);
}

TEST_CASE("mesh: groups have the right ranks and communicate") {
  run_ranks(4, [](World& w) {
    const DeviceMesh mesh(w, {.dp = 2, .tp = 2, .ep = 4, .etp = 1});
    CHECK(mesh.degrees().dp == 2);
    CHECK(mesh.tp().rank() == w.rank() % 2);
    CHECK(mesh.dp().rank() == w.rank() / 2);
    CHECK(mesh.ep().rank() == w.rank());
    CHECK(mesh.edp().size() == 1);
    CHECK(mesh.etp().size() == 1);
    CHECK(mesh.pp().size() == 1);
    CHECK(mesh.cp().size() == 1);
    CHECK(mesh.dp_cp().ranks() == mesh.dp().ranks());
    CHECK(mesh.tp_ep().size() == 4);
    CHECK(mesh.group("world").size() == 4);
    CHECK(&mesh.world() == &w);
    const auto sum_over = [&](ProcessGroup& group) {
      const Tensor x = Tensor::full({1}, w.rank());
      group.all_reduce(x).wait();
      return x.item();
    };
    CHECK(sum_over(mesh.tp()) == (w.rank() < 2 ? 1 : 5));
    CHECK(sum_over(mesh.dp()) == (w.rank() % 2 == 0 ? 2 : 4));
    CHECK(sum_over(mesh.edp()) == w.rank());
    CHECK(test::error_of([&] { mesh.group("ddp"); }) ==
          "mesh: a group must be one of tp cp dp pp dp_cp tp_cp tp_dp_cp mp etp ep edp tp_ep "
          "tp_ep_pp dp_shard dp_replicate dp_shard_cp edp_shard edp_replicate tp_grad etp_grad "
          "world, got ddp");
  });
}

}  // namespace weft::distributed::device_mesh_test
