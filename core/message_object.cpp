#include "weft/core/message_object.h"

#include "weft/core/device.h"
#include "weft/core/dtype.h"
#include "weft/core/shape.h"

namespace weft {
namespace {

void append_tensor_object(std::string& out, const detail::MessageArg& a) {
  using Kind = detail::MessageArg::Kind;
  if (a.kind == Kind::dtype) out += name(*static_cast<const DType*>(a.object));
  if (a.kind == Kind::device) out += to_string(*static_cast<const Device*>(a.object));
  if (a.kind == Kind::shape) out += to_string(*static_cast<const Shape*>(a.object));
}

[[maybe_unused]] const bool is_set = [] {
  detail::append_object = &append_tensor_object;
  return true;
}();

}  // namespace
}  // namespace weft
