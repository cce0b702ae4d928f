// Human-readable view of a tape.
#include "weft/autograd/tape_state.h"

namespace weft {

int Tape::size() const {
  int nodes = 0;
  for (const Node* n = state_->last; n; n = n->previous) ++nodes;
  return nodes;
}

std::string Tape::print() const {
  std::vector<const Node*> order;
  for (const Node* n = state_->last; n; n = n->previous) order.push_back(n);
  std::string out;
  for (auto n = order.rbegin(); n != order.rend(); ++n)
    out += message("{} {}  saves {} bytes\n", (*n)->name, (*n)->shape, (*n)->saved_bytes);
  return out;
}

}  // namespace weft
