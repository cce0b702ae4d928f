#pragma once
#include <string>
#include <vector>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// A machine as one rank sees it: a name that no other machine has, and the identities of the GPUs
/// that the rank may use.
struct Machine {
  std::string name;
  std::vector<std::string> gpus;
};
Machine this_machine();
/// The name of this machine alone.
std::string machine_name();

/// Assigns GPUs to ranks: the ranks of one machine take its visible GPUs round-robin. Every rank of
/// the world calls it; the world must be able to move host tensors. Throws Error without a GPU and,
/// with `alone`, on every rank when two ranks would share a GPU.
Device gpu_of_rank(World& world, bool alone);
/// The same for another machine than this one. The machine has at least one GPU.
Device gpu_of_rank(World& world, bool alone, const Machine& machine);

/// Checks that the ranks of each list are on one machine. Every rank of the world calls it with the
/// same lists, which have the name `axis`; the world must be able to move host tensors. Throws the
/// same Error on every rank for the first list that is not.
void check_one_machine(World& world, const RankLists& lists, const std::string& axis,
                       const Machine& machine = this_machine());

}  // namespace weft::distributed
