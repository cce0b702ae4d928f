#include "weft/distributed/pieces.h"

#include <algorithm>
#include <cstring>

#include "weft/core/error.h"
#include "weft/io/json.h"

namespace weft::distributed {
namespace {

constexpr const char* kKey = "pieces";

bool is_whole(const Piece& p) {
  return p.part.cuts.empty() && p.begin == 0 && p.end == p.part.whole.numel();
}

bool same(const Piece& a, const Piece& b) {
  const auto same_cut = [](const nn::Part::Cut& x, const nn::Part::Cut& y) {
    return x.axis == y.axis && x.ranges == y.ranges;
  };
  return a.begin == b.begin && a.end == b.end && a.part.whole == b.part.whole &&
         std::equal(a.part.cuts.begin(), a.part.cuts.end(), b.part.cuts.begin(), b.part.cuts.end(),
                    same_cut);
}

// Calls f(first element in the whole, first in the piece, how many) for all that lies together.
template <class F>
void each_run(const Piece& p, F&& f) {
  nn::for_each_run(p.part, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
    const std::int64_t begin = std::max(own, p.begin), end = std::min(own + count, p.end);
    if (begin < end) f(whole + begin - own, begin - p.begin, end - begin);
  });
}

io::Json to_json(const Piece& p) {
  io::Json whole = io::Json::Array(), cuts = io::Json::Array();
  for (int i = 0; i < p.part.whole.size(); ++i) whole.push_back(p.part.whole[i]);
  for (const nn::Part::Cut& cut : p.part.cuts) {
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

Piece piece_from_json(const io::Json& json, const std::string& where) {
  Piece p;
  std::int64_t elements = 1;
  for (const io::Json& n : json.at("whole").items()) {
    check_system(p.part.whole.size() < kMaxDims, "{}: at most {} axes", where, kMaxDims);
    check_system(n.as_int() >= 0 && !__builtin_mul_overflow(elements, n.as_int(), &elements),
                 "{}: sizes must be at least 0 and their product a number, got {}", where,
                 n.as_int());
    p.part.whole.push_back(n.as_int());
  }
  for (const io::Json& c : json.at("cuts").items()) {
    nn::Part::Cut cut{static_cast<int>(c.at("axis").as_int()), {}};
    for (const io::Json& range : c.at("ranges").items()) {
      check_system(range.items().size() == 2, "{}: a range must have two ends", where);
      cut.ranges.emplace_back(range.items()[0].as_int(), range.items()[1].as_int());
    }
    p.part.cuts.push_back(std::move(cut));
  }
  p.begin = json.at("begin").as_int();
  p.end = json.at("end").as_int();
  try {
    elements = shape_of(p.part).numel();
  } catch (const Error& e) {
    throw Error(where + ": " + e.what(), Fault::system);
  }
  check_system(0 <= p.begin && p.begin <= p.end && p.end <= elements,
               "{}: begin and end must be among {} elements, got {} and {}", where, elements,
               p.begin, p.end);
  return p;
}

}  // namespace

Piece Piece::of(const nn::Part& part) { return {part, 0, shape_of(part).numel()}; }

io::FileSummary save_pieces(const std::string& path, const Pieces& pieces,
                            const io::Metadata& metadata) {
  StateDict tensors;
  io::Json list = io::Json::object();
  bool cut = false;
  for (const auto& [name, t] : pieces) {
    check(t.values.numel() == t.piece.end - t.piece.begin,
          "save_pieces: {} must have {} values, got {}", name, t.piece.end - t.piece.begin,
          t.values.numel());
    const bool whole = is_whole(t.piece);
    tensors[name] = whole ? t.values.view(t.piece.part.whole) : t.values;
    if (whole) continue;
    list.set(name, to_json(t.piece));
    cut = true;
  }
  io::Metadata with_pieces = metadata;
  if (cut) with_pieces[kKey] = list.dump();
  return io::save_safetensors(path, tensors, with_pieces);
}

PieceFiles::PieceFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.push_back(io::SafetensorsFile::open(path));
    const io::SafetensorsFile& file = files_.back();
    io::Json list = io::Json::object();
    if (const auto found = file.metadata().find(kKey); found != file.metadata().end())
      list = io::Json::parse(found->second, message("'{}': {}", path, kKey));
    for (const std::string& name : file.names()) {
      const io::Json* const described = list.find(name);
      const Piece piece =
          described ? piece_from_json(*described, message("'{}': piece of {}", path, name))
                    : Piece::of(file.shape(name));
      check_system(file.shape(name).numel() == piece.end - piece.begin,
                   "'{}': {} must have {} values, got {}", path, name, piece.end - piece.begin,
                   file.shape(name).numel());
      Entry& e =
          entries_.try_emplace(name, Entry{piece.part.whole, file.dtype(name), {}}).first->second;
      check_system(e.shape == piece.part.whole && e.dtype == file.dtype(name),
                   "'{}': {} must be {} {} as in the other files, got {} {}", path, name, e.dtype,
                   e.shape, file.dtype(name), piece.part.whole);
      e.sources.push_back({files_.size() - 1, piece});
    }
  }
}

std::vector<std::string> PieceFiles::names() const {
  std::vector<std::string> list;
  for (const auto& [name, entry] : entries_) list.push_back(name);
  return list;
}

StateDict PieceFiles::state_dict() const {
  StateDict all;
  for (const auto& [name, entry] : entries_) all[name] = whole(name);
  return all;
}

const PieceFiles::Entry& PieceFiles::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  check_system(found != entries_.end(), "checkpoint: there is no tensor '{}'", name);
  return found->second;
}

Shape PieceFiles::shape(const std::string& name) const { return entry(name).shape; }
DType PieceFiles::dtype(const std::string& name) const { return entry(name).dtype; }

void PieceFiles::read_into(const std::string& name, const Piece& piece, const Tensor& out) const {
  const Entry& e = entry(name);
  check(piece.part.whole == e.shape, "checkpoint: {} must have shape {}, got {}", name,
        piece.part.whole, e.shape);
  check(out.numel() == piece.end - piece.begin, "checkpoint: {} needs room for {} values, got {}",
        name, piece.end - piece.begin, out.numel());
  for (const Source& s : e.sources) {
    if (!same(s.piece, piece)) continue;
    const io::SafetensorsFile& file = files_[s.file];
    if (file.shape(name) == out.shape()) return file.read_into(name, out);
    out.copy_(file.tensor(name).view(out.shape()));
    return;
  }
  const Tensor all = whole(name);
  if (is_whole(piece)) {
    out.copy_(all.view(out.shape()));
    return;
  }
  const Tensor part = Tensor::empty({piece.end - piece.begin}, e.dtype);
  const auto width = static_cast<std::int64_t>(size_of(e.dtype));
  each_run(piece, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    std::memcpy(static_cast<char*>(part.raw()) + to * width,
                static_cast<const char*>(all.raw()) + from * width,
                static_cast<std::size_t>(count * width));
  });
  out.copy_(part.view(out.shape()));
}

Tensor PieceFiles::whole(const std::string& name) const {
  const Entry& e = entry(name);
  if (e.sources.size() == 1 && is_whole(e.sources[0].piece))
    return files_[e.sources[0].file].tensor(name);
  const Tensor out = Tensor::empty(e.shape, e.dtype);
  const auto width = static_cast<std::int64_t>(size_of(e.dtype));
  std::vector<bool> there(static_cast<std::size_t>(out.numel()));
  for (const Source& s : e.sources) {
    const Tensor part = files_[s.file].tensor(name);
    each_run(s.piece, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      std::memcpy(static_cast<char*>(out.raw()) + to * width,
                  static_cast<const char*>(part.raw()) + from * width,
                  static_cast<std::size_t>(count * width));
      std::fill_n(there.begin() + to, count, true);
    });
  }
  const auto missing = std::find(there.begin(), there.end(), false) - there.begin();
  check_system(missing == out.numel(), "checkpoint: element {} of {} {} is in none of the files",
               missing, name, e.shape);
  return out;
}

}  // namespace weft::distributed
