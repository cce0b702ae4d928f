#include "weft/cuda/emu/code.h"

#include <charconv>

namespace weft::emu {
namespace {

bool fits(std::string_view item, int capability) {
  const bool ptx = item.starts_with("compute_");
  if (!ptx && !item.starts_with("sm_")) return false;
  item.remove_prefix(ptx ? 8 : 3);
  int version = 0;
  const char* const end = item.data() + item.size();
  const auto [rest, failed] = std::from_chars(item.data(), end, version);
  if (failed != std::errc()) return false;
  if (rest != end && *rest == 'a') return capability == version;
  const bool same_family = capability / 10 == version / 10;
  return capability >= version && (same_family || (ptx && rest == end));
}

}  // namespace

bool has_code(std::string_view list, int capability) {
  while (!list.empty()) {
    const std::size_t end = list.find(';');
    if (fits(list.substr(0, end), capability)) return true;
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
  return false;
}

}  // namespace weft::emu
