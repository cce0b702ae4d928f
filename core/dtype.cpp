#include "weft/core/dtype.h"

#include "weft/core/error.h"

namespace weft {

void throw_bad_dtype(const char* op, DType got, const char* allowed) {
  detail::raise(Fault::user, "{}: dtype must be one of {}, got {}", {op, allowed, got});
}

}  // namespace weft
