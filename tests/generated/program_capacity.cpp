#include <cmath>

#include "weft/autograd/expert_capacity.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_rows.h"

// Limits on the tokens of an expert.
namespace weft::generated {
namespace {

// ints: tokens, slots of a token, [2]: experts, [3]: capacity, [4]: by position, then the expert of
// each slot, or -1; a token has no expert twice. reals[0]: the capacity's factor.
constexpr std::size_t kExperts = 5;
bool limited(Maker& m, Item& item) {
  if (!rows(m, item, 1)) return false;
  const std::int64_t experts = item.ints[1] + m.rng.below(3);
  item.ints.insert(item.ints.end(), {experts, m.rng.below(4), m.rng.below(2)});
  for (std::int64_t t = 0; t < item.ints[0]; ++t) {
    const std::int64_t first = m.rng.below(experts);
    for (std::int64_t i = 0; i < item.ints[1]; ++i)
      item.ints.push_back(m.rng.chance(0.1) ? -1 : (first + i) % experts);
  }
  item.reals = {static_cast<double>(1 + m.rng.below(4)) / 4};
  return true;
}
Routing routing(I item, const Tensor& x) {
  const Tensor experts = int_tensor(item, kExperts, row_shape(item), x);
  const Tensor probs = where(ge(experts, 0), in_rows(item, x), 0);
  return {is_half(probs.dtype()) ? cast(probs, DType::f32) : probs, experts};
}
DropPolicy policy(I item) { return item.ints[4] ? DropPolicy::position : DropPolicy::probability; }

Array limited_to(I item, const Array& x, std::int64_t capacity) {
  Array y = flat_part(x, row_shape(item));
  const auto expert = [&](std::size_t slot) { return item.ints[kExperts + slot]; };
  for (std::size_t s = 0; s < y.at.size(); ++s)
    if (expert(s) < 0) y.at[s] = -0.125;
  for (std::int64_t e = 0; e < item.ints[2]; ++e) {
    Row keys;
    std::vector<std::size_t> slots;
    for (std::size_t s = 0; s < y.at.size(); ++s)
      if (expert(s) == e) {
        slots.push_back(s);
        keys.push_back(item.ints[4] ? Number(0) : still(y.at[s]));
      }
    std::int64_t left = capacity;
    for (const int i : falling(keys)) {
      Number& p = y.at[slots[static_cast<std::size_t>(i)]];
      p = left-- > 0 ? p + static_cast<double>(e) * 0.125 : Number(-0.125);
    }
  }
  return y;
}

const ProgramOp kCapacityOps[] = {
    {"limit_capacity", 2, limited,
     [](I item, T in) {
       return both(limit_capacity(routing(item, in[0]), item.ints[2], item.ints[3], policy(item)));
     },
     [](I item, A in) { return limited_to(item, *in[0], item.ints[3]); }},
    {"limit_capacity_factor", 2, limited,
     [](I item, T in) {
       const Routing r = routing(item, in[0]);
       return both(limit_capacity_factor(r, item.ints[2], item.reals[0], policy(item)));
     },
     [](I item, A in) {
       double slots = 0;
       for (std::size_t i = kExperts; i < item.ints.size(); ++i) slots += item.ints[i] >= 0 ? 1 : 0;
       const double share = slots / static_cast<double>(item.ints[2]) * item.reals[0];
       return limited_to(item, *in[0], static_cast<std::int64_t>(std::ceil(share - 1e-9)));
     }},
};

}  // namespace

std::span<const ProgramOp> capacity_ops() { return kCapacityOps; }

}  // namespace weft::generated
