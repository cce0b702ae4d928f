#pragma once
#include <fstream>
#include <string>

namespace weft::test {

/// Writes FOLDER/fault: its time is the one from which tests/cli/support_faults.py measures.
inline void tell_fault(const std::string& folder) {
  if (!folder.empty()) std::ofstream(folder + "/fault") << "now\n";
}

}  // namespace weft::test
