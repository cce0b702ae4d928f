#include "weft/autograd/save_watch.h"

#include <array>
#include <cstdint>
#include <vector>

#include "weft/autograd/tape.h"

namespace weft {
namespace {

/// A handle that an op has saved, and the number of the one before it with the same hash.
struct Seen {
  Tensor tensor;
  std::size_t older;
};
// Of all open watches of this thread, numbered from 1; each has those after its first_. Looking a
// storage up by its hash avoids a walk over the handles of all layers for each of them. Both keep
// their memory, so that a warm step allocates nothing.
thread_local std::vector<Seen> all_seen;
constinit thread_local std::array<std::uint32_t, 512> newest{};  // by hash; 0: none

std::uint32_t& newest_of(const Storage* s) {
  const auto hash = reinterpret_cast<std::uintptr_t>(s) * UINT64_C(0x9e3779b97f4a7c15);
  return newest[hash >> 55];  // its highest 9 bits
}

Seen& seen_at(std::size_t number) { return all_seen[number - 1]; }

/// The numbers of the handles of a storage after `first`, newest first; 0 is the end.
struct HandlesOf {
  const Storage* storage;
  std::size_t first;

  std::size_t begin() const { return from(newest_of(storage)); }
  std::size_t after(std::size_t number) const { return from(seen_at(number).older); }
  std::size_t from(std::size_t number) const {
    for (; number > first; number = seen_at(number).older)
      if (const Tensor& t = seen_at(number).tensor; t.defined() && t.storage() == storage)
        return number;
    return 0;
  }
};

}  // namespace

SaveWatch::SaveWatch(bool on) : first_(all_seen.size()), on_(on) {
  if (on) ++detail::save_log.watches;
}

SaveWatch::~SaveWatch() {
  if (!on_ || --detail::save_log.watches > 0) return;
  all_seen.clear();
  newest.fill(0);
}

void SaveWatch::saw(const Tensor& t) {
  const Tape* const tape = Tape::current();
  if (!tape || Tape::counting() || tape->outer()) return;
  std::uint32_t& last = newest_of(t.storage());
  all_seen.push_back({t, last});
  last = static_cast<std::uint32_t>(all_seen.size());
}

std::size_t SaveWatch::count() const { return all_seen.size() - first_; }

Tensor SaveWatch::seen(std::size_t i) const { return all_seen[first_ + i].tensor; }

bool SaveWatch::is_first(std::size_t i) const {
  const Tensor& t = all_seen[first_ + i].tensor;
  return t.defined() && HandlesOf{t.storage(), first_}.after(first_ + i + 1) == 0;
}

bool SaveWatch::only_saved(const Tensor& t, int others) const {
  const HandlesOf handles{t.storage(), first_};
  int impls = 0;
  bool own = false;
  for (std::size_t i = handles.begin(); i > 0; i = handles.after(i)) {
    const Tensor& x = seen_at(i).tensor;
    int saves = 0;
    bool is_counted = false;
    for (std::size_t j = handles.begin(); j > 0; j = handles.after(j)) {
      if (!seen_at(j).tensor.same(x)) continue;
      is_counted = is_counted || j > i;
      ++saves;
    }
    if (is_counted) continue;
    ++impls;
    own = own || x.same(t);
    // Each has a handle in the op that saved it and one here.
    if (x.impl()->refs.load() != 2 * saves + (x.same(t) ? others : 0)) return false;
  }
  return impls > 0 && t.storage()->refs.load() == impls + (own ? 0 : 1) &&
         (own || t.impl()->refs.load() == others);
}

void SaveWatch::forget(const Tensor& t) {
  const HandlesOf handles{t.storage(), first_};
  for (std::size_t i = handles.begin(); i > 0; i = handles.after(i)) seen_at(i).tensor = {};
}

}  // namespace weft
