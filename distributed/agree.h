#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/distributed/world.h"

// What the ranks of a world tell each other before they go on together. Every rank makes the call.
namespace weft::distributed {

/// The value of rank 0, on all of them.
std::int64_t from_rank_0(World& world, std::int64_t own);
/// The text of rank `from`, on all of them.
std::string text_from(World& world, int from, const std::string& own);
/// Runs f on rank 0. Throws on every rank the Error that f throws there: a job has one reason to
/// stop.
void on_rank_0(World& world, const std::function<void()>& f);

/// The values of every rank, in their order.
template <std::size_t N>
std::vector<std::array<std::int64_t, N>> from_all(World& world,
                                                  const std::array<std::int64_t, N>& own) {
  const Tensor in = Tensor::from(std::span<const std::int64_t>(own), {1, std::int64_t{N}});
  const Tensor out = Tensor::empty({world.size(), std::int64_t{N}}, DType::i64);
  world.all().all_gather(out, in).wait();
  std::vector<std::array<std::int64_t, N>> all(static_cast<std::size_t>(world.size()));
  for (std::size_t r = 0; r < all.size(); ++r)
    for (std::size_t i = 0; i < N; ++i) all[r][i] = out.data<std::int64_t>()[r * N + i];
  return all;
}

}  // namespace weft::distributed
