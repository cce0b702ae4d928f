// What must not compile. Each block is one case: refused.py compiles this file with the name of the
// block defined and expects an error with the text behind "refused:".
#include <algorithm>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/nn/linear.h"

struct Owner : weft::nn::Module {
  std::unique_ptr<weft::nn::Linear> child;
  void visit(weft::nn::Visitor& v) override { v("child", child); }
};

int main() {
  using weft::Tensor;
  Tensor a = Tensor::ones({2}), b = Tensor::zeros({2});
  std::vector<Tensor> all{a, b};
#ifdef IF_COMPARISON  // refused: a tensor is not a condition
  if (a < b) return 1;
#endif
#ifdef IF_NUMBER  // refused: a tensor is not a condition
  if (a == 0) return 1;
#endif
#ifdef IF_VALUE  // refused: a tensor is not a condition
  if (a) return 1;
#endif
#ifdef AND  // refused: a tensor is not a condition
  const Tensor both = (a > 0) && (b > 0) ? a : b;
#endif
#ifdef OR  // refused: a tensor is not a condition
  while (a > 0 || b > 0) return 1;
#endif
#ifdef NOT  // refused: a tensor is not a condition
  const bool none = !(a > 0);
#endif
#ifdef CAST  // refused: a tensor is not a condition
  const auto known = static_cast<bool>(a);
#endif
#ifdef FIND  // refused: bool
  if (std::find(all.begin(), all.end(), a) != all.end()) return 1;
#endif
#ifdef AS_BOOL  // refused: bool
  const bool more = a > b;
#endif
#ifdef ASSIGN_TO_VIEW  // refused: an assignment to a view writes nothing
  a[0] = b[0];
#endif
#ifdef ASSIGN_NUMBER  // refused: an assignment to a view writes nothing
  a[0] = 5;
#endif
#ifdef CLONE_POINTER  // refused: In place of a std::unique_ptr<T> to a module use nn::Child<T>
  const Owner copy = weft::nn::clone(Owner());
#endif
#ifdef ASSIGN_MODULE  // refused: use of deleted function
  const weft::nn::Linear from(2, 2);
  weft::nn::Linear to;
  to = from;
#endif
  return a.defined() ? 0 : 1;
}
