// Products with weights on the CPU device, and the tops of logits: who has which share of them.
#include <algorithm>

#include "device/cpu/cpu_step_device.h"

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kFreeRows = 16;     // as long as reading the weights takes
constexpr std::size_t kPiecesOfPart = 8;  // behind which helpers come and go

/// Panels that the kernel takes together.
std::size_t panels_together(const Matrix& in) { return in.type == Activation::kInt8Blocks ? 1 : kWidePanel; }

}  // namespace

Top higher(const Top& first, const Top& behind) {
  Top top = behind.id >= 0 && (first.id < 0 || behind.logit > first.logit) ? behind : first;
  top.finite = first.finite && behind.finite;
  return top;
}

/// Checks the matrices of a product, and makes room for it. Returns where the product goes.
float* CpuDevice::begin_product(const Matrix& in, std::size_t num_rows, const LinearWeight& w, const float* bias, const Matrix& out,
                                std::size_t out_column) {
  const std::size_t roots = w.num_roots();
  require(in.columns == w.spec().columns && out_column + w.spec().rows <= out.columns, "linear: the matrices do not fit the weight");
  require(bias == nullptr || roots == 1, "linear: a bias needs a product with one root");
  const bool int8 = info(w.spec().dtype).block_quantised() && in.type == Activation::kInt8Blocks;
  if (int8) {
    int8_of(in, num_rows);
  } else {
    floats_of(in, num_rows);
  }
  float* to = floats_of(out, roots * num_rows) + out_column;
  copies_.set_valid(out, false);
  note_product(w, out, out_column, num_rows);
  reserve_scratch(kernels_.linear_scratch_bytes(product_args(in, num_rows, w, 0)));
  return to;
}

void CpuDevice::linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
                       std::size_t out_column) {
  const LinearWeight& w = static_cast<const LinearWeight&>(weight);
  float* to = begin_product(in, num_rows, w, bias, out, out_column);
  if (num_rows == 0 || w.spec().rows == 0) return;
  const Product product{num_rows == 1 ? copies_.find(in) : RowPlace{in}, num_rows, &w, bias, to, out.columns};
  const Access read = read_of(product.in)[0];
  const std::size_t pieces = pieces_of(w, in, num_rows), parts = std::max<std::size_t>(pieces / kPiecesOfPart, 1);
  if (num_rows < kFreeRows || pieces < kPiecesOfPart) {
    submit_parts({{read, {out.data, Use::kWritePart, &w}}}, parts,
                 [=, this](std::size_t thread, PartOf part) { multiply(thread, product, thread, part); });
    return;
  }
  products_ = {};  // who will have written what is open
  if (!recording_) counters_.reset();
  const std::size_t counters = counters_.take(pool_.size());
  submit_parts({{read, {out.data, Use::kWritePart}}}, parts, [=, this](std::size_t thread, PartOf part) {
    multiply_as_free(thread, product, pieces, counters, part.index + 1 == part.count);
  });
}

void CpuDevice::top_of_rows(const Matrix& logits, std::size_t num_rows) {
  const float* rows = floats_of(logits, num_rows);
  const LinearWeight* own = shares_of_product(logits, num_rows, 1);
  selection_.expect({}, num_rows, logits.columns);
  tops_.resize(num_rows * pool_.size());
  submit({{logits.data, Use::kRead, own}}, [=, this, n = logits.columns](std::size_t thread) {
    Share columns = share_of(n, thread, pool_.size());
    if (own != nullptr) columns = {own->share_row(thread), own->share_row(thread + 1)};
    for (std::size_t t = 0; t < num_rows; ++t) {
      tops_[t * pool_.size() + thread] = top_of_columns(rows + t * n, columns.first, columns.end);
    }
  });
}

Top CpuDevice::top_of_columns(const float* row, std::size_t first, std::size_t end) const {
  Top top = kernels_.top(row + first, end - first);
  if (top.id >= 0) top.id += static_cast<std::int32_t>(first);
  return top;
}

/// Sketches these columns of a row of logits. Returns their top. @param to_next  from this row to the one that is looked at next
Top CpuDevice::sketch(std::size_t thread, const float* row, std::size_t t, Share columns, std::size_t to_next) {
  Top top;
  for (std::size_t first = columns.first; first < columns.end; first += kSketchPart) {
    const std::span<const float> part(row + first, std::min(kSketchPart, columns.end - first));
    top = higher(top, selection_.sketch(thread, t, first, part, part.data() + to_next));
  }
  return top;
}

/// A thread's share in steps whose products stay in the core's own cache until their tops are found.
void CpuDevice::linear_top(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& logits,
                           std::span<const SelectionRow> selection) {
  constexpr std::size_t kStepBytes = std::size_t{512} << 10, kTogether = 16;  // panels of floats are packed in fours
  const LinearWeight& w = static_cast<const LinearWeight&>(weight);
  if (w.num_parts() != 1 || w.num_roots() != 1 || w.spec().rows != logits.columns)
    return Device::linear_top(in, num_rows, weight, bias, logits, selection);
  float* to = begin_product(in, num_rows, w, bias, logits, 0);
  tops_.assign(num_rows * pool_.size(), Top{});
  selection_.expect(selection, num_rows, logits.columns);
  if (num_rows == 0) return;
  const std::size_t step = std::max<std::size_t>(kStepBytes / (num_rows * kLanes * sizeof(float)) / kTogether, 1) * kTogether;
  const RowPlace source = num_rows == 1 ? copies_.find(in) : RowPlace{in};
  const RowAccesses accesses{{read_of(source)[0], {logits.data, Use::kWritePart, &w}}};
  const std::size_t parts = std::max<std::size_t>(pieces_of(w, in, num_rows) / kPiecesOfPart, 1);
  submit_parts(accesses, parts, [=, this, &w, stride = logits.columns](std::size_t thread, PartOf part) {
    const PackedShape& shape = w.part(0).shape();
    LinearArgs args = product_args(copies_.at(source, thread), num_rows, w, 0);
    args.bias = bias;
    args.out = to;
    args.out_stride = stride;
    const std::size_t begin = shape.share_begin(thread);
    const Share panels = panels_of(shape, thread, part, panels_together(source.real));
    for (std::size_t panel = panels.first; panel < panels.end; panel += step) {
      const std::size_t next = std::min(panel + step, panels.end);
      kernels_.linear(args, w.part(0).share(thread) + (panel - begin) * shape.panel_bytes(), panel, next, scratch_[thread].data());
      for (std::size_t t = 0; t < num_rows; ++t) {
        Top& top = tops_[t * pool_.size() + thread];
        const Share columns{panel * kLanes, std::min(next * kLanes, shape.rows)};
        top = higher(top, selection_.expects(t) ? sketch(thread, to + t * stride, t, columns, t + 1 < num_rows ? stride : 0)
                                                : top_of_columns(to + t * stride, columns.first, columns.end));
      }
    }
  });
}

LinearArgs CpuDevice::product_args(const Matrix& in, std::size_t num_rows, const LinearWeight& w, std::size_t part) {
  const PackedShape& shape = w.part(part).shape();
  LinearArgs args{};
  args.dtype = shape.dtype;
  args.rows = shape.rows;
  args.columns = shape.columns;
  args.first_block = shape.first_block();
  args.panel_bytes = shape.panel_bytes();
  args.leaves = w.spec().leaves.data();
  args.num_leaves = w.spec().leaves.size();
  args.num_tokens = num_rows;
  if (in.type == Activation::kInt8Blocks) {
    args.int8 = int8_view(in);
  } else {
    args.floats = static_cast<const float*>(in.data);
  }
  return args;
}

/// Into how many pieces a thread's share of a product is cut, each of some 20 microseconds.
std::size_t CpuDevice::pieces_of(const LinearWeight& w, const Matrix& in, std::size_t num_rows) const {
  if (pool_.size() == 1) return 1;
  constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
  std::size_t bytes = 0, panels = 1;
  for (std::size_t part = 0; part < w.num_parts(); ++part) {
    const PackedShape& shape = w.part(part).shape();
    bytes += shape.share_bytes(0);
    panels = std::max(panels, shape.share_begin(1) / panels_together(in));
  }
  return std::clamp<std::size_t>(bytes * (kFreeRows + num_rows) / kFreeRows / kPieceBytes, 1, panels);
}

/// The panels of a share that belong to a piece: a multiple of `together`, but at the end.
Share CpuDevice::panels_of(const PackedShape& shape, std::size_t share, PartOf piece, std::size_t together) {
  const std::size_t begin = shape.share_begin(share), end = shape.share_begin(share + 1);
  if (piece.count == 1) return {begin, end};
  const auto border = [&](std::size_t i) { return i == piece.count ? end : begin + (end - begin) * i / piece.count / together * together; };
  return {border(piece.index), border(piece.index + 1)};
}

/// A piece of a share, done by `thread`.
void CpuDevice::multiply(std::size_t thread, const Product& product, std::size_t share, PartOf piece) {
  const LinearWeight& w = *product.weight;
  const Matrix in = copies_.at(product.in, thread);
  std::size_t begin = 0;
  for (std::size_t part = 0; part < w.num_parts(); ++part) {
    const PackedShape& shape = w.part(part).shape();
    LinearArgs args = product_args(in, product.num_rows, w, part);
    args.bias = product.bias == nullptr ? nullptr : product.bias + begin;
    args.out = product.out + begin;
    args.out_stride = product.out_stride;
    const Share panels = panels_of(shape, share, piece, panels_together(in));
    const std::byte* weights = w.part(part).share(share) + (panels.first - shape.share_begin(share)) * shape.panel_bytes();
    kernels_.linear(args, weights, panels.first, panels.end, scratch_[thread].data());
    begin += shape.rows;
  }
}

/// The next pieces of the thread's own share, and then of those of others: whoever has the slower processor, or lost it for a while, does
/// fewer. (Not for one token, whose weights are to be read in order.) `to_the_end`: of the product, not of this part of it.
void CpuDevice::multiply_as_free(std::size_t thread, const Product& product, std::size_t pieces, std::size_t counters, bool to_the_end) {
  std::size_t left = to_the_end ? SIZE_MAX : kPiecesOfPart;
  for (std::size_t i = 0; i < pool_.size(); ++i) {
    const std::size_t share = (thread + i) % pool_.size();
    for (; left > 0; --left) {
      const std::size_t piece = counters_[counters + share].fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces) break;
      multiply(thread, product, share, {piece, pieces});
    }
  }
}

void CpuDevice::note_product(const LinearWeight& weight, const Matrix& out, std::size_t out_column, std::size_t num_rows) {
  const bool beside = out_column != 0 && products_.out == out.data && products_.columns == out_column && products_.num_rows == num_rows;
  if (!beside || products_.count == products_.weights.size()) {
    products_ = {};
    if (out_column != 0) return;
  }
  products_.weights[products_.count++] = &weight;
  products_.out = out.data;
  products_.columns = out_column + weight.spec().rows;
  products_.num_rows = num_rows;
}

const LinearWeight* CpuDevice::shares_of_product(const Matrix& matrix, std::size_t num_rows, std::size_t parts) const {
  if (products_.count != 1 || products_.out != matrix.data || products_.columns != matrix.columns || products_.num_rows != num_rows)
    return nullptr;
  return products_.weights[0]->num_parts() == parts ? products_.weights[0] : nullptr;
}

bool CpuDevice::shares_are_whole(const LinearWeight& weight, std::size_t unit) const {
  for (std::size_t thread = 1; thread < pool_.size(); ++thread) {
    if (weight.share_row(thread) % unit != 0) return false;
  }
  return true;
}

CpuDevice::PartOfProduct CpuDevice::part_of_product(const Matrix& matrix, std::size_t num_rows, std::size_t first,
                                                    std::size_t count) const {
  if (products_.out != matrix.data || products_.num_rows != num_rows) return {};
  std::size_t begin = 0;
  for (std::size_t i = 0; i < products_.count; ++i) {
    for (std::size_t part = 0; part < products_.weights[i]->num_parts(); ++part) {
      const std::size_t rows = products_.weights[i]->part(part).shape().rows;
      if (begin == first && rows == count) return {products_.weights[i], part};
      begin += rows;
    }
  }
  return {};
}

bool CpuDevice::has_parts_of_heads(const Matrix& qkv, const AttentionSpec& spec) const {
  if (!recording_) return false;
  const std::size_t tokens = step_->num_tokens(), queries = spec.num_heads * spec.head_dim, keys = spec.num_kv_heads * spec.head_dim;
  return part_of_product(qkv, tokens, 0, queries).weight != nullptr && part_of_product(qkv, tokens, queries, keys).weight != nullptr &&
         part_of_product(qkv, tokens, queries + keys, keys).weight != nullptr;
}

}  // namespace lockstep::device::cpu
