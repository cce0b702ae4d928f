#pragma once
#include <bit>

namespace weft::distributed {

/// The binomial tree over places 0 .. size - 1 whose root is place 0: data reach all in log2(size)
/// steps, and no place sends to more than log2(size) others.
inline int tree_parent(int place) { return place & (place - 1); }

/// Calls f(child) for each child, the one with the most descendants first.
template <class F>
void for_each_tree_child(int place, int size, F&& f) {
  const auto end = static_cast<unsigned>(place == 0 ? size : place & -place);
  for (unsigned step = end > 1 ? std::bit_floor(end - 1) : 0; step > 0; step /= 2)
    if (place + static_cast<int>(step) < size) f(place + static_cast<int>(step));
}

}  // namespace weft::distributed
