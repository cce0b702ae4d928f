#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// Members of Tensor: writes in place, factories, conversions.
namespace weft::generated {
namespace {

// In-place ops are not recorded: they write to a copy of x outside of the tape, with gaps between
// its elements.
Tensor scratch(const Tensor& x) {
  if (x.ndim() == 0) return x.detach().clone();
  Shape wide = x.shape();
  wide[-1 + x.ndim()] *= 2;
  const Tensor y = Tensor::full(wide, 7, x.dtype(), x.device()).slice(-1, 0, kEnd, 2);
  y.copy_(x.detach());
  return y;
}
bool written(Maker& m, Item& item) {
  broadcast_second(m, item);
  item.reals = {dyadic(m)};
  item.ints = {m.rng.below(3)};
  return true;
}
bool by_number(I item) { return item.ints[0] == 0; }
using WithTensor = const Tensor& (Tensor::*)(const Tensor&) const;
using WithNumber = const Tensor& (Tensor::*)(double) const;
template <WithTensor f, WithNumber g>
Tensor write(I item, T in) {
  const Tensor y = scratch(in[0]);
  if (by_number(item))
    (y.*g)(item.reals[0]);
  else
    (y.*f)(in[1].detach());
  return y;
}
template <Number (*f)(N, N)>
Array written_exact(I item, A in) {
  const auto step = [](N x, N y) { return f(still(x), still(y)); };
  if (!by_number(item)) return binary(*in[0], *in[1], step);
  return map(*in[0], [&](N x) { return step(x, item.reals[0]); });
}
Number scaled_sum(N a, N b) { return a + b * 0.5; }

// Positions along the first axis, whose elements are added to the next ones.
bool some_rows(Maker& m, Item& item) { return one_axis(m, item) && m.shape(item.in[0])[0] > 0; }
bool some_row(Maker& m, Item& item) {
  if (!some_rows(m, item)) return false;
  item.ints = {m.rng.below(m.shape(item.in[0])[0])};
  item.reals = {dyadic(m)};
  return true;
}
Array with_row(const Array& x, std::int64_t at, N value) {
  return along(map(x, still), 0, [&](Row column) {
    column[static_cast<std::size_t>(at)] = value;
    return column;
  });
}

// x times numbers along its last axis.
bool last_axis(Maker& m, Item& item) {
  item.in = {m.any(1)};
  return item.in[0] >= 0;
}
Array by_columns(A in, double first, double step) {
  return along(*in[0], in[0]->ndim() - 1, [=](Row row) {
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = row[i] * rounded({first + static_cast<double>(i) * step, 0, 0, 0});
    return row;
  });
}

const ProgramOp kMemberOps[] = {
    {"Tensor::operator+=", 2, written, write < &Tensor::operator+=, &Tensor::operator+=>,
     written_exact<sum_of>},
    {"Tensor::operator-=", 2, written, write < &Tensor::operator-=, &Tensor::operator-=>,
     written_exact<difference>},
    {"Tensor::operator*=", 2, written, write < &Tensor::operator*=, &Tensor::operator*=>,
     written_exact<product_of>},
    {"Tensor::operator/=", 2, written, write < &Tensor::operator/=, &Tensor::operator/=>,
     written_exact<quotient>},
    {"Tensor::add_", 2, same_shapes,
     [](I, T in) {
       const Tensor y = scratch(in[0]);
       return Tensor(y.add_(in[1].detach(), 0.5));
     },
     [](I, A in) { return binary(map(*in[0], still), map(*in[1], still), scaled_sum); }},
    {"Tensor::mul_", 2, number,
     [](I item, T in) {
       const Tensor y = scratch(in[0]);
       return Tensor(y.mul_(item.reals[0]));
     },
     [](I item, A in) { return map(*in[0], [&](N x) { return still(x) * item.reals[0]; }); }},
    {"Tensor::operator+= overlapping", 2, some_rows,
     [](I, T in) {
       const Tensor y = scratch(in[0]);
       const std::int64_t n = y.dim(0);
       y.slice(0, 1) += y.slice(0, 0, n - 1);
       return y;
     },
     [](I, A in) {
       return along(map(*in[0], still), 0, [](const Row& column) {
         Row y = column;
         for (std::size_t i = 1; i < y.size(); ++i) y[i] = column[i] + column[i - 1];
         return y;
       });
     }},
    {"Tensor::fill_", 2, some_row,
     [](I item, T in) {
       const Tensor y = scratch(in[0]);
       y[item.ints[0]].fill_(item.reals[0]);
       return y;
     },
     [](I item, A in) { return with_row(*in[0], item.ints[0], item.reals[0]); }},
    {"Tensor::zero_", 2, some_row,
     [](I item, T in) {
       const Tensor y = scratch(in[0]);
       y[item.ints[0]].zero_();
       return y;
     },
     [](I item, A in) { return with_row(*in[0], item.ints[0], 0); }},
    {"Tensor::detach", 2, one, [](I, T in) { return in[0].detach(); }, unary<still>},
    {"Tensor::operator[]", 2, some_row, [](I item, T in) { return in[0][item.ints[0]]; },
     [](I item, A in) {
       return reduce_axes(*in[0], {0}, false, [&](const Row& column) {
         return column[static_cast<std::size_t>(item.ints[0])];
       });
     }},
    {"Tensor::linspace", 2, last_axis,
     [](I, T in) {
       const Tensor& x = in[0];
       return x * Tensor::linspace(-1, 2, x.dim(-1), x.dtype(), x.device());
     },
     [](I, A in) {
       const std::int64_t n = in[0]->shape.back();
       return by_columns(in, -1, n > 1 ? 3 / static_cast<double>(n - 1) : 0);
     }},
    {"Tensor::arange", 2, last_axis,
     [](I, T in) {
       const Tensor& x = in[0];
       const double end = -0.5 + 0.25 * static_cast<double>(x.dim(-1));
       return x * Tensor::arange(-0.5, end, 0.25, x.dtype(), x.device());
     },
     [](I, A in) { return by_columns(in, -0.5, 0.25); }},
    {"Tensor::eye", 2, last_axis,
     [](I, T in) {
       const Tensor& x = in[0];
       return x.unsqueeze(-1) * Tensor::eye(x.dim(-1), x.dtype(), x.device());
     },
     [](I, A in) {
       Shape shape = in[0]->shape;
       const std::int64_t n = shape.back();
       shape.push_back(n);
       Array y = filled(shape, 0);
       for (std::size_t i = 0; i < in[0]->at.size(); ++i) {
         const auto k = static_cast<std::int64_t>(i);
         y.at[static_cast<std::size_t>(k * n + k % n)] = in[0]->at[i];
       }
       return y;
     }},
    {"cast wider", 2, one,
     [](I, T in) { return cast(in[0], is_half(in[0].dtype()) ? DType::f32 : DType::f64); },
     [](I, A in) { return *in[0]; }},
    {"cast whole", 2, number,
     [](I item, T in) { return cast(in[0], item.ints[0] ? DType::i32 : DType::i64); },
     [](I, A in) {
       return map(*in[0], [](N x) -> Number {
         if (std::round(x.v) != 0) Closest::see(x, std::round(x.v));
         return std::trunc(x.v);
       });
     }},
    {"to_device", 2, one, [](I, T in) { return to_device(to_device(in[0], kCpu), in[0].device()); },
     [](I, A in) { return *in[0]; }},
};

}  // namespace

std::span<const ProgramOp> member_ops() { return kMemberOps; }

}  // namespace weft::generated
