#pragma once

namespace weft::test {

/// Whether the library is compiled with a sanitizer. A variable: the objects of the tests are those
/// of a release build.
extern const bool sanitized;
/// Whether that is AddressSanitizer.
extern const bool address_sanitized;

}  // namespace weft::test
