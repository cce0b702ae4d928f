#pragma once

namespace weft::test {

/// Called when all tests have passed, if set. A nonzero status makes the program fail.
inline int (*at_end)() = nullptr;

}  // namespace weft::test
