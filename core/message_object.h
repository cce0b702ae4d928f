#pragma once
#include <string>

#include "weft/core/error.h"

namespace weft::detail {

/// Appends a Shape, DType or Device to a message. core/message_object.cpp sets it when the library
/// of tensors is loaded; weft_tokenizer, which has errors and no tensors, leaves it null.
extern void (*append_object)(std::string& out, const MessageArg& arg);

}  // namespace weft::detail
