#pragma once
#include <cstdint>

#include "weft/core/fields.h"

namespace weft::nn {

/// What backward computes again instead of keeping: a set of parts, or whole blocks, of which only
/// the input is kept. A part is the output of a cheap op that the next product saves
/// (autograd/discard.h); no product runs twice.
enum class Recompute : std::uint8_t {
  none = 0,
  norms = 1,      ///< outputs of a block's two norms
  attention = 2,  ///< outputs of the attention core, between its projections
  mlp = 4,        ///< the activated hidden layer of an MLP
  experts = 8,    ///< the activated hidden layer of experts
  gathered = 16,  ///< rows gathered under sequence parallelism: they are gathered again
  full = 32,      ///< whole blocks; the other parts then save nothing more
  selective = norms | mlp | experts,  ///< the parts that cost a pass over memory only
};
constexpr Recompute operator|(Recompute a, Recompute b) {
  return static_cast<Recompute>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool has(Recompute set, Recompute part) {
  return (static_cast<unsigned>(set) & static_cast<unsigned>(part)) != 0;
}

inline constexpr Word<Recompute> kRecomputeWords[] = {
    {"none", Recompute::none},           {"norms", Recompute::norms},
    {"attention", Recompute::attention}, {"mlp", Recompute::mlp},
    {"experts", Recompute::experts},     {"gathered", Recompute::gathered},
    {"selective", Recompute::selective}, {"full", Recompute::full}};

}  // namespace weft::nn

template <>
inline constexpr bool weft::is_word_set<weft::nn::Recompute> = true;
