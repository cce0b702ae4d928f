#include "weft/autograd/save_watch.h"

#include <algorithm>
#include <vector>

#include "weft/autograd/tape.h"

namespace weft {
namespace {

// Of all open watches of this thread; each has the part from its first_ on. Keeps its memory.
thread_local std::vector<Tensor> all_seen;

bool shares(const Tensor& a, const Storage* s) { return a.defined() && a.storage() == s; }

}  // namespace

SaveWatch::SaveWatch(bool on) : first_(all_seen.size()), on_(on) {
  if (on) ++detail::save_log.watches;
}

SaveWatch::~SaveWatch() {
  if (!on_) return;
  if (--detail::save_log.watches == 0) {
    all_seen.clear();
    return;
  }
  // From here on only: those of the watch around it keep their places.
  const auto first = all_seen.begin() + static_cast<std::ptrdiff_t>(first_);
  all_seen.erase(
      std::remove_if(first, all_seen.end(), [](const Tensor& t) { return !t.defined(); }),
      all_seen.end());
}

void SaveWatch::saw(const Tensor& t) {
  const Tape* const tape = Tape::current();
  if (tape && !Tape::counting() && !tape->outer()) all_seen.push_back(t);
}

std::span<Tensor> SaveWatch::seen() const { return std::span(all_seen).subspan(first_); }

bool SaveWatch::only_saved(const Tensor& t, int others) const {
  const Storage* const s = t.storage();
  const std::span<Tensor> all = seen();
  int impls = 0, handles = 0;
  bool own = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!shares(all[i], s)) continue;
    ++handles;
    bool first = true;
    for (std::size_t j = 0; j < i && first; ++j) first = !all[i].same(all[j]);
    if (!first) continue;
    ++impls;
    own = own || all[i].same(t);
    int saves = 0;
    for (std::size_t j = i; j < all.size(); ++j) saves += all[j].same(all[i]);
    // Each has a handle in the op that saved it and one here.
    if (all[i].impl()->refs.load() != 2 * saves + (all[i].same(t) ? others : 0)) return false;
  }
  return handles > 0 && s->refs.load() == impls + (own ? 0 : 1) &&
         (own || t.impl()->refs.load() == others);
}

void SaveWatch::forget(const Tensor& t) {
  const Storage* const s = t.storage();
  for (Tensor& x : seen())
    if (shares(x, s)) x = {};
}

}  // namespace weft
