#include "weft/distributed/gguf_file.h"

#include <algorithm>
#include <set>

#include "weft/distributed/placed.h"
#include "weft/nn/gguf.h"

namespace weft::distributed {
namespace {

using io::GgufType;

// llama.cpp's numbers for the type of most matrices.
std::uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::f16:
      return 1;
    case GgufType::q8_0:
      return 7;
    case GgufType::bf16:
      return 32;
    default:
      return 0;
  }
}

// Row i of a head for llama.cpp: the rows of the two halves in turn.
std::vector<std::int64_t> interleaved(std::int64_t rows, std::int64_t head) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i)
    order[static_cast<std::size_t>(i)] = i / head * head + i % head / 2 + i % 2 * (head / 2);
  return order;
}

// Rows [begin, begin + rows) of a part.
Tensor read_rows(const ShardFiles& files, const nn::GgufPlace& place,
                 const nn::GgufPlace::Part& part, std::int64_t begin, std::int64_t rows) {
  const std::int64_t columns = place.shape.back(), first = part.first + begin * columns;
  const Shape stored = place.transposed ? Shape{columns, rows} : Shape{rows, columns};
  const Tensor out = Tensor::empty(stored, files.dtype(part.parameter));
  files.read_into(part.parameter, {{part.whole, {}}, first, first + rows * columns},
                  out.view({rows * columns}));
  if (place.transposed) return out.transpose(0, 1).contiguous();
  if (!place.rows.empty()) return move_rows(out, place.rows, true);
  return place.head > 0 ? move_rows(out, interleaved(rows, place.head), true) : out;
}

GgufType type_of(const nn::GgufPlace& place, GgufType wanted) {
  if (!place.narrow) return GgufType::f32;
  const bool fits = place.shape.back() % io::kGgufBlock == 0;
  return wanted == GgufType::q8_0 && !fits ? GgufType::f16 : wanted;
}

io::GgufTensor tensor_of(const ShardFiles& files, const nn::GgufPlace& place,
                         const GgufSaveOptions& options) {
  io::GgufTensor t{place.name, place.shape, type_of(place, options.type), {}};
  // A vector is one row, but the biases of heads move like rows of one value.
  nn::GgufPlace rows_of = place;
  if (place.head > 0 && place.shape.size() == 1) rows_of.shape = {place.shape[0], 1};
  const std::int64_t columns = rows_of.shape.back();
  const std::int64_t rows =
      place.shape.numel() / columns / static_cast<std::int64_t>(place.parts.size());
  const std::int64_t unit = std::max<std::int64_t>(place.head, 1);
  const bool whole = columns == 1 || place.transposed || !place.rows.empty();
  const std::int64_t step =
      whole ? rows : std::max(options.piece / columns / unit, std::int64_t{1}) * unit;
  for (const nn::GgufPlace::Part& part : place.parts)
    for (std::int64_t begin = 0; begin < rows; begin += step)
      t.pieces.emplace_back([&files, rows_of, part, begin, n = std::min(step, rows - begin)] {
        return read_rows(files, rows_of, part, begin, n);
      });
  return t;
}

}  // namespace

void save_gguf(const std::string& path, const nn::GptConfig& config, const ShardFiles& files,
               const GgufSaveOptions& options) {
  const nn::GgufModel model = nn::gguf_model(config, options.family);
  std::set<std::string> placed;
  for (const nn::GgufPlace& place : model.tensors)
    for (const nn::GgufPlace::Part& part : place.parts) placed.insert(part.parameter);
  for (const std::string& name : files.names())
    if (name.starts_with("mtp.")) placed.insert(name);
  check_all_placed(files, config, placed, "gguf: " + model.architecture);
  io::GgufMetadata metadata{{"general.architecture", model.architecture},
                            {"general.type", std::string("model")},
                            {"general.file_type", file_type(options.type)},
                            {"general.quantization_version", std::uint32_t{2}}};
  metadata.insert(metadata.end(), model.metadata.begin(), model.metadata.end());
  metadata.insert(metadata.end(), options.tokenizer.begin(), options.tokenizer.end());
  std::vector<io::GgufTensor> tensors;
  for (const nn::GgufPlace& place : model.tensors)
    tensors.push_back(tensor_of(files, place, options));
  if (!model.rope_factors.empty()) {
    const Tensor factors = Tensor::from(std::span<const float>(model.rope_factors),
                                        {static_cast<std::int64_t>(model.rope_factors.size())});
    tensors.push_back(
        {"rope_freqs.weight", factors.shape(), GgufType::f32, {[factors] { return factors; }}});
  }
  io::write_gguf(path, metadata, tensors);
}

}  // namespace weft::distributed
