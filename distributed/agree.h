#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/distributed/world.h"

// Small exchanges by which the ranks of a world agree on a value. Every rank makes the call.
namespace weft::distributed {

/// Returns rank 0's value on every rank.
std::int64_t from_rank_0(World& world, std::int64_t own);
/// Returns the text of rank `from` on every rank.
std::string text_from(World& world, int from, const std::string& own);
/// Runs f on rank 0. If f throws an Error, every rank throws it, so the job has one error message.
void on_rank_0(World& world, const std::function<void()>& f);

/// Returns the values of all ranks, in rank order.
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
