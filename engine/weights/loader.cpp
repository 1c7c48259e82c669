#include "engine/weights/loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

namespace lockstep::engine {
namespace {

using parallel::Range;
using parallel::WeightPiece;

/// Floats as `dtype`, rounded to nearest even.
void convert(std::span<const float> values, device::DType dtype, std::span<std::byte> to) {
  if (dtype == device::DType::kF32) {
    std::memcpy(to.data(), values.data(), to.size());
    return;
  }
  if (dtype != device::DType::kF16 && dtype != device::DType::kBF16)
    throw std::logic_error("matrices are not converted to " + std::string(device::info(dtype).name));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t rounded = dtype == device::DType::kF16 ? device::float_to_half(values[i]) : device::float_to_bfloat16(values[i]);
    std::memcpy(&to[i * sizeof rounded], &rounded, sizeof rounded);
  }
}

class ShardLoader {
 public:
  ShardLoader(const parallel::RankGraph& graph, const ModelSpec& spec, const WeightSource& source)
      : graph_(graph), spec_(spec), source_(source) {}

  /// Reads from the files what the rows of these pieces are made of, where they are not there as rows. It is kept until the next call.
  void open_packed(const std::vector<WeightPiece>& pieces) {
    packed_.clear();
    for (const WeightPiece& piece : pieces) {
      const parallel::TensorDecl& decl = graph_.tensors[piece.tensor];
      const StoredTensor& stored = find(decl);
      if (!stored.packed || piece.rows.size() == 0) continue;
      const std::size_t first = decl.stored.row(piece.rows.begin), end = decl.stored.row(piece.rows.end - 1) + 1;
      packed_.emplace(&piece, source_.open_rows(stored, {first, end - first, piece.columns.begin, piece.columns.size()}));
    }
  }

  /// Rows [first, first + count) of the stacked pieces, as `dtype`.
  void read_stacked(const std::vector<WeightPiece>& pieces, device::DType dtype, std::size_t first, std::size_t count,
                    std::span<std::byte> to) const {
    std::size_t piece_begin = 0;
    std::size_t written = 0;
    for (const WeightPiece& piece : pieces) {
      const std::size_t begin = std::max(first, piece_begin);
      const std::size_t end = std::min(first + count, piece_begin + piece.rows.size());
      if (begin < end) {
        const std::size_t bytes = (end - begin) * device::covering_bytes(dtype, piece.columns.begin, piece.columns.size());
        const std::size_t first_row = piece.rows.begin + begin - piece_begin;
        read_piece(piece, dtype, {first_row, first_row + end - begin}, to.subspan(written, bytes));
        written += bytes;
      }
      piece_begin += piece.rows.size();
    }
  }

  /// A vector's piece as floats.
  void read_vector(const WeightPiece& piece, std::span<float> to) const {
    const parallel::TensorDecl& decl = graph_.tensors[piece.tensor];
    const StoredTensor& stored = find(decl);
    if (to.empty()) return;
    std::size_t low = SIZE_MAX, high = 0;
    for (std::size_t i = piece.columns.begin; i < piece.columns.end; ++i) {
      low = std::min(low, stored_row(decl, i));
      high = std::max(high, stored_row(decl, i) + 1);
    }
    const device::DTypeInfo& type = device::info(stored.dtype);
    const std::size_t first_block = low / type.block_size, end_block = (high + type.block_size - 1) / type.block_size;
    std::vector<std::byte> bytes((end_block - first_block) * type.block_bytes);
    source_.read(stored, std::uint64_t{first_block} * type.block_bytes, bytes);
    std::vector<float> values((end_block - first_block) * type.block_size);
    device::dequantise(stored.dtype, bytes, values);
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = values.at(stored_row(decl, piece.columns.begin + i) - first_block * type.block_size) + decl.offset;
  }

 private:
  const StoredTensor& find(const parallel::TensorDecl& decl) const { return *source_.find(decl.file_name()); }

  bool is_permuted(const parallel::TensorDecl& decl) const { return spec_.rotary_pairs_interleaved && decl.rotary_rows; }

  std::size_t stored_row(const parallel::TensorDecl& decl, std::size_t row) const {
    return decl.stored.row(is_permuted(decl) ? stored_row_of(spec_, row) : row);
  }

  void read_piece(const WeightPiece& piece, device::DType dtype, Range rows, std::span<std::byte> to) const {
    const StoredTensor& stored = find(graph_.tensors[piece.tensor]);
    if (stored.dtype == dtype) {
      read_ordered(piece, stored, rows, to);
      return;
    }
    const std::size_t bytes = device::covering_bytes(stored.dtype, piece.columns.begin, piece.columns.size());
    std::vector<std::byte> raw(rows.size() * bytes);
    read_ordered(piece, stored, rows, raw);
    // Whole blocks: a shard that is cut inside of one gets a few columns more, at one side or both.
    const device::DTypeInfo& type = device::info(stored.dtype);
    std::vector<float> whole(bytes / type.block_bytes * type.block_size);
    const std::size_t row_size = to.size() / rows.size();
    for (std::size_t row = 0; row < rows.size(); ++row) {
      device::dequantise(stored.dtype, std::span(raw).subspan(row * bytes, bytes), whole);
      convert(std::span(whole).subspan(piece.columns.begin % type.block_size, piece.columns.size()), dtype,
              to.subspan(row * row_size, row_size));
    }
  }

  void read_stored(const WeightPiece& piece, const StoredTensor& stored, std::size_t first_row, std::size_t num_rows,
                   std::span<std::byte> to) const {
    if (const auto packed = packed_.find(&piece); packed != packed_.end())
      return packed->second->read(first_row - graph_.tensors[piece.tensor].stored.row(piece.rows.begin), num_rows, to);
    source_.read_rows(stored, first_row, num_rows, piece.columns.begin, piece.columns.size(), to);
  }

  /// Rows in this program's order, which in some files differs from the stored one.
  void read_ordered(const WeightPiece& piece, const StoredTensor& stored, Range rows, std::span<std::byte> to) const {
    const parallel::TensorDecl& decl = graph_.tensors[piece.tensor];
    if (decl.stored.transposed) return read_transposed(piece, stored, rows, to);
    if (is_permuted(decl)) return read_by_head(piece, stored, rows, to);
    const std::size_t bytes = device::covering_bytes(stored.dtype, piece.columns.begin, piece.columns.size());
    for (std::size_t row = rows.begin; row < rows.end;) {  // as many at a time as stand together
      std::size_t end = row + 1;
      while (end < rows.end && decl.stored.row(end) == decl.stored.row(row) + end - row) ++end;
      read_stored(piece, stored, decl.stored.row(row), end - row, to.subspan((row - rows.begin) * bytes, (end - row) * bytes));
      row = end;
    }
  }

  /// Rows that stand in another order within each head: a head at a time.
  void read_by_head(const WeightPiece& piece, const StoredTensor& stored, Range rows, std::span<std::byte> to) const {
    const parallel::TensorDecl& decl = graph_.tensors[piece.tensor];
    const std::size_t bytes = device::covering_bytes(stored.dtype, piece.columns.begin, piece.columns.size());
    std::vector<std::byte> head(spec_.head_dim * bytes);
    std::size_t loaded = rows.end;  // no head yet
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      const std::size_t first = row - row % spec_.head_dim;
      if (loaded != first) read_stored(piece, stored, decl.stored.row(first), spec_.head_dim, head);
      loaded = first;
      std::memcpy(&to[(row - rows.begin) * bytes], &head[(stored_row_of(spec_, row) - first) * bytes], bytes);
    }
  }

  /// Rows that are columns of the stored matrix.
  void read_transposed(const WeightPiece& piece, const StoredTensor& stored, Range rows, std::span<std::byte> to) const {
    const parallel::TensorDecl& decl = graph_.tensors[piece.tensor];
    const std::size_t size = device::info(stored.dtype).block_bytes, columns = piece.columns.size();
    std::size_t low = SIZE_MAX, high = 0;
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      low = std::min(low, stored_row(decl, row));
      high = std::max(high, stored_row(decl, row) + 1);
    }
    std::vector<std::byte> line((high - low) * size);
    for (std::size_t column = 0; column < columns; ++column) {
      source_.read_rows(stored, decl.stored.first_column + piece.columns.begin + column, 1, low, high - low, line);
      for (std::size_t row = rows.begin; row < rows.end; ++row)
        std::memcpy(&to[((row - rows.begin) * columns + column) * size], &line[(stored_row(decl, row) - low) * size], size);
    }
  }

  const parallel::RankGraph& graph_;
  const ModelSpec& spec_;
  const WeightSource& source_;
  std::map<const WeightPiece*, std::unique_ptr<RowReader>> packed_;
};

}  // namespace

void bind_tensors(parallel::Graph& graph, const ModelSpec& spec, const WeightSource& source, std::optional<device::DType> dtype) {
  for (parallel::TensorDecl& tensor : graph.tensors) {
    const StoredTensor& stored = source.require(tensor.file_name(), tensor.file_shape());
    const bool in_blocks = device::info(stored.dtype).block_quantised();
    if (stored.packed && tensor.stored.transposed)
      throw std::runtime_error(spec.source + ": tensor " + stored.name + " is quantised, and stored [in, out]; that is not supported");
    if (in_blocks && tensor.stored.transposed) {
      throw std::runtime_error(spec.source + ": tensor " + stored.name + " is stored as " + std::string(device::info(stored.dtype).name) +
                               ", [in, out], which cannot be cut");
    }
    const bool row_parallel =
        tensor.shard == parallel::ShardKind::kAttentionColumns || tensor.shard == parallel::ShardKind::kFeedForwardColumns;
    if (row_parallel && in_blocks) graph.dims.block_quantised = true;
    tensor.dtype = tensor.is_vector() ? device::DType::kF32 : dtype.value_or(stored.load_dtype.value_or(stored.dtype));
  }
}

std::size_t LoadedShard::size_bytes() const {
  std::size_t bytes = 0;
  for (const auto& weight : weights) bytes += weight ? weight->size_bytes() : 0;
  for (const auto& vector : vectors) bytes += vector->size_bytes();
  return bytes;
}

LoadedShard load_shard(const parallel::RankGraph& graph, const ModelSpec& spec, const WeightSource& source, device::Device& device) {
  ShardLoader loader(graph, spec, source);
  LoadedShard shard;
  for (const parallel::RankWeight& weight : graph.weights) {
    if (weight.spec.rows == 0) {
      shard.weights.push_back(nullptr);
      continue;
    }
    loader.open_packed(weight.pieces);
    shard.weights.push_back(device.load_weight(weight.spec, [&](std::size_t first, std::size_t count, std::span<std::byte> to) {
      loader.read_stacked(weight.pieces, weight.spec.dtype, first, count, to);
    }));
  }
  for (const parallel::RankVector& vector : graph.vectors) {
    std::vector<float> values(vector.size);
    std::size_t written = 0;
    for (const WeightPiece& piece : vector.pieces) {
      loader.read_vector(piece, std::span(values).subspan(written, piece.columns.size()));
      written += piece.columns.size();
    }
    shard.vectors.push_back(device.allocate(values.size() * sizeof(float)));
    device.write_floats(values, shard.vectors.back()->data());
  }
  return shard;
}

}  // namespace lockstep::engine
