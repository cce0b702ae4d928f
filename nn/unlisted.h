#pragma once
#include <cstddef>

#include "weft/core/named_tensor.h"

namespace weft::nn {

class Module;

namespace detail {

// What a member forgotten in visit() looks like: a parameter in a module's memory that
// make_parameter() created and that no visit() has listed. Each thread has a list of these, which
// is empty once every module has been visited.

/// Adds a new parameter to the list, which keeps a handle.
void add_unlisted(const Tensor& parameter);
/// Removes a tensor that a visit() lists.
void remove_unlisted(const Tensor& listed);
/// Removes the parameters whose only handle is in the list.
void release_unlisted();

/// The same for the end of a module: at once where the list is short, else after several ends.
void release_at_end();

/// The parameters of a module that occupies `bytes` bytes. Throws Error as trained_parameters().
NamedTensors trained_parameters(const Module& root, std::size_t bytes);

}  // namespace detail
}  // namespace weft::nn
