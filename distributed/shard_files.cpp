#include "weft/distributed/shard_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/agree.h"
#include "weft/io/crc32c.h"
#include "weft/io/file.h"
#include "weft/io/json.h"

namespace weft::distributed {
namespace {

// Files kept open: a rank that reads what it has written needs one of each kind.
constexpr std::size_t kOpen = 8;
// Elements that are less than a page apart are read together, up to so many bytes.
constexpr std::int64_t kPage = 4096, kMostAtOnce = 4 << 20;

// Calls f(offset in the whole, offset in the slice, count) for every contiguous run.
template <class F>
void each_run(const ShardSlice& p, F&& f) {
  nn::for_each_run(p.spec, p.begin, p.end,
                   [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
                     f(whole, own - p.begin, count);
                   });
}

}  // namespace

Tensor move_rows(const Tensor& given, const std::vector<std::int64_t>& rows, bool back) {
  const Tensor x = given.contiguous(), out = empty_like(x);
  check(std::ssize(rows) == x.dim(0), "move_rows: there must be {} numbers of rows, got {}",
        x.dim(0), rows.size());
  const auto bytes = static_cast<std::size_t>(x.numel() / x.dim(0)) * size_of(x.dtype());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto there = static_cast<std::size_t>(rows[i]);
    check(there < rows.size(), "move_rows: rows must be below {}, got {}", rows.size(), rows[i]);
    const std::size_t from = back ? there : i, to = back ? i : there;
    std::memcpy(static_cast<char*>(out.raw()) + to * bytes,
                static_cast<const char*>(x.raw()) + from * bytes, bytes);
  }
  return out;
}

ShardFiles::ShardFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) add_file(path, io::SafetensorsFile::read_index(path));
  sort_sources();
}

ShardFiles::ShardFiles(const std::vector<std::string>& paths, const Renames& renames) {
  for (const std::string& path : paths)
    add_renamed(path, io::SafetensorsFile::read_index(path), renames);
  for (const Renamed& r : renamed_)
    if (!r.scales.empty()) file_of(r);  // throws if it is missing
  sort_sources();
}

std::uint32_t ShardFiles::file_of(const Renamed& r) const {
  const auto holds = [&](const io::SafetensorsFile& f) { return f.contains(r.scales); };
  const auto file = std::find_if(files_.begin(), files_.end(), holds);
  check_system(file != files_.end(), "checkpoint: {} needs the tensor '{}', which no file has",
               r.name, r.scales);
  return static_cast<std::uint32_t>(file - files_.begin());
}

ShardFiles::ShardFiles(World& world, const std::vector<std::string>& paths) {
  // Size of the file and length of the header, then the header, for each file.
  constexpr std::size_t kNumber = sizeof(std::int64_t);
  std::string all;
  on_rank_0(world, [&] {
    for (const std::string& path : paths) {
      const io::SafetensorsIndex index = io::SafetensorsFile::read_index(path);
      const std::int64_t numbers[] = {index.file_bytes,
                                      static_cast<std::int64_t>(index.header.size())};
      all.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
      all += index.header;
    }
  });
  all = text_from(world, 0, all);
  std::size_t at = 0;
  for (const std::string& path : paths) {
    std::int64_t numbers[2];
    check_system(at + 2 * kNumber <= all.size(),
                 "checkpoint: rank 0 lists other files than rank {}", world.rank());
    std::memcpy(numbers, all.data() + at, sizeof numbers);
    at += 2 * kNumber;
    add_file(path, {numbers[0], all.substr(at, static_cast<std::size_t>(numbers[1]))});
    at += static_cast<std::size_t>(numbers[1]);
  }
  sort_sources();
}

const io::SafetensorsFile& ShardFiles::opened(std::uint32_t file) const {
  if (!files_[file].is_open()) {
    if (open_.size() >= kOpen) {
      files_[open_.front()].close();
      open_.pop_front();
    }
    open_.push_back(file);
  }
  return files_[file];
}

void ShardFiles::sort_sources() {
  std::sort(sources_.begin(), sources_.end(), [this](const Source& a, const Source& b) {
    const int c = name(a).compare(name(b));
    return c != 0 ? c < 0 : a.file < b.file;
  });
  const Source* first = nullptr;
  for (const Source& s : sources_) {
    if (first && name(*first) == name(s))
      check_agreement(*first, s);
    else
      first = &s;
  }
}

void ShardFiles::add_file(const std::string& path, io::SafetensorsIndex index) {
  const auto number = static_cast<std::uint32_t>(files_.size());
  const io::SafetensorsFile& file =
      files_.emplace_back(io::SafetensorsFile::of_index(path, std::move(index)));
  std::vector<std::uint32_t> described(file.size(), kWhole);
  if (const auto found = file.metadata().find(kSlicesKey); found != file.metadata().end()) {
    const std::string what = message("'{}': {}", path, kSlicesKey);
    const auto member = [&](const std::string& name, const io::Json& json, std::size_t byte) {
      const std::size_t i = file.find(name);
      check_system(i < file.size() && described[i] == kWhole,
                   "{}: must name tensors of the file, each once, got {} at byte {}", what, name,
                   byte);
      described[i] = static_cast<std::uint32_t>(slices_.size());
      slices_.push_back(slice_from_json(json, message("'{}': slice of {}", path, name)));
    };
    check_system(io::Json::each_member(found->second, what, member), "{}: must be a JSON object",
                 what);
  }
  for (std::uint32_t i = 0; i < file.size(); ++i) {
    const std::string name(file.name(i));
    const std::int64_t values = file.shape(name).numel();
    file.dtype(name);  // throws unless the dtype is supported
    if (described[i] != kWhole) {
      const ShardSlice& p = slices_[described[i]];
      check_system(values == p.end - p.begin, "'{}': {} must have {} values, got {}", path, name,
                   p.end - p.begin, values);
    }
    sources_.push_back({number, i, described[i]});
  }
}

void ShardFiles::add_renamed(const std::string& path, io::SafetensorsIndex index,
                             const Renames& renames) {
  const auto number = static_cast<std::uint32_t>(files_.size());
  const io::SafetensorsFile& file =
      files_.emplace_back(io::SafetensorsFile::of_index(path, std::move(index)));
  for (std::uint32_t i = 0; i < file.size(); ++i) {
    const auto found = renames.find(file.name(i));
    if (found == renames.end()) continue;
    const Renamed& r = found->second;
    const std::int64_t values = file.shape(found->first).numel();
    file.dtype(found->first);  // throws unless the dtype is supported
    check_system(values == r.slice.end - r.slice.begin, "'{}': {} must have {} values, got {}",
                 path, found->first, r.slice.end - r.slice.begin, values);
    sources_.push_back({number, i, static_cast<std::uint32_t>(slices_.size())});
    slices_.push_back(r.slice);
    renamed_.push_back(r);
  }
}

void ShardFiles::check_agreement(const Source& first, const Source& other) const {
  const std::string name(stored(other));
  const io::SafetensorsFile& b = files_[other.file];
  const DType dtype = dtype_of(first);
  const Shape shape = whole_shape(first), other_shape = whole_shape(other);
  check_system(shape == other_shape && dtype == dtype_of(other),
               "'{}': {} must be {} {} as in the other files, got {} {}", b.path(), name, dtype,
               shape, dtype_of(other), other_shape);
}

Shape ShardFiles::whole_shape(const Source& s) const {
  return s.slice == kWhole ? files_[s.file].shape(std::string(name(s)))
                           : slices_[s.slice].spec.whole;
}

ShardSlice ShardFiles::slice(const Source& s) const {
  return s.slice == kWhole ? ShardSlice::of(whole_shape(s)) : slices_[s.slice];
}

std::vector<std::string> ShardFiles::paths() const {
  std::vector<std::string> list;
  for (const io::SafetensorsFile& file : files_) list.push_back(file.path());
  return list;
}

std::int64_t ShardFiles::fingerprint() const {
  std::uint32_t crc = 0;
  for (const std::string& path : paths()) {
    const io::FileSummary part = io::sample(path);
    crc = io::crc32c(&part.bytes, sizeof part.bytes, crc);
    crc = io::crc32c(&part.crc32c, sizeof part.crc32c, crc);
  }
  return crc;
}

std::vector<std::string> ShardFiles::names() const {
  std::vector<std::string> list;
  for (const Source& s : sources_)
    if (list.empty() || list.back() != name(s)) list.emplace_back(name(s));
  return list;
}

StateDict ShardFiles::state_dict() const {
  StateDict all;
  for (const std::string& name : names()) all[name] = whole(name);
  return all;
}

bool ShardFiles::contains(const std::string& name) const {
  const auto found = first_of(name);
  return found != sources_.end() && this->name(*found) == name;
}

// The values of a matrix of codes with a factor for each block, in bf16.
Tensor ShardFiles::scaled(const Tensor& codes, const Renamed& how) const {
  const Tensor factors = opened(file_of(how)).tensor(how.scales).to(DType::f32).contiguous();
  const Tensor out = codes.to(DType::f32).contiguous();
  const std::int64_t rows = out.dim(0), columns = out.dim(1), b = how.block;
  const Shape blocks{(rows + b - 1) / b, (columns + b - 1) / b};
  check_system(factors.shape() == blocks, "checkpoint: '{}' must have shape {}, got {}", how.scales,
               blocks, factors.shape());
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const row = out.data<float>() + r * columns;
    const float* const factor = factors.data<float>() + r / b * blocks[1];
    for (std::int64_t i = 0; i < columns; ++i) row[i] *= factor[i / b];
  }
  return out.to(DType::bf16);
}

// In the order of the part, and with its values.
Tensor ShardFiles::tensor(const Source& s) const {
  Tensor t = opened(s.file).tensor(std::string(stored(s)));
  if (!is_rearranged(s)) return t;
  const Renamed& how = renamed_[s.slice];
  if (!how.scales.empty()) t = scaled(t, how);
  if (how.transposed) return t.transpose(0, 1).contiguous();
  return how.rows.empty() ? t : move_rows(t, how.rows);
}

DType ShardFiles::dtype_of(const Source& s) const {
  const bool is_scaled = !renamed_.empty() && !renamed_[s.slice].scales.empty();
  return is_scaled ? DType::bf16 : files_[s.file].dtype(std::string(stored(s)));
}

std::vector<ShardFiles::Source>::const_iterator ShardFiles::first_of(
    const std::string& name) const {
  return std::lower_bound(
      sources_.begin(), sources_.end(), name,
      [this](const Source& s, const std::string& n) { return this->name(s) < n; });
}

std::span<const ShardFiles::Source> ShardFiles::sources(const std::string& name) const {
  const auto first = first_of(name);
  auto last = first;
  while (last != sources_.end() && this->name(*last) == name) ++last;
  check_system(first != last, "checkpoint: there is no tensor '{}'", name);
  return {first, last};
}

Shape ShardFiles::shape(const std::string& name) const { return whole_shape(sources(name)[0]); }
DType ShardFiles::dtype(const std::string& name) const { return dtype_of(sources(name)[0]); }

void ShardFiles::read_into(const std::string& name, const ShardSlice& slice,
                           const Tensor& out) const {
  const std::span<const Source> found = sources(name);
  const Shape shape = whole_shape(found[0]);
  check(slice.spec.whole == shape, "checkpoint: {} must have shape {}, got {}", name,
        slice.spec.whole, shape);
  check(out.numel() == slice.end - slice.begin, "checkpoint: {} needs room for {} values, got {}",
        name, slice.end - slice.begin, out.numel());
  for (const Source& s : found) {
    if (this->slice(s) != slice) continue;
    const io::SafetensorsFile& file = opened(s.file);
    const std::string own(stored(s));
    if (!is_rearranged(s) && file.shape(own) == out.shape()) return file.read_into(own, out);
    out.copy_(tensor(s).view(out.shape()));
    return;
  }
  const bool in_place = out.device().is_cpu() && out.is_contiguous() && out.dtype() == dtype(name);
  const Tensor values =
      in_place ? out.detach().view({out.numel()}) : Tensor::empty({out.numel()}, dtype(name));
  std::vector<Run> wanted = runs_of(slice);
  for (const Source& s : found)
    if (!wanted.empty()) wanted = read_from(s, wanted, values);
  check_system(wanted.empty(), "checkpoint: element {} of {} {} is in none of the files",
               wanted.empty() ? 0 : wanted[0].whole, name, shape);
  if (!in_place) out.copy_(values.view(out.shape()));
}

std::vector<ShardFiles::Run> ShardFiles::runs_of(const ShardSlice& slice) {
  std::vector<Run> runs;
  each_run(slice, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
    runs.push_back({whole, own, count});
  });
  return runs;
}

// Runs of a slice ascend in the whole tensor, so one pass over both lists finds what they share.
std::vector<ShardFiles::Run> ShardFiles::read_from(const Source& s, const std::vector<Run>& wanted,
                                                   const Tensor& out) const {
  struct Piece {
    std::int64_t from, to, count;  // elements of the file's tensor and of `out`
  };
  std::vector<Piece> pieces;
  std::vector<Run> rest;
  const std::vector<Run> stored = runs_of(slice(s));
  auto has = stored.begin();
  for (const Run& w : wanted) {
    const std::int64_t end = w.whole + w.count;
    for (std::int64_t at = w.whole; at < end;) {
      while (has != stored.end() && has->whole + has->count <= at) ++has;
      const std::int64_t next = has == stored.end() ? end : std::clamp(has->whole, at, end);
      if (next > at) rest.push_back({at, w.own + at - w.whole, next - at});
      at = next;
      if (at == end) break;
      const std::int64_t n = std::min(end, has->whole + has->count) - at;
      pieces.push_back({has->own + at - has->whole, w.own + at - w.whole, n});
      at += n;
    }
  }
  if (pieces.empty()) return rest;
  const auto width = static_cast<std::int64_t>(size_of(out.dtype()));
  const auto copy = [&](const Piece& piece, const Tensor& from, std::int64_t begin) {
    std::memcpy(static_cast<char*>(out.raw()) + piece.to * width,
                static_cast<const char*>(from.raw()) + (piece.from - begin) * width,
                static_cast<std::size_t>(piece.count * width));
  };
  if (is_rearranged(s)) {
    const Tensor all = tensor(s);
    for (const Piece& piece : pieces) copy(piece, all, 0);
    out.bump_version();
    return rest;
  }
  const io::SafetensorsFile& file = opened(s.file);
  const std::string name(this->stored(s));
  for (std::size_t i = 0; i < pieces.size();) {
    std::size_t last = i;
    std::int64_t end = pieces[i].from + pieces[i].count;
    while (last + 1 < pieces.size() && (pieces[last + 1].from - end) * width < kPage &&
           (end - pieces[i].from) * width < kMostAtOnce) {
      ++last;
      end = pieces[last].from + pieces[last].count;
    }
    if (last == i) {
      file.read_elements(name, pieces[i].from, out.narrow(0, pieces[i].to, pieces[i].count));
    } else {
      const Tensor read = Tensor::empty({end - pieces[i].from}, out.dtype());
      file.read_elements(name, pieces[i].from, read);
      for (std::size_t j = i; j <= last; ++j) copy(pieces[j], read, pieces[i].from);
      out.bump_version();
    }
    i = last + 1;
  }
  return rest;
}

void ShardFiles::check_complete(const std::string& name, std::span<const Source> sources) const {
  const Shape shape = whole_shape(sources[0]);
  const std::int64_t elements = shape.numel();
  std::int64_t there = 0;
  for (const Source& s : sources)
    if (__builtin_add_overflow(there, slice(s).end - slice(s).begin, &there)) there = elements;
  // Among any `there` + 1 elements at least one is missing, so checking that many finds it.
  const std::int64_t places = std::min(elements, there + (there < elements));
  std::vector<bool> written(static_cast<std::size_t>(places));
  for (const Source& s : sources)
    each_run(slice(s), [&](std::int64_t to, std::int64_t, std::int64_t count) {
      if (to < places) std::fill_n(written.begin() + to, std::min(count, places - to), true);
    });
  const auto missing = std::find(written.begin(), written.end(), false) - written.begin();
  check_system(missing == elements, "checkpoint: element {} of {} {} is in none of the files",
               missing, name, shape);
}

Tensor ShardFiles::whole(const std::string& name) const {
  const std::span<const Source> found = sources(name);
  if (found.size() == 1 && slice(found[0]).is_whole())
    return tensor(found[0]).view(whole_shape(found[0]));
  check_complete(name, found);  // before allocating
  const Tensor out = Tensor::empty(whole_shape(found[0]), dtype(name));
  read_into(name, ShardSlice::of(out.shape()), out);
  return out;
}

StateDict ShardFiles::like(const StateDict& like, const Place& place) const {
  StateDict out;
  const Tensor unread = Tensor::empty({}, DType::f32, kMeta);
  for (const std::string& name : names()) {
    const auto own = like.find(name);
    if (own == like.end()) {
      out[name] = unread;
      continue;
    }
    const Shape shape = own->second.shape();
    const Tensor values = Tensor::empty(shape, dtype(name));
    read_into(name, place ? place(name, shape) : ShardSlice::of(shape), values);
    out[name] = values;
  }
  // Ranks write their parts of a tensor, of which an empty one has none.
  for (const auto& [name, own] : like)
    if (own.numel() == 0 && !out.contains(name)) out[name] = own;
  return out;
}

}  // namespace weft::distributed
