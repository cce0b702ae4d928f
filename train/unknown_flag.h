#pragma once
#include <string>
#include <vector>

namespace weft::train {

/// The flag that `given` ("--eval_every", "--learning-rate=1e-3") means, with its value: '-' for
/// '_', and our name for one that users of other trainers type and that means exactly the same.
/// What is known by itself, or means nothing here, stays as it is.
std::string our_name(const std::string& given, const std::vector<std::string>& known);

/// Throws Error (Fault::user) that says what takes the place of a flag of another trainer, or else
/// names the known flag nearest in spelling. `given` may end in "=value". `list` is the flag that
/// lists all.
[[noreturn]] void throw_unknown_flag(const std::string& given,
                                     const std::vector<std::string>& known, const char* list);

}  // namespace weft::train
