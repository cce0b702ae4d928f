// Every Weft line of docs/from_pytorch.md, run and compared with what PyTorch documents for the
// line beside it: tensors; test_from_pytorch_training.cpp has the rest. scripts/check_readme.py
// fails when a line of the page is in neither.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/weft.h"

namespace weft::from_pytorch_test {
namespace {

using Values = std::vector<double>;
Values values(const Tensor& t) { return test::values(t); }

}  // namespace

TEST_CASE("from PyTorch: creation") {
  CHECK(Tensor::empty({2, 3}).shape() == Shape{2, 3});
  CHECK(values(Tensor::zeros({2}, DType::f64)) == Values{0, 0});
  CHECK(values(Tensor::ones({2})) == Values{1, 1});
  CHECK(values(Tensor::full({2}, 7)) == Values{7, 7});
  CHECK(values(Tensor::arange(0, 6, 2, DType::i64)) == Values{0, 2, 4});
  CHECK(values(Tensor::eye(2)) == Values{1, 0, 0, 1});
  const Tensor x = Tensor::of({1, 2, 3, 4}, {2, 2});
  CHECK(values(x.select(0, 1)) == Values{3, 4});

  std::vector<float> v = {1, 2, 3, 4};
  const Tensor copy = Tensor::from(v, {2, 2});
  CHECK(Tensor::from(v).shape() == Shape{4});
  CHECK(values(Tensor::of({1, 2})) == Values{1, 2});
  CHECK(Tensor::of({{1, 2}, {3, 4}}).shape() == Shape{2, 2});
  CHECK(values(Tensor::linspace(0, 1, 5)) == Values{0, 0.25, 0.5, 0.75, 1});
  const Tensor shared = Tensor::wrap(v.data(), {2, 2}, DType::f32);
  v[0] = 9;
  CHECK(values(copy) == Values{1, 2, 3, 4});
  CHECK(values(shared) == Values{9, 2, 3, 4});
  CHECK(values(zeros_like(x)) == Values{0, 0, 0, 0});
  CHECK(empty_like(x).shape() == x.shape());
}

TEST_CASE("from PyTorch: looking at a tensor") {
  const Tensor x = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x.dim(-1) == 3);
  CHECK(x.ndim() == 2);
  CHECK(x.numel() == 6);
  CHECK(x.dtype() == DType::f32);
  CHECK(x.device() == kCpu);
  CHECK(x.strides() == Shape{3, 1});
  CHECK(x.is_contiguous());
  const Tensor loss = x.sum();
  CHECK(loss.item() == 21);
  std::vector<double> out(6);
  x.copy_to(out);
  CHECK(to_vector<float>(x).size() == out.size());
  const Tensor y = x.clone();
  CHECK(equal(x, y));
  CHECK(allclose(x, y));
  CHECK_FALSE(!x.defined());
  CHECK(out == Values{1, 2, 3, 4, 5, 6});
  const float* p = x.data<float>();
  CHECK(p[4] == 5);
  std::ostringstream cout;
  cout << x;
  CHECK(cout.str().find("f32, cpu") != std::string::npos);
}

TEST_CASE("from PyTorch: indexing") {
  const Tensor x = Tensor::arange(0, 12).view({3, 4});
  CHECK(values(x.select(0, -1)) == Values{8, 9, 10, 11});
  CHECK(values(x.slice(1, 1, 3)) == Values{1, 2, 5, 6, 9, 10});
  CHECK(values(x.slice(1, -1)) == Values{3, 7, 11});
  CHECK(values(x.slice(0, 0, kEnd, 2)) == Values{0, 1, 2, 3, 8, 9, 10, 11});
  CHECK(values(x.narrow(1, 0, 1)) == Values{0, 4, 8});
  const Tensor index = Tensor::of({2, 0}, {2}, DType::i64);
  CHECK(values(x.index_select(0, index)) == Values{8, 9, 10, 11, 0, 1, 2, 3});
  const Tensor places = Tensor::of({3, 2, 1}, {3, 1}, DType::i64);
  CHECK(values(x.gather(1, places)) == Values{3, 6, 9});
  CHECK(values(scatter_add(x, 1, places, Tensor::ones({3, 1})).select(0, 0)) == Values{0, 1, 2, 4});

  CHECK(values(scatter(x, 1, places, Tensor::ones({3, 1}))[0]) == Values{0, 1, 2, 1});
  const Tensor rows = Tensor::ones({2, 4});
  CHECK(values(index_add(x, 0, index, rows)[2]) == Values{9, 10, 11, 12});

  CHECK(values(x[-1]) == Values{8, 9, 10, 11});
  CHECK(x[0][2].item() == 2);
  x[0].fill_(5);
  CHECK(values(x[0]) == Values{5, 5, 5, 5});
  x[0] += 1;
  CHECK(values(x[0]) == Values{6, 6, 6, 6});
  const Tensor y = Tensor::ones({3, 2});
  x.slice(1, 1, 3).copy_(y);
  CHECK(values(x.select(0, 2)) == Values{8, 1, 1, 11});
  const Tensor mask = x > 7;
  CHECK(values(masked_fill(x, mask, 0)[2]) == Values{0, 1, 1, 0});
  CHECK(equal(masked_fill(x, mask, 0), where(mask, 0, x)));
}

TEST_CASE("from PyTorch: views and joins") {
  const Tensor x = Tensor::arange(0, 24).view({2, 3, 4});
  CHECK(x.view({6, -1}).shape() == Shape{6, 4});
  CHECK(x.reshape({4, -1}).shape() == Shape{4, 6});
  CHECK(x.permute({2, 0, 1}).shape() == Shape{4, 2, 3});
  const std::vector<int> axes{2, 0, 1};
  CHECK(x.permute(axes).shape() == Shape{4, 2, 3});
  CHECK(x.sum(axes).item() == 276);
  CHECK(movedim(x, 0, -1).shape() == Shape{3, 4, 2});
  CHECK(unbind(x, 1).size() == 3);
  CHECK(x.transpose(0, 1).shape() == Shape{3, 2, 4});
  CHECK(x.t().shape() == Shape{2, 4, 3});
  CHECK(x.unsqueeze(0).shape() == Shape{1, 2, 3, 4});
  CHECK(x.unsqueeze(0).squeeze(0).shape() == x.shape());
  CHECK(Tensor::ones({3, 1}).expand({3, 4}).strides()[1] == 0);
  CHECK(x.flatten(1).shape() == Shape{2, 12});
  CHECK(x.t().contiguous().is_contiguous());
  CHECK(x.clone().raw() != x.raw());
  const Tensor a = Tensor::ones({2, 2}), b = Tensor::zeros({2, 2});
  CHECK(cat({a, b}, 1).shape() == Shape{2, 4});
  CHECK(stack({a, b}, 0).shape() == Shape{2, 2, 2});
  CHECK(x.split(2, 1).size() == 2);
  CHECK(x.split({1, 2}, 1)[1].shape() == Shape{2, 2, 4});
  CHECK(chunk(x, 2).size() == 2);
  CHECK(values(flip(x, 0)[1]) == values(x[0]));
  CHECK(repeat(a, {2, 1}).shape() == Shape{4, 2});
  CHECK(repeat_interleave(a, 2, 0).shape() == Shape{4, 2});
  CHECK(values(triu(a, 1)) == Values{0, 1, 0, 0});
  const Tensor u = Tensor::of({1, 2}), v = Tensor::of({3, 4});
  CHECK(values(outer(u, v)) == Values{3, 4, 6, 8});
  CHECK(dot(u, v).item() == 11);
  CHECK(pad(x, -1, 1, 2).shape() == Shape{2, 3, 7});
  CHECK(values(roll(Tensor::arange(0, 3), 1, 0)) == Values{2, 0, 1});
  CHECK(values(tril(a)) == Values{1, 0, 1, 1});
}

TEST_CASE("from PyTorch: arithmetic") {
  const Tensor a = Tensor::of({1, 2, 3, 4}, {2, 2}), b = Tensor::of({2, 2, 2, 2}, {2, 2});
  CHECK(values(a + b) == Values{3, 4, 5, 6});
  CHECK(values(1 - a / b) == Values{0.5, 0, -0.5, -1});
  CHECK(values(matmul(a, b)) == Values{6, 6, 14, 14});
  CHECK(values(a.pow(2)) == Values{1, 4, 9, 16});
  CHECK(values(a.exp().log().select(0, 0)) == Values{1, 2});
  CHECK(values(a.clamp(2, 3)) == Values{2, 2, 3, 3});
  CHECK(values(clamp_min(a, 2)) == Values{2, 2, 3, 4});
  CHECK(values(clamp_max(a, 3)) == Values{1, 2, 3, 3});
  CHECK(values(floor_divide(a, 2)) == Values{0, 1, 1, 2});
  CHECK(values(remainder(a, b)) == Values{1, 0, 1, 0});
  CHECK(values(maximum(a, b)) == Values{2, 2, 3, 4});
  CHECK(values(where(a > b, a, b)) == Values{2, 2, 3, 4});
  CHECK((a <= b).dtype() == DType::boolean);

  const Tensor x = a.clone();
  x.add_(b, 0.5);
  x.mul_(2);
  CHECK(values(x) == Values{4, 6, 8, 10});
  x += b;
  x *= 2;
  CHECK(values(x) == Values{12, 16, 20, 24});
  x.zero_();
  x.copy_(b);
  CHECK(values(x) == values(b));
  x.copy_(a);
  CHECK(values(logical_and(x > 1, x < 3)) == Values{0, 1, 0, 0});
  const Tensor mask = x > 7;
  CHECK(values(logical_not(mask)) == Values{1, 1, 1, 1});
  if (any(x > 7).item<bool>()) FAIL("none is");
  const Tensor least = a.min(), most = a.max();
  CHECK(least.item() < most.item());
  CHECK(all(isfinite(x)).item<bool>());
  CHECK(values(isnan(x)) == Values{0, 0, 0, 0});
  CHECK(values(floor(x)) == values(x));
  CHECK(values(round(x)) == values(x));
  CHECK(values(sign(x)) == Values{1, 1, 1, 1});
  CHECK(test::mismatch(sin(x), (1 - cos(x).square()).sqrt() * sign(sin(x)), 1e-5) == "");
  CHECK(test::mismatch(log1p(x), (x + 1).log(), 1e-5) == "");
  CHECK(erf(x).max().item() < 1.001);
}

TEST_CASE("from PyTorch: reductions and order") {
  const Tensor x = Tensor::of({1, 4, 2, 3}, {2, 2});
  CHECK(x.sum().item() == 10);
  CHECK(x.sum({0, 1}, true).shape() == Shape{1, 1});
  CHECK(values(x.mean(-1)) == Values{2.5, 2.5});
  CHECK(test::mismatch(stddev(x, -1), var(x, -1).sqrt(), 0) == "");
  CHECK(values(prod(x, 0)) == Values{2, 12});
  CHECK(values(var(x, -1, 1, true)) == Values{4.5, 0.5});
  CHECK(values(var(x, -1, 0)) == Values{2.25, 0.25});
  CHECK(values(x.max(-1)) == Values{4, 3});
  CHECK(values(x.argmax(-1)) == Values{1, 1});
  CHECK(values(topk(x, 1).indices) == Values{1, 1});
  CHECK(values(sort(x, -1, true).values) == Values{4, 1, 3, 2});
  CHECK(values(argsort(x)) == Values{0, 1, 0, 1});
  CHECK(norm(x, 1).item() == 10);
  CHECK(values(norm(x, {1}, false, 1)) == Values{5, 5});
  CHECK(values(cumsum(x, 0)) == Values{1, 4, 3, 7});
  CHECK(norm(x).item() == doctest::Approx(std::sqrt(30)));
  CHECK(test::mismatch(norm(x, {1}).square(), x.square().sum(1), 1e-6) == "");
  CHECK(logsumexp(x).shape() == Shape{2});
}

TEST_CASE("from PyTorch: functions of layers") {
  const Tensor x = rand_normal({2, 4}), w = rand_normal({3, 4}), b = Tensor::zeros({3});
  CHECK(x.softmax(-1).sum().item() == doctest::Approx(2));
  CHECK(log_softmax(x).max().item() < 0);
  CHECK(test::mismatch(gelu(x), gelu(x, Gelu::erf), 0.01) == "");
  CHECK(silu(x).shape() == x.shape());
  CHECK(leaky_relu(x).shape() == x.shape());
  CHECK(elu(x).min().item() > -1);
  CHECK(test::mismatch(linear(x, w, b), matmul(x, w.t()) + b, 1e-5) == "");
  CHECK(layer_norm(x).shape() == x.shape());
  CHECK(rms_norm(x, Tensor::ones({4})).shape() == x.shape());
  const Tensor ids = Tensor::of({2, 0}, {2}, DType::i64);
  CHECK(values(embedding(w, ids)) == values(w.index_select(0, ids)));
  CHECK(values(one_hot(ids, 3)) == Values{0, 0, 1, 1, 0, 0});
  CHECK(values(dropout(Tensor::ones({2}), 0.5, next_random_key(), false)) == Values{1, 1});
  const Tensor q = rand_normal({1, 5, 2, 8}), k = q, v = q;  // (batch, tokens, heads, width)
  CHECK(attention(q, k, v, {.causal = true}).shape() == q.shape());
  const Tensor m = tril(Tensor::ones({q.dim(1), k.dim(1)})) == 1;
  CHECK(
      allclose(attention(q, k, v, {.mask = m}), attention(q, k, v, {.causal = true}), 1e-5, 1e-6));
}

TEST_CASE("from PyTorch: random numbers") {
  manual_seed(1);
  const Values first = values(randn({2, 3}));
  manual_seed(1);
  CHECK(values(randn({2, 3})) == first);
  CHECK(rand_uniform({2, 3}).max().item() < 1);
  CHECK(rand({2, 3}).max().item() < 1);
  CHECK(randint(0, 5, {8}).max().item() < 5);
  CHECK(randperm(10).sum().item() == 45);
  const Tensor weights = Tensor::of({0, 1}, {2});
  CHECK(values(multinomial(weights, 2, next_random_key())) == Values{1, 1});
  const Tensor x = Tensor::empty({100});
  normal_(x, next_random_key(), 0, 0.02);
  CHECK(x.abs().max().item() < 1);
  const RandomKey key{.seed = 1, .stream = stream_of("noise")};
  CHECK(values(uniform_(Tensor::empty({2}), key)) == values(uniform_(Tensor::empty({2}), key)));
}

}  // namespace weft::from_pytorch_test
