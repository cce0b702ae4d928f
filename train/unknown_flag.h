#pragma once
#include <string>
#include <vector>

namespace weft::train {

/// The flag that `given` ("--eval_every", "--learning-rate=1e-3") means, with its value: '-'
/// replaces
/// '_', and our name replaces a name from other trainers that means exactly the same. A known flag,
/// or one without a counterpart, is returned unchanged.
std::string our_name(const std::string& given, const std::vector<std::string>& known);

/// Throws Error (Fault::user) that names our counterpart of a flag of another trainer, or else the
/// known flag nearest in spelling. `given` may end in "=value". `list` is the flag that lists all
/// flags.
[[noreturn]] void throw_unknown_flag(const std::string& given,
                                     const std::vector<std::string>& known, const char* list);

}  // namespace weft::train
