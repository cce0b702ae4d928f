// R14: must not compile, because discarding a router's result would lose its loss.
#include "weft/nn/router.h"

void forget(const weft::nn::Router& router, const weft::Tensor& x) { router(x); }
