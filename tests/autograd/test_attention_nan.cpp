#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weft/tests/attention_support.h"

namespace weft::attention_test {

namespace {

// Where a test puts a NaN: into query 70 or key 75 of one sequence, in head 1 of four that share
// two key heads.
enum class Place { key, query, gradient };
constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kQuery = 70, kKey = 75, kHead = 1;

// (b, t) queries and (b, s) keys. The sequence with the NaN begins at rows q0 and k0 of all.
struct NanCase {
  AttentionOptions o;
  std::int64_t b, t, s;
  std::int64_t q0, queries, k0, keys;

  bool sees(std::int64_t i, std::int64_t j) const {
    const std::int64_t last = i + keys - queries;
    return !o.causal || (j <= last && (o.window == 0 || j > last - o.window));
  }
  // Whether a score of query i or its gradient is NaN.
  bool hit(Place place, std::int64_t i, std::int64_t head) const {
    if (place != Place::key) return i == kQuery && head == kHead;
    return head / 2 == kHead / 2 && sees(i, kKey);
  }
  // Whether a query of the block of 64 queries around i is hit.
  bool hit_near(Place place, std::int64_t i, std::int64_t head) const {
    const std::int64_t first = i / 64 * 64;
    for (std::int64_t x = first; x < std::min(queries, first + 64); ++x)
      if (hit(place, x, head)) return true;
    return false;
  }
};

// What a NaN does to a row (token, head): no element changes, any may, or all become NaN.
enum class Reach { none, free, all };
struct Reaches {
  std::vector<Reach> y, dq, dk;  // dv like dk
};

// A query with a NaN score has a NaN gradient, and so do all keys that it sees. Products work on
// blocks: there 0 times NaN may also reach queries and keys that the mask separates.
Reaches reaches(const NanCase& c, Place place) {
  Reaches r{.y = std::vector(static_cast<std::size_t>(c.b * c.t * kHeads), Reach::none),
            .dq = std::vector(static_cast<std::size_t>(c.b * c.t * kHeads), Reach::none),
            .dk = std::vector(static_cast<std::size_t>(c.b * c.s * kKeyHeads), Reach::none)};
  for (std::int64_t i = 0; i < c.queries; ++i)
    for (std::int64_t head = 0; head < kHeads; ++head) {
      if (!c.hit_near(place, i, head)) continue;
      const auto row = static_cast<std::size_t>((c.q0 + i) * kHeads + head);
      const Reach reach = c.hit(place, i, head) ? Reach::all : Reach::free;
      if (reach == Reach::all && place != Place::gradient) r.y[row] = reach;
      if (reach == Reach::all || place == Place::key) r.dq[row] = reach;
      for (std::int64_t j = 0; j < c.keys; ++j) {
        Reach& key = r.dk[static_cast<std::size_t>((c.k0 + j) * kKeyHeads + head / 2)];
        if (c.sees(i, j)) key = std::max(key, reach);
      }
    }
  return r;
}

// "" when `got` has NaN where it should, and the values of `want` where no NaN should arrive.
std::string misplaced(const Tensor& got, const Tensor& want, const std::vector<Reach>& reach) {
  const std::vector<double> a = test::values(got), b = test::values(want);
  const auto width = static_cast<std::size_t>(got.dim(3));
  const auto heads = static_cast<std::size_t>(got.dim(2));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Reach r = reach[i / width];
    if (r == Reach::free || (r == Reach::all ? std::isnan(a[i]) : a[i] == b[i])) continue;
    return message("token {}, head {}, element {}: {} where {} was expected", i / width / heads,
                   i / width % heads, i % width, a[i], r == Reach::all ? NAN : b[i]);
  }
  return "";
}

}  // namespace

TEST_CASE("attention: NaN reaches the queries that see it, and no other head or sequence") {
  const Tensor packed = cu({0, 70, 230, 300});
  const auto row_of = [](const Tensor& x, std::int64_t row, std::int64_t head) {
    return x.view({-1, x.dim(2), x.dim(3)}).select(0, row).select(0, head);
  };
  for (const NanCase& c :
       {NanCase{{.causal = true, .cu_seqlens = packed}, 1, 300, 300, 70, 160, 70, 160},
        NanCase{
            {.causal = true, .window = 20, .cu_seqlens = packed}, 1, 300, 300, 70, 160, 70, 160},
        NanCase{{.cu_seqlens = packed}, 1, 300, 300, 70, 160, 70, 160},
        NanCase{{.causal = true}, 2, 290, 290, 290, 290, 290, 290},
        NanCase{{.causal = true, .window = 20}, 2, 200, 210, 0, 200, 0, 210},
        NanCase{{}, 2, 100, 140, 0, 100, 0, 140}})
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const TensorList in = inputs({c.b, c.t, c.s, kHeads, kKeyHeads, 19}, t);
      const Tensor dy = test::random({c.b, c.t, kHeads, 19}, 9, t), y = op(c.o)(in);
      const TensorList want = gradients(in, c.o, dy);
      for (const Place place : {Place::key, Place::query, Place::gradient}) {
        CAPTURE(message("NaN in place {}, {} queries, {}, window {}, {}", static_cast<int>(place),
                        c.t, c.o.causal ? "causal" : "not causal", c.o.window, t));
        const TensorList bad = {in[0].clone(), in[1].clone(), in[2]};
        const Tensor bad_dy = dy.clone();
        const Tensor row = place == Place::key     ? row_of(bad[1], c.k0 + kKey, kHead / 2)
                           : place == Place::query ? row_of(bad[0], c.q0 + kQuery, kHead)
                                                   : row_of(bad_dy, c.q0 + kQuery, kHead);
        // One NaN of dy would reach only its own element of dv.
        (place == Place::gradient ? row : row.slice(0, 17, 18)).fill_(NAN);
        const Reaches reach = reaches(c, place);
        CHECK(misplaced(op(c.o)(bad), y, reach.y) == "");
        const TensorList got = gradients(bad, c.o, bad_dy);
        CHECK(misplaced(got[0], want[0], reach.dq) == "");
        for (int i : {1, 2}) CHECK(misplaced(got[i], want[i], reach.dk) == "");
      }
    }
}

}  // namespace weft::attention_test
