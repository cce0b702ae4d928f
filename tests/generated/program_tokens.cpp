#include "weft/autograd/router_loss.h"
#include "weft/autograd/token_permute.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_rows.h"

// Tokens in the order of their experts, counts of experts, and losses of routers.
namespace weft::generated {
namespace {

// ints: tokens, width, [2]: slots of a token, [3]: experts, [4]: alignment, [5]: capacity, then the
// expert of each slot; -1 and the number of experts are none.
constexpr std::size_t kSlots = 6;
void add_slots(Maker& m, Item& item, std::int64_t slots) {
  const std::int64_t experts = 1 + m.rng.below(4), alignment = 1 + m.rng.below(2);
  const std::int64_t capacity = m.rng.chance(0.4) ? alignment * (1 + m.rng.below(3)) : 0;
  item.ints.insert(item.ints.end(), {slots, experts, alignment, capacity});
  for (std::int64_t i = 0; i < item.ints[0] * slots; ++i)
    item.ints.push_back(m.rng.below(experts + 2) - 1);
}
bool slots_of_rows(Maker& m, Item& item) {
  if (!rows(m, item, 1)) return false;
  add_slots(m, item, 1 + m.rng.below(3));
  return true;
}
bool columns_as_slots(Maker& m, Item& item) {
  if (!rows(m, item, 1)) return false;
  add_slots(m, item, item.ints[1]);
  return true;
}
std::int64_t slots(I item) { return item.ints[2]; }
std::int64_t experts(I item) { return item.ints[3]; }
Tensor expert_of_slots(I item, const Tensor& x) {
  return int_tensor(item, kSlots, {item.ints[0], slots(item)}, x);
}
ExpertRows sorted(I item, const Tensor& x) {
  const RowOptions options{.alignment = item.ints[4], .capacity = item.ints[5]};
  return sort_by_expert(expert_of_slots(item, x), experts(item), options);
}
// The slot of each row, -1 for padding.
std::vector<std::int64_t> slot_of_rows(I item) {
  const std::int64_t alignment = item.ints[4], capacity = item.ints[5];
  std::vector<std::int64_t> found;
  for (std::int64_t e = 0; e < experts(item); ++e) {
    std::int64_t count = 0;
    for (std::size_t s = kSlots; s < item.ints.size(); ++s)
      if (item.ints[s] == e && (capacity == 0 || count < capacity)) {
        found.push_back(static_cast<std::int64_t>(s - kSlots));
        ++count;
      }
    for (; capacity ? count < capacity : count % alignment != 0; ++count) found.push_back(-1);
  }
  return found;
}
// Also an operand with a row for each slot.
bool expert_rows(Maker& m, Item& item) {
  if (!slots_of_rows(m, item)) return false;
  const auto count = static_cast<std::int64_t>(slot_of_rows(item).size());
  item.in.push_back(m.like({count, item.ints[1]}));
  return true;
}
Array token_rows_exact(I item, A in) {
  Array y{{0, item.ints[1]}, {}};
  for (const std::int64_t slot : slot_of_rows(item)) {
    Row row(width(item), 0);
    if (slot >= 0) row = row_of(*in[0], static_cast<std::size_t>(slot / slots(item)), width(item));
    y.at.insert(y.at.end(), row.begin(), row.end());
    ++y.shape[0];
  }
  return y;
}
Array slots_exact(I item, A in) {
  Array y{{0}, {}};
  for (const std::int64_t slot : slot_of_rows(item)) {
    y.at.push_back(slot < 0 ? Number(0) : in[0]->at[static_cast<std::size_t>(slot)]);
    ++y.shape[0];
  }
  return y;
}
Array combined_exact(I item, A in) {
  Array y = filled(row_shape(item), 0);
  const std::vector<std::int64_t> slot_of = slot_of_rows(item);
  for (std::size_t i = 0; i < slot_of.size(); ++i)
    for (std::size_t c = 0; slot_of[i] >= 0 && c < width(item); ++c) {
      Number& sum = y.at[static_cast<std::size_t>(slot_of[i] / slots(item)) * width(item) + c];
      sum = sum + in[1]->at[i * width(item) + c];
    }
  return y;
}
// The row of each slot, then the slot of each row.
Array sorted_exact(I item, A) {
  const std::vector<std::int64_t> slot_of = slot_of_rows(item);
  Row row_of_slot(item.ints.size() - kSlots, -1), y;
  for (std::size_t i = 0; i < slot_of.size(); ++i) {
    y.emplace_back(static_cast<double>(slot_of[i]));
    if (slot_of[i] >= 0) row_of_slot[static_cast<std::size_t>(slot_of[i])] = static_cast<double>(i);
  }
  y.insert(y.begin(), row_of_slot.begin(), row_of_slot.end());
  return {{static_cast<std::int64_t>(y.size())}, y};
}
Array counted_exact(I item, A) {
  Array y = filled({1, experts(item)}, 0);
  for (std::size_t s = kSlots; s < item.ints.size(); ++s)
    if (item.ints[s] >= 0 && item.ints[s] < experts(item))
      y.at[static_cast<std::size_t>(item.ints[s])].v += 1;
  return y;
}

// ints after the form: the experts of a token, the sequences.
bool top_counted(Maker& m, Item& item) {
  if (!padded_rows(m, item, 1)) return false;
  item.ints.push_back(1 + m.rng.below(std::min<std::int64_t>(item.ints[1], 3)));
  item.ints.push_back(item.ints[0] % 2 == 0 ? 1 + m.rng.below(2) : 1);
  return true;
}
Array top_counted_exact(I item, A in) {
  const auto k = static_cast<std::size_t>(item.ints[item.ints.size() - 2]);
  const auto sequences = static_cast<std::size_t>(item.ints.back());
  Array y = filled({item.ints.back(), item.ints[1]}, 0);
  for (std::size_t t = 0; t < tokens(item); ++t) {
    if (padding_at(item, t)) continue;
    const std::vector<int> order = falling(row_of(*in[0], t, width(item)));
    for (std::size_t i = 0; i < k; ++i)
      y.at[t / (tokens(item) / sequences) * width(item) + static_cast<std::size_t>(order[i])].v +=
          1;
  }
  return y;
}
// ints after the form, which is the score: the sequences, then the counts of the experts of each.
bool balanced(Maker& m, Item& item) {
  if (!padded_rows(m, item, 3)) return false;
  item.ints.push_back(item.ints[0] % 2 == 0 ? 1 + m.rng.below(2) : 1);
  return draw_indices(m, item, item.ints.back() * item.ints[1], 5);
}
std::size_t sequences_at(I item) { return 3 + tokens(item); }
RouterScore score(I item) { return static_cast<RouterScore>(form(item)); }
// The mean over the tokens that are no padding.
template <class F>
Array mean_of_tokens(I item, A in, F f) {
  const Array each =
      of_tokens(item, *in[0], 1, 0, [&](const Row& row, std::size_t t) { return Row{f(row, t)}; });
  double count = 0;
  for (std::size_t t = 0; t < tokens(item); ++t) count += padding_at(item, t) ? 0 : 1;
  return {{}, {count == 0 ? Number(0) : total(each.at) * (0.5 / count)}};
}
Array balance_exact(I item, A in) {
  const std::size_t at = sequences_at(item);
  const auto length = tokens(item) / static_cast<std::size_t>(item.ints[at]);
  return mean_of_tokens(item, in, [&](const Row& row, std::size_t t) {
    const std::size_t first = at + 1 + t / length * width(item);
    double counted = 0;
    for (std::size_t e = 0; e < width(item); ++e)
      counted += static_cast<double>(item.ints[first + e]);
    Row scores;
    for (N x : row) scores.push_back(form(item) == 0 ? exp(x) : score_of(score(item), x));
    Number weighted;
    for (std::size_t e = 0; e < width(item); ++e)
      weighted = weighted + scores[e] * static_cast<double>(item.ints[first + e]);
    if (counted == 0) return Number(0);
    return weighted / total(scores) * (static_cast<double>(width(item)) / counted);
  });
}
bool plain(Maker& m, Item& item) { return padded_rows(m, item, 1); }

const ProgramOp kTokenOps[] = {
    {"sort_by_expert", 2, slots_of_rows,
     [](I item, T in) {
       const ExpertRows r = sorted(item, in[0]);
       return cat({flatten(r.row_of), r.slot_of});
     },
     sorted_exact},
    {"permute_tokens", 2, slots_of_rows,
     [](I item, T in) { return permute_tokens(in_rows(item, in[0]), sorted(item, in[0])); },
     token_rows_exact},
    {"permute_probs", 2, columns_as_slots,
     [](I item, T in) { return permute_probs(in_rows(item, in[0]), sorted(item, in[0])); },
     slots_exact},
    {"combine_tokens", 2, expert_rows,
     [](I item, T in) { return combine_tokens(in[1], sorted(item, in[0])); }, combined_exact},
    {"count_experts", 2, slots_of_rows,
     [](I item, T in) { return count_experts(expert_of_slots(item, in[0]), experts(item)); },
     counted_exact},
    {"count_top_experts", 2, top_counted,
     [](I item, T in) {
       const Tensor x = in_rows(item, in[0]);
       const std::int64_t k = item.ints[item.ints.size() - 2];
       return count_top_experts(x, k, item.ints.back(), padding(item, x));
     },
     top_counted_exact},
    {"balance_loss", 1, balanced,
     [](I item, T in) {
       const Tensor x = in_rows(item, in[0]);
       const std::size_t at = sequences_at(item);
       const Tensor counts = int_tensor(item, at + 1, {item.ints[at], item.ints[1]}, x);
       return balance_loss(x, counts, score(item), 0.5, padding(item, x));
     },
     balance_exact},
    {"z_loss", 1, plain,
     [](I item, T in) {
       const Tensor x = in_rows(item, in[0]);
       return z_loss(x, 0.5, padding(item, x));
     },
     [](I item, A in) {
       return mean_of_tokens(item, in, [](const Row& row, std::size_t) {
         const Number size = log_sum_exp(row);
         return size * size;
       });
     }},
};

}  // namespace

std::span<const ProgramOp> token_ops() { return kTokenOps; }

}  // namespace weft::generated
