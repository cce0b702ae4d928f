#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>

/// Visits the members of an aggregate without base classes and array members, which declares
/// nothing for it: counts them by how many values initialize it, names them by a structured
/// binding.
namespace weft::detail {

struct AnyValue {
  template <class T>
  operator T&() const;
};

template <class T, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyValue{})...}; };
}

inline constexpr std::size_t kMostMembers = 14;

/// At most kMostMembers.
template <class T, std::size_t N = kMostMembers>
constexpr std::size_t member_count() {
  if constexpr (N == 0 || takes<T>(std::make_index_sequence<N>{}))
    return N;
  else
    return member_count<T, N - 1>();
}

/// Calls f with each member of the aggregate, which has no base class.
template <class T, class F>
void for_each_member(const T& value, const F& f) {
  const auto each = [&f](const auto&... members) { (f(members), ...); };
  constexpr std::size_t n = member_count<T>();
  static_assert(n > 0 && !takes<T>(std::make_index_sequence<n + 1>{}), "too many members");
  // clang-format off
  if constexpr (n == 1) { const auto& [a] = value; each(a); }
  if constexpr (n == 2) { const auto& [a, b] = value; each(a, b); }
  if constexpr (n == 3) { const auto& [a, b, c] = value; each(a, b, c); }
  if constexpr (n == 4) { const auto& [a, b, c, d] = value; each(a, b, c, d); }
  if constexpr (n == 5) { const auto& [a, b, c, d, e] = value; each(a, b, c, d, e); }
  if constexpr (n == 6) { const auto& [a, b, c, d, e, g] = value; each(a, b, c, d, e, g); }
  if constexpr (n == 7) { const auto& [a, b, c, d, e, g, h] = value; each(a, b, c, d, e, g, h); }
  if constexpr (n == 8) { const auto& [a, b, c, d, e, g, h, i] = value; each(a, b, c, d, e, g, h, i); }
  if constexpr (n == 9) { const auto& [a, b, c, d, e, g, h, i, j] = value; each(a, b, c, d, e, g, h, i, j); }
  if constexpr (n == 10) { const auto& [a, b, c, d, e, g, h, i, j, k] = value; each(a, b, c, d, e, g, h, i, j, k); }
  if constexpr (n == 11) { const auto& [a, b, c, d, e, g, h, i, j, k, l] = value; each(a, b, c, d, e, g, h, i, j, k, l); }
  if constexpr (n == 12) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m] = value; each(a, b, c, d, e, g, h, i, j, k, l, m); }
  if constexpr (n == 13) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, o] = value; each(a, b, c, d, e, g, h, i, j, k, l, m, o); }
  if constexpr (n == 14) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p] = value; each(a, b, c, d, e, g, h, i, j, k, l, m, o, p); }
  // clang-format on
}

}  // namespace weft::detail
