#pragma once
#include <string>
#include <vector>

namespace weft::train {

/// Throws Error (Fault::user) that names the known flag nearest to `given`, which may end in
/// "=value". `list` is the flag that lists all flags.
[[noreturn]] void throw_unknown_flag(const std::string& given,
                                     const std::vector<std::string>& known, const char* list);

}  // namespace weft::train
