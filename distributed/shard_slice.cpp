#include "weft/distributed/shard_slice.h"

#include <utility>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

Shape whole_from_json(const io::Json& json, const std::string& where) {
  Shape whole;
  std::int64_t elements = 1;
  for (const io::Json& n : json.items()) {
    check_system(whole.size() < kMaxDims, "{}: at most {} axes", where, kMaxDims);
    const std::int64_t d = n.as_int();
    // An axis of length 0 does not excuse an overflow of the others, because strides are their
    // products.
    check_system(d == 0 || (d > 0 && !__builtin_mul_overflow(elements, d, &elements)),
                 "{}: sizes must be at least 0 and their product a number, got {}", where, d);
    whole.push_back(d);
  }
  return whole;
}

nn::ShardSpec::Cut cut_from_json(const io::Json& json, const Shape& whole,
                                 const std::string& where) {
  const std::int64_t axis = json.at("axis").as_int();
  check_system(0 <= axis && axis < whole.size(),
               "{}: shard_spec: a cut must be along an axis of {}, got axis {}", where, whole,
               axis);
  nn::ShardSpec::Cut cut{static_cast<int>(axis), {}};
  for (const io::Json& range : json.at("ranges").items()) {
    check_system(range.items().size() == 2, "{}: a range must have two ends", where);
    cut.ranges.emplace_back(range.items()[0].as_int(), range.items()[1].as_int());
  }
  return cut;
}

}  // namespace

ShardSlice ShardSlice::of(const nn::ShardSpec& part) { return {part, 0, shape_of(part).numel()}; }

bool ShardSlice::is_whole() const {
  return spec.cuts.empty() && begin == 0 && end == spec.whole.numel();
}

io::Json to_json(const ShardSlice& p) {
  io::Json whole = io::Json::Array(), cuts = io::Json::Array();
  for (int i = 0; i < p.spec.whole.size(); ++i) whole.push_back(p.spec.whole[i]);
  for (const nn::ShardSpec::Cut& cut : p.spec.cuts) {
    io::Json ranges = io::Json::Array();
    for (const auto& [begin, end] : cut.ranges) {
      io::Json range = io::Json::Array();
      range.push_back(begin);
      range.push_back(end);
      ranges.push_back(std::move(range));
    }
    cuts.push_back(io::Json().set("axis", std::int64_t{cut.axis}).set("ranges", std::move(ranges)));
  }
  return io::Json()
      .set("whole", std::move(whole))
      .set("cuts", std::move(cuts))
      .set("begin", p.begin)
      .set("end", p.end);
}

ShardSlice slice_from_json(const io::Json& json, const std::string& where) {
  ShardSlice p;
  p.spec.whole = whole_from_json(json.at("whole"), where);
  for (const io::Json& cut : json.at("cuts").items())
    p.spec.cuts.push_back(cut_from_json(cut, p.spec.whole, where));
  p.begin = json.at("begin").as_int();
  p.end = json.at("end").as_int();
  std::int64_t elements = 0;
  try {
    elements = shape_of(p.spec).numel();
  } catch (const Error& e) {
    throw Error(where + ": " + e.what(), Fault::system);
  }
  check_system(0 <= p.begin && p.begin <= p.end && p.end <= elements,
               "{}: begin and end must be among {} elements, got {} and {}", where, elements,
               p.begin, p.end);
  return p;
}

SliceSources sources_of(const SlicedTensors& slices) {
  SliceSources out;
  for (const auto& [name, t] : slices)
    out[name] = {{t.values.shape(), t.values.dtype(), [t = t.values] { return t; }}, t.slice};
  return out;
}

io::FileSummary save_slices(const std::string& path, const SliceSources& slices,
                            const io::Metadata& metadata, const std::stop_token& stop) {
  TensorSources tensors;
  io::Json list = io::Json::object();
  bool cut = false;
  for (const auto& [name, s] : slices) {
    const std::int64_t values = s.values.shape.numel();
    check(values == s.slice.end - s.slice.begin, "save_slices: {} must have {} values, got {}",
          name, s.slice.end - s.slice.begin, values);
    TensorSource& out = tensors[name] = s.values;
    if (s.slice.is_whole()) {
      out.shape = s.slice.spec.whole;
      out.read = [&s = s] { return s.values.read().detach().view(s.slice.spec.whole); };
    } else {
      list.set(name, to_json(s.slice));
      cut = true;
    }
  }
  io::Metadata with_slices = metadata;
  if (cut) with_slices[kSlicesKey] = list.dump();
  return io::write_safetensors(path, tensors, with_slices, stop);
}

io::FileSummary save_slices(const std::string& path, const SlicedTensors& slices,
                            const io::Metadata& metadata) {
  return save_slices(path, sources_of(slices), metadata);
}

}  // namespace weft::distributed
