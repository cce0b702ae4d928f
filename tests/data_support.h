#pragma once
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "weft/autograd/values.h"
#include "weft/io/json.h"

/// Token ids of the tests of data/.
namespace weft::test {

using Ints = std::vector<std::int32_t>;

inline Ints ints(const Tensor& t) { return to_vector<std::int32_t>(t); }

/// The text of a loader's position as versions before the checksum wrote it.
inline std::string without_checksum(const io::Json& state) {
  io::Json out = io::Json::object();
  for (const io::JsonMember& m : state.members())
    if (m.key != "rows_crc32c") out.set(m.key, m.value);
  return out.dump();
}

/// 0, 1, ..., n - 1.
inline Ints count_to(int n) {
  Ints v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

}  // namespace weft::test
