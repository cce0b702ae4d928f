// Everyday expressions of PyTorch, as a hand that knows them types them here, compared in value.
// tests/fixtures/make_idioms.py reads the left strings from this file and stores what PyTorch
// returns.
#include <doctest/doctest.h>

#include "weft/io/safetensors.h"
#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::idioms_test {
namespace {

struct Idiom {
  const char* pytorch;
  Tensor value;
};
#define IDIOM(pytorch, value) \
  Idiom { pytorch, value }

// x, y (3, 4), p (3, 4) positive, u, v (4), a (2, 4), s (4, 4), z (2, 3, 4): f64.
// mask (3, 4): bool. ids (5), i (3, 4): i64.
std::vector<Idiom> idioms(const StateDict& in) {
  const auto get = [&](const char* name) { return in.at(std::string("in.") + name); };
  const Tensor x = get("x"), y = get("y"), p = get("p"), u = get("u"), v = get("v"), a = get("a"),
               s = get("s"), z = get("z"), mask = get("mask"), ids = get("ids"), i = get("i");
  return {
      IDIOM("torch.zeros(2, 3)", Tensor::zeros({2, 3})),
      IDIOM("torch.ones(2, 3)", Tensor::ones({2, 3})),
      IDIOM("torch.full((2,), 7.0)", Tensor::full({2}, 7)),
      IDIOM("torch.arange(0, 6, 2)", Tensor::arange(0, 6, 2, DType::i64)),
      IDIOM("torch.eye(3)", Tensor::eye(3)),
      IDIOM("torch.linspace(0, 1, 5)", Tensor::linspace(0, 1, 5)),
      IDIOM("torch.tensor([1.0, 2.0])", Tensor::of({1, 2})),
      IDIOM("torch.tensor([[1.0, 2.0], [3.0, 4.0]])", Tensor::of({{1, 2}, {3, 4}})),
      IDIOM("torch.zeros_like(x)", zeros_like(x)),
      IDIOM("x + y", x + y),
      IDIOM("x - y", x - y),
      IDIOM("x * y", x * y),
      IDIOM("x / y", x / y),
      IDIOM("-x", -x),
      IDIOM("1 - x", 1 - x),
      IDIOM("2 / p", 2 / p),
      IDIOM("x + 1", x + 1),
      IDIOM("x ** 2", x.pow(2)),
      IDIOM("p ** 0.5", p.pow(0.5)),
      IDIOM("x + u", x + u),
      IDIOM("x @ a.T", matmul(x, a.t())),
      IDIOM("torch.bmm(z, z.mT)", matmul(z, z.t())),
      IDIOM("torch.dot(u, v)", dot(u, v)),
      IDIOM("torch.outer(u, v)", outer(u, v)),
      IDIOM("x.exp()", x.exp()),
      IDIOM("p.log()", p.log()),
      IDIOM("p.sqrt()", p.sqrt()),
      IDIOM("p.rsqrt()", rsqrt(p)),
      IDIOM("x.abs()", x.abs()),
      IDIOM("x.sin()", sin(x)),
      IDIOM("x.cos()", cos(x)),
      IDIOM("x.tanh()", tanh(x)),
      IDIOM("x.sigmoid()", sigmoid(x)),
      IDIOM("x.erf()", erf(x)),
      IDIOM("p.log1p()", log1p(p)),
      IDIOM("x.expm1()", expm1(x)),
      IDIOM("x.floor()", floor(x)),
      IDIOM("x.ceil()", ceil(x)),
      IDIOM("(x * 2).round()", round(x * 2)),
      IDIOM("x.sign()", sign(x)),
      IDIOM("x.square()", x.square()),
      IDIOM("x.clamp(-0.5, 0.5)", x.clamp(-0.5, 0.5)),
      IDIOM("torch.maximum(x, y)", maximum(x, y)),
      IDIOM("torch.minimum(x, y)", minimum(x, y)),
      IDIOM("x > y", x > y),
      IDIOM("x <= y", x <= y),
      IDIOM("x > 0", x > 0),
      IDIOM("0 < x", 0 < x),
      IDIOM("i == 1", i == 1),
      IDIOM("i != 1", i != 1),
      IDIOM("x.isnan()", isnan(x)),
      IDIOM("x.isfinite()", isfinite(x)),
      IDIOM("(x > 0) & (y > 0)", logical_and(x > 0, y > 0)),
      IDIOM("(x > 0) | (y > 0)", logical_or(x > 0, y > 0)),
      IDIOM("~mask", logical_not(mask)),
      IDIOM("(x > 0).any()", any(x > 0)),
      IDIOM("(x > 0).all()", all(x > 0)),
      IDIOM("(x > 0).any(1)", any(x > 0, 1)),
      IDIOM("torch.where(x > 0, x, y)", where(x > 0, x, y)),
      IDIOM("torch.where(mask, x, 0.0)", where(mask, x, 0)),
      IDIOM("x.masked_fill(mask, 0)", masked_fill(x, mask, 0)),
      IDIOM("x.sum()", x.sum()),
      IDIOM("x.sum(-1)", x.sum(-1)),
      IDIOM("x.sum((0, 1))", x.sum({0, 1})),
      IDIOM("x.sum(1, keepdim=True)", x.sum(1, true)),
      IDIOM("x.mean()", x.mean()),
      IDIOM("x.mean(0)", x.mean(0)),
      IDIOM("x.var(-1)", var(x, {-1})),
      IDIOM("x.std(-1)", stddev(x, {-1})),
      IDIOM("x.prod(0)", prod(x, 0)),
      IDIOM("x.max()", x.max()),
      IDIOM("x.max(-1).values", x.max(-1)),
      IDIOM("x.min(0).values", x.min(0)),
      IDIOM("x.argmax(-1)", x.argmax(-1)),
      IDIOM("x.argmin(0)", argmin(x, 0)),
      IDIOM("x.norm()", norm(x)),
      IDIOM("x.logsumexp(-1)", logsumexp(x)),
      IDIOM("x.cumsum(1)", cumsum(x, 1)),
      IDIOM("x.sort().values", sort(x).values),
      IDIOM("x.sort(descending=True).indices", sort(x, -1, true).indices),
      IDIOM("x.topk(2).values", topk(x, 2).values),
      IDIOM("x.topk(2).indices", topk(x, 2).indices),
      IDIOM("x[0]", x[0]),
      IDIOM("x[-1]", x[-1]),
      IDIOM("x[0][2]", x[0][2]),
      IDIOM("x[:, 1:3]", x.slice(1, 1, 3)),
      IDIOM("x[:, -1:]", x.slice(1, -1)),
      IDIOM("x[::2]", x.slice(0, 0, kEnd, 2)),
      IDIOM("x.narrow(1, 0, 2)", x.narrow(1, 0, 2)),
      IDIOM("x[ids]", x.index_select(0, ids)),
      IDIOM("x.gather(1, i)", x.gather(1, i)),
      IDIOM("torch.zeros(3, 4, dtype=torch.float64).scatter_add(1, i, x)",
            scatter_add(zeros_like(x), 1, i, x)),
      IDIOM("x.view(6, -1)", x.view({6, -1})),
      IDIOM("x.reshape(2, 6)", x.reshape({2, 6})),
      IDIOM("x.flatten()", x.flatten()),
      IDIOM("x.T", x.t()),
      IDIOM("z.permute(2, 0, 1)", z.permute({2, 0, 1})),
      IDIOM("z.transpose(0, 1)", z.transpose(0, 1)),
      IDIOM("x.unsqueeze(0)", x.unsqueeze(0)),
      IDIOM("x.unsqueeze(0).squeeze(0)", x.unsqueeze(0).squeeze(0)),
      IDIOM("u.expand(3, 4)", u.expand({3, 4})),
      IDIOM("torch.cat([x, y], dim=1)", cat({x, y}, 1)),
      IDIOM("torch.stack([x, y])", stack({x, y})),
      IDIOM("x.split(2, dim=1)[1]", x.split(2, 1)[1]),
      IDIOM("x.split([1, 3], dim=1)[1]", x.split({1, 3}, 1)[1]),
      IDIOM("x.chunk(2)[1]", chunk(x, 2)[1]),
      IDIOM("x.flip(0)", flip(x, 0)),
      IDIOM("u.repeat(2, 1)", repeat(u, {2, 1})),
      IDIOM("F.pad(x, (1, 2))", pad(x, -1, 1, 2)),
      IDIOM("x.roll(1, 0)", roll(x, 1, 0)),
      IDIOM("s.tril()", tril(s)),
      IDIOM("s.triu(1)", triu(s, 1)),
      IDIOM("x.to(torch.float32)", x.to(DType::f32)),
      IDIOM("x.softmax(-1)", x.softmax(-1)),
      IDIOM("x.log_softmax(-1)", log_softmax(x)),
      IDIOM("F.relu(x)", relu(x)),
      IDIOM("F.gelu(x)", gelu(x, Gelu::erf)),
      IDIOM("F.gelu(x, approximate=\"tanh\")", gelu(x)),
      IDIOM("F.silu(x)", silu(x)),
      IDIOM("F.softplus(x)", softplus(x)),
      IDIOM("F.leaky_relu(x)", leaky_relu(x)),
      IDIOM("F.elu(x)", elu(x)),
      IDIOM("F.linear(x, a, v[:2])", linear(x, a, v.slice(0, 0, 2))),
      IDIOM("F.layer_norm(x, (4,))", layer_norm(x)),
      IDIOM("F.rms_norm(x, (4,), u, eps=1e-5)", rms_norm(x, u, 1e-5)),
      IDIOM("F.embedding(ids, x)", embedding(x, ids)),
      IDIOM("F.one_hot(ids, 3)", one_hot(ids, 3, DType::i64)),
      IDIOM("F.cross_entropy(x, ids[:3])", cross_entropy(x, ids.slice(0, 0, 3))),
      IDIOM("F.nll_loss(x.log_softmax(-1), ids[:3])", nll_loss(log_softmax(x), ids.slice(0, 0, 3))),
      IDIOM("F.mse_loss(x, y)", mse_loss(x, y)),
      IDIOM("F.l1_loss(x, y)", l1_loss(x, y)),
      IDIOM("F.huber_loss(x, y)", huber_loss(x, y)),
      IDIOM("F.binary_cross_entropy_with_logits(x, p / 4)",
            binary_cross_entropy_with_logits(x, p / 4)),
      IDIOM("F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction=\"sum\")",
            kl_div(log_softmax(x), y.softmax(-1), Reduction::sum)),
  };
}

}  // namespace

TEST_CASE("idioms: everyday PyTorch expressions have PyTorch's values") {
  const StateDict stored = io::load_safetensors(WEFT_FIXTURES "/idioms.safetensors");
  const std::vector<Idiom> all = idioms(stored);
  CHECK(all.size() >= 110);
  for (const Idiom& idiom : all) {
    CAPTURE(idiom.pytorch);
    const Tensor& want = stored.at(idiom.pytorch);
    CHECK(idiom.value.dtype() == want.dtype());
    CHECK(idiom.value.shape() == want.shape());
    CHECK(test::mismatch(idiom.value, want.to(DType::f64), 1e-6) == "");
  }
}

TEST_CASE("idioms: in-place operators write the values that PyTorch writes") {
  const Tensor x = Tensor::of({{1, 2}, {3, 4}}), row = Tensor::of({10, 20});
  x += row;
  x *= 2;
  x[0] -= 1;
  x[1].fill_(5);
  CHECK(equal(x, Tensor::of({{21, 43}, {5, 5}})));
}

}  // namespace weft::idioms_test
