#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "weft/distributed/world.h"
#include "weft/tests/support.h"

namespace weft::test {

/// What every backend must do. Each rank runs it for each of its groups. The expected values follow
/// from formulas alone; nothing is communicated to compute them.
class GroupConformance {
 public:
  GroupConformance(distributed::ProcessGroup& group, Device device)
      : g_(group), device_(device), n_(group.size()), me_(group.rank()) {}

  void all() {
    for (int t = 0; t < kDTypes; ++t)
      for (const Shape& shape : row_shapes()) {
        moves(static_cast<DType>(t), shape);
        messages(static_cast<DType>(t), shape);
      }
    for (const DType t : {DType::f32, DType::u8}) batches(t);
    reductions<float>();
    reductions<double>();
    reductions<bf16>();
    reductions<f16>();
    reductions<std::int32_t>();
    reductions<std::int64_t>();
    reductions<std::uint8_t>();
    nan_wins<float>();
    nan_wins<double>();
    nan_wins<bf16>();
    nan_wins<f16>();
    in_flight();
    if (device_.is_cpu() && n_ == 2) large();
    g_.barrier().wait();
  }

 private:
  using Rows = distributed::Rows;
  using Reduce = distributed::Reduce;

  static std::uint64_t bits(int rank, std::int64_t i) {
    std::uint64_t h = static_cast<std::uint64_t>(rank + 1) * 0x9e3779b97f4a7c15u +
                      static_cast<std::uint64_t>(i + 1) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 29)) * 0x94d049bb133111ebu;
    return h ^ (h >> 32);
  }

  // Arbitrary bits, NaNs included: collectives that only move data must not change them. bool has
  // two values.
  static unsigned char byte(DType t, int rank, std::int64_t i) {
    const auto b = static_cast<unsigned char>(bits(rank, i));
    return t == DType::boolean ? b & 1 : b;
  }

  // Sums of several values depend on their order. In u8 they fit for up to 8 ranks.
  template <class T>
  static T value(int rank, std::int64_t i) {
    const std::uint64_t h = bits(rank, i);
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(h % 32) + (sizeof(T) > 1 ? static_cast<T>(-100000) : T{0});
    else
      return static_cast<T>(static_cast<Compute<T>>(std::ldexp(
          static_cast<double>(static_cast<std::int64_t>(h)), -61 - static_cast<int>(h % 7))));
  }

  Tensor on_device(const Tensor& host) const { return device_.is_cpu() ? host : host.to(device_); }
  // Elements first, first + 1, ... of rank `rank`'s tensor.
  Tensor raw_values(const Shape& shape, DType t, int rank, std::int64_t first = 0) const {
    const Tensor x = Tensor::empty(shape, t);
    const auto width = static_cast<std::int64_t>(size_of(t));
    auto* p = static_cast<unsigned char*>(x.raw());
    for (std::int64_t i = 0; i < x.numel() * width; ++i) p[i] = byte(t, rank, first * width + i);
    return on_device(x);
  }
  template <class T>
  Tensor values(const Shape& shape, int rank) const {
    const Tensor x = Tensor::empty(shape, dtype_of<T>());
    for (std::int64_t i = 0; i < x.numel(); ++i) x.data<T>()[i] = value<T>(rank, i);
    return on_device(x);
  }
  Tensor blank(const Shape& shape, DType t) const { return Tensor::zeros(shape, t, device_); }

  void expect(bool ok, const char* what, const Tensor& t) const {
    if (ok) return;
    CHECK_MESSAGE(false, message("{} {} {} in group {} of {}, rank {}", what, name(t.dtype()),
                                 t.shape(), g_.name(), n_, me_));
  }

  // The rows of `got` are the ranks' rows in rank order: `rows[r]` rows from rank r, starting at
  // its element `first[r]`.
  void expect_rows(const char* what, const Tensor& got, const Rows& rows, const Rows& first) const {
    const Tensor host = got.to(kCpu);
    const auto width = static_cast<std::int64_t>(size_of(got.dtype()));
    const std::int64_t row = row_elements(got) * width;
    const auto* p = static_cast<const unsigned char*>(host.raw());
    bool same = true;
    for (int r = 0; r < n_; ++r)
      for (std::int64_t i = 0; i < rows[at(r)] * row; ++i)
        same = same && *p++ == byte(got.dtype(), r, first[at(r)] * width + i);
    expect(same, what, got);
  }

  static std::size_t at(int r) { return static_cast<std::size_t>(r); }
  static std::int64_t row_elements(const Tensor& t) {
    std::int64_t n = 1;
    for (int i = 1; i < t.ndim(); ++i) n *= t.dim(i);
    return n;
  }
  static Shape with_rows(std::int64_t rows, const Shape& rest) {
    Shape s = rest;
    s[0] = rows;
    return s;
  }
  std::int64_t total(const Rows& rows) const {
    std::int64_t sum = 0;
    for (const std::int64_t r : rows) sum += r;
    return sum;
  }
  std::int64_t before_me(const Rows& rows) const {
    std::int64_t sum = 0;
    for (int r = 0; r < me_; ++r) sum += rows[at(r)];
    return sum;
  }
  // Rows per rank: all equal, all different, some zero.
  std::vector<Rows> splits() const {
    std::vector<Rows> list(4);
    for (int r = 0; r < n_; ++r) {
      list[0].push_back(3);
      list[1].push_back(r + 1);
      list[2].push_back(r % 3 == 0 ? 0 : 5);
      list[3].push_back(0);
    }
    return list;
  }
  // The first axis is replaced by the number of rows.
  static std::vector<Shape> row_shapes() {
    return {Shape{1}, Shape{1, 7}, Shape{1, 3, 5}, Shape{1, 0}};
  }

  void moves(DType t, const Shape& shape) {
    for (const Rows& rows : splits()) gather(t, shape, rows);
    to_all(t, shape);
    for (int root = 0; root < n_; ++root) {
      const Tensor x = raw_values(with_rows(4, shape), t, me_);
      g_.broadcast(x, root).wait();
      Rows rows(at(n_), 0);
      rows[at(root)] = 4;
      expect_rows("broadcast", x, rows, Rows(at(n_), 0));
    }
  }

  void gather(DType t, const Shape& shape, const Rows& rows) {
    const bool equal = rows.front() == rows.back() && total(rows) == rows.front() * n_;
    const Tensor out = blank(with_rows(total(rows), shape), t);
    const Tensor in = raw_values(with_rows(rows[at(me_)], shape), t, me_);
    g_.all_gather(out, in, rows).wait();
    expect_rows("all_gather", out, rows, Rows(at(n_), 0));
    if (equal) {
      const Tensor again = blank(out.shape(), t);
      g_.all_gather(again, in).wait();
      expect_rows("all_gather of equal parts", again, rows, Rows(at(n_), 0));
    }
    const Tensor in_place = blank(out.shape(), t);
    const Tensor own = in_place.narrow(0, before_me(rows), rows[at(me_)]);
    own.copy_(in);
    g_.all_gather(in_place, own, rows).wait();
    expect_rows("all_gather in place", in_place, rows, Rows(at(n_), 0));
  }

  // Rank a sends (a + 2 b) % 4 rows to rank b.
  void to_all(DType t, const Shape& shape) {
    const auto sent = [](int from, int to) { return std::int64_t{(from + 2 * to) % 4}; };
    Rows in_rows, out_rows, first;
    for (int r = 0; r < n_; ++r) {
      in_rows.push_back(sent(me_, r));
      out_rows.push_back(sent(r, me_));
      std::int64_t rows = 0;
      for (int to = 0; to < me_; ++to) rows += sent(r, to);
      first.push_back(rows);
    }
    const Tensor in = raw_values(with_rows(total(in_rows), shape), t, me_);
    const Tensor out = blank(with_rows(total(out_rows), shape), t);
    for (std::int64_t& f : first) f *= row_elements(out);
    g_.all_to_all(out, in, out_rows, in_rows).wait();
    expect_rows("all_to_all", out, out_rows, first);

    const Tensor equal_in = raw_values(with_rows(2 * n_, shape), t, me_);
    const Tensor equal_out = blank(equal_in.shape(), t);
    g_.all_to_all(equal_out, equal_in).wait();
    expect_rows("all_to_all of equal parts", equal_out, Rows(at(n_), 2),
                Rows(at(n_), 2 * me_ * row_elements(out)));
  }

  void messages(DType t, const Shape& shape) {
    const int next = (me_ + 1) % n_, last = (me_ + n_ - 1) % n_;
    const auto from = [&](int rank, std::int64_t rows) {
      Rows list(at(n_), 0);
      list[at(rank)] = rows;
      return list;
    };
    // Each rank sends one row more than the previous rank.
    const Tensor in = raw_values(with_rows(me_ + 1, shape), t, me_);
    Tensor out = blank(with_rows(last + 1, shape), t);
    g_.exchange(out, last, in, next).wait();
    expect_rows("exchange with the next", out, from(last, last + 1), Rows(at(n_), 0));
    out = blank(with_rows(next + 1, shape), t);
    g_.exchange(out, next, in, last).wait();
    expect_rows("exchange with the one before", out, from(next, next + 1), Rows(at(n_), 0));
    if (n_ == 1) return;
    // Along a chain: the first rank's rows reach the last rank.
    const Tensor x =
        me_ == 0 ? raw_values(with_rows(2, shape), t, 0) : blank(with_rows(2, shape), t);
    if (me_ > 0) g_.receive(x, last).wait();
    if (next > 0) g_.send(x, next).wait();
    expect_rows("send and receive", x, from(0, 2), Rows(at(n_), 0));
  }

  // All ranks send to all, themselves included: rank a sends (a + 2 b) % 4 rows to rank b, then b
  // bytes.
  void batches(DType t) {
    using distributed::Transfer;
    const auto rows = [](int from, int to) { return std::int64_t{(from + 2 * to) % 4}; };
    for (const Shape& shape : row_shapes()) {
      std::vector<Transfer> sends, receives;
      for (int i = 0; i < n_; ++i) {
        const int to = (me_ + i) % n_, from = n_ - 1 - i;
        sends.push_back({raw_values(with_rows(rows(me_, to), shape), t, me_), to});
        sends.push_back({raw_values({to}, DType::u8, me_), to});
        receives.push_back({blank(with_rows(rows(from, me_), shape), t), from});
        receives.push_back({blank({me_}, DType::u8), from});
      }
      g_.batch(sends, receives).wait();
      const auto expect_from = [&](const char* what, const Transfer& r, std::int64_t count) {
        Rows list(at(n_), 0);
        list[at(r.rank)] = count;
        expect_rows(what, r.tensor, list, Rows(at(n_), 0));
      };
      for (std::size_t i = 0; i < receives.size(); i += 2) {
        expect_from("batch", receives[i], rows(receives[i].rank, me_));
        expect_from("second message of a batch", receives[i + 1], me_);
      }
    }
    g_.batch({}, {}).wait();
    if (n_ == 1) return;
    // A batch of one rank meets single calls of another.
    const Tensor first = raw_values({3}, t, 0), second = raw_values({5}, t, 0);
    const Tensor x = blank({3}, t), y = blank({5}, t);
    if (me_ == 0) g_.batch({{first, 1}, {second, 1}}, {}).wait();
    if (me_ == 1) {
      distributed::Work one = g_.receive(x, 0);
      g_.receive(y, 0).wait();
      one.wait();
      Rows list(at(n_), 0);
      list[0] = 3;
      expect_rows("first of a batch", x, list, Rows(at(n_), 0));
      list[0] = 5;
      expect_rows("second of a batch", y, list, Rows(at(n_), 0));
    }
  }

  template <class T>
  static T reduced(Reduce reduce, const std::vector<T>& v) {
    auto r = static_cast<Compute<T>>(v[0]);
    for (std::size_t i = 1; i < v.size(); ++i) {
      const auto x = static_cast<Compute<T>>(v[i]);
      if (reduce == Reduce::sum) r = static_cast<Compute<T>>(r + x);
      if (reduce == Reduce::max && x > r) r = x;
      if (reduce == Reduce::min && x < r) r = x;
    }
    return static_cast<T>(r);
  }

  // The elements of `got` are the reductions over all ranks of the elements first, first + 1, ...
  template <class T>
  void expect_reduced(const char* what, const Tensor& got, Reduce reduce,
                      std::int64_t first = 0) const {
    const Tensor host = got.to(kCpu);
    bool same = true;
    std::vector<T> all(at(n_));
    for (std::int64_t i = 0; i < host.numel(); ++i) {
      for (int r = 0; r < n_; ++r) all[at(r)] = value<T>(r, first + i);
      const T want = reduced(reduce, all);
      same = same && std::memcmp(&want, host.data<T>() + i, sizeof want) == 0;
    }
    expect(same, what, got);
  }

  template <class T>
  void reductions() {
    for (const Reduce reduce : {Reduce::sum, Reduce::max, Reduce::min}) {
      for (const Shape& shape :
           {Shape{}, Shape{0}, Shape{1}, Shape{3, 5}, Shape{2, 0}, Shape{5003}}) {
        const Tensor x = values<T>(shape, me_);
        g_.all_reduce(x, reduce).wait();
        expect_reduced<T>("all_reduce", x, reduce);
      }
      for (const Shape& shape : row_shapes())
        for (const Rows& rows : splits()) {
          const Tensor in = values<T>(with_rows(total(rows), shape), me_);
          const Tensor out = blank(with_rows(rows[at(me_)], shape), dtype_of<T>());
          const std::int64_t first = before_me(rows) * row_elements(out);
          g_.reduce_scatter(out, in, rows, reduce).wait();
          expect_reduced<T>("reduce_scatter", out, reduce, first);
          const Tensor own = in.narrow(0, before_me(rows), rows[at(me_)]);
          g_.reduce_scatter(own, in, rows, reduce).wait();
          expect_reduced<T>("reduce_scatter in place", own, reduce, first);
        }
      const Tensor in = values<T>({3 * n_, 4}, me_), out = blank({3, 4}, dtype_of<T>());
      g_.reduce_scatter(out, in, {}, reduce).wait();
      expect_reduced<T>("reduce_scatter of equal parts", out, reduce, 12 * me_);
    }
  }

  // Element i is NaN on rank i; the last element is NaN on no rank.
  template <class T>
  void nan_wins() {
    for (const Reduce reduce : {Reduce::sum, Reduce::max, Reduce::min}) {
      Tensor host = Tensor::full({n_ + 1}, me_ + 1.0, dtype_of<T>());
      host.data<T>()[me_] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
      const Tensor x = on_device(host);
      g_.all_reduce(x, reduce).wait();
      std::vector<double> got(at(n_ + 1));
      x.copy_to(got);
      bool right = true;
      for (int i = 0; i < n_; ++i) right = right && std::isnan(got[at(i)]);
      expect(right && !std::isnan(got[at(n_)]), "NaN in all_reduce", x);
    }
  }

  // Works complete in call order, whichever is waited for first and even if no rank waits: each may
  // depend on the one before.
  void in_flight() {
    const Tensor x = values<float>({257}, me_), whole = blank({257 * n_}, DType::f32);
    const Tensor parts = blank({257}, DType::f32), other = values<double>({33}, me_);
    distributed::Work first = g_.all_reduce(x);
    distributed::Work second = g_.all_gather(whole, x);
    (void)g_.reduce_scatter(parts, whole, {}, Reduce::max);
    distributed::Work fourth = g_.all_reduce(other, Reduce::min);
    distributed::Work fifth = g_.broadcast(parts, n_ - 1);
    distributed::Work last = g_.barrier();
    last.wait();
    CHECK(first.done());
    CHECK(fifth.done());
    fourth.wait();
    first.wait();
    second.wait();
    fifth.wait();
    expect_reduced<float>("all_reduce among several", x, Reduce::sum);
    expect_reduced<float>("reduce_scatter that nobody waits for", parts, Reduce::sum);
    expect_reduced<double>("all_reduce behind others", other, Reduce::min);
  }

  // Threads copy and add these past the caches.
  void large() {
    const Shape row{1, kLarge};
    moves(DType::f32, row);
    messages(DType::f32, row);
    large_sums<float>();
    large_sums<double>();
  }

  template <class T>
  void large_sums() {
    // Behind one element, so that no vector is aligned.
    const auto unaligned = [](const Tensor& x) { return x.narrow(0, 1, x.dim(0) - 1); };
    const Tensor in = values<T>({2 * kLarge}, me_);
    const Tensor out = unaligned(blank({kLarge + 1}, dtype_of<T>()));
    g_.reduce_scatter(out, in).wait();
    expect_reduced<T>("reduce_scatter of large parts", out, Reduce::sum, kLarge * me_);
    const Tensor x = unaligned(blank({2 * kLarge + 1}, dtype_of<T>()));
    x.copy_(in);
    g_.all_reduce(x).wait();
    expect_reduced<T>("all_reduce of large parts", x, Reduce::sum);
  }

  static constexpr std::int64_t kLarge = 70'001;
  distributed::ProcessGroup& g_;
  const Device device_;
  const int n_, me_;
};

/// Runs all checks in all kinds of groups: the world, reordered, overlapping, a single rank.
inline void check_groups(distributed::World& world, Device device = kCpu) {
  const int n = world.size();
  std::vector<std::vector<int>> lists = {{}, {}, {}, {}, {n - 1}};
  for (int r = 0; r < n; ++r) {
    lists[0].push_back(n - 1 - r);                         // descending
    lists[1].push_back((r + n / 2) % n);                   // rotated
    if (r % 2 == 0) lists[2].push_back(r);                 // shares ranks with the next list
    if (2 * r <= n) lists[3].insert(lists[3].begin(), r);  // overlaps the previous list
  }
  std::vector<std::shared_ptr<distributed::ProcessGroup>> groups;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const auto lane = static_cast<distributed::Lane>(i % distributed::kLanes);
    groups.push_back(world.group(message("list{}", i), lists[i], lane));
  }
  GroupConformance(world.all(), device).all();
  for (const auto& group : groups)
    if (group) GroupConformance(*group, device).all();
}

}  // namespace weft::test
