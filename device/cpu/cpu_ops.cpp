// The ops of the CPU device: each is checked here, on the thread that calls it, and done by all threads.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "device/cpu/cpu_step_device.h"

namespace lockstep::device::cpu {

void CpuDevice::embed(const Weight* table, std::int32_t first_id, const Matrix& out) {
  const std::size_t tokens = step().num_tokens();
  floats_of(out, tokens);
  const LinearWeight* weight = static_cast<const LinearWeight*>(table);
  if (weight != nullptr) reserve_table_row(*weight, out.columns);
  into_rows({}, out, tokens, [this, weight, first_id, columns = out.columns](std::size_t thread, std::size_t t, float* to) {
    const std::span row(to, columns);
    const std::int64_t index = std::int64_t{step_->token_ids[t]} - first_id;
    if (weight == nullptr || index < 0 || index >= static_cast<std::int64_t>(weight->spec().rows)) {
      std::fill(row.begin(), row.end(), 0.0f);
      return;
    }
    expand_table_row(*weight, static_cast<std::size_t>(index), thread, row);
    for (float& value : row) value += 0.0f;  // -0 becomes +0, as it does where the rows of other ranks are added
  });
}

void CpuDevice::select_logit_rows(const Matrix& from, const Matrix& out) {
  require(from.columns == out.columns, "select_logit_rows: the columns differ");
  const std::size_t rows = step().logit_rows.size();
  if (rows > 0) floats_of(from, std::size_t{step().logit_rows.back()} + 1);
  floats_of(out, rows);
  const RowPlace source = step().num_tokens() == 1 ? copies_.find(from) : RowPlace{from};
  into_rows(read_of(source), out, rows, [this, source](std::size_t thread, std::size_t t, float* to) {
    const Matrix rows_of_thread = copies_.at(source, thread);
    std::memcpy(to, static_cast<const float*>(rows_of_thread.data) + step_->logit_rows[t] * rows_of_thread.columns,
                rows_of_thread.columns * sizeof(float));
  });
}

void CpuDevice::norm(const Matrix& x, std::size_t num_rows, const Norm& norm, const Matrix& out) {
  require(x.columns == out.columns, "norm: the columns differ");
  floats_of(x, num_rows);
  if (for_all(num_rows)) copy_row(x);
  const RowPlace source = copies_.find(x);
  make_rows(read_of(source), out, num_rows, [this, source, norm](std::size_t thread, std::size_t t, const Matrix& to) {
    const Matrix from = copies_.at(source, thread);
    kernels_.norm(static_cast<float*>(from.data) + t * from.columns, nullptr, nullptr, from.columns, norm, row_out(to, t));
  });
}

void CpuDevice::add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) {
  require(x.columns == delta.columns, "add: the columns differ");
  float* to = floats_of(x, num_rows);
  const float* from = floats_of(delta, num_rows);
  copies_.set_valid(x, false);
  submit({{x.data, Use::kWrite}, {delta.data, Use::kRead}}, [=, this, columns = x.columns](std::size_t thread) {
    const Share rows = share_of(num_rows, thread, pool_.size());
    for (std::size_t t = rows.first; t < rows.end; ++t) kernels_.add(to + t * columns, from + t * columns, bias, columns);
  });
}

void CpuDevice::add_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                         const Matrix& out) {
  require(x.columns == delta.columns && x.columns == out.columns, "add_norm: the columns differ");
  const float* from = floats_of(delta, num_rows);
  add_and_norm(x, {delta.data, Use::kRead}, num_rows, bias, norm, out,
               [from, columns = x.columns](std::size_t, std::size_t t) { return from + t * columns; });
}

void CpuDevice::sum_add_norm(const Matrix& x, const SumOfParts& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                             const Matrix& out) {
  require(x.columns == out.columns, "sum_add_norm: the columns differ");
  require(!delta.parts.empty(), "sum_add_norm: there is nothing to add up");
  reserve_scratch(delta.parts.size() * (x.columns * sizeof(float) + sizeof(const float*)));
  add_and_norm(x, {}, num_rows, bias, norm, out,
               [this, delta, columns = x.columns](std::size_t thread, std::size_t t) { return sum_row(delta, columns, thread, t); });
}

const float* CpuDevice::sum_row(const SumOfParts& sum, std::size_t columns, std::size_t thread, std::size_t t) {
  const std::size_t num_parts = sum.parts.size();
  auto* rows = reinterpret_cast<const float**>(scratch_[thread].data());  // [parts]: where each stands now
  float* sums = reinterpret_cast<float*>(rows + num_parts);               // [parts, columns]
  for (std::size_t part = 0; part < num_parts; ++part) rows[part] = sum.parts[part] + t * columns;
  for (const SumOfParts::Merge merge : sum.merges) {
    float* to = sums + merge.into * columns;
    if (rows[merge.into] != to) std::memcpy(to, rows[merge.into], columns * sizeof(float));
    kernels_.add(to, rows[merge.from], nullptr, columns);
    rows[merge.into] = to;
  }
  return rows[0];
}

void CpuDevice::rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                                  std::size_t layer) {
  const StepBatch& batch = step();
  const CacheView view = checked_cache(qkv, spec, cache, layer);
  float* rows = floats_of(qkv, batch.num_tokens());
  if (table) check_table(*table, batch, spec.head_dim);
  attention_.plan(batch, spec, has_parts_of_heads(qkv, spec));
  if (recording_ && attention_.can_append()) {  // attention will do it
    rotation_ = {rows, &cache, layer, table};
    return;
  }
  reserve_scratch(spec.head_dim * sizeof(float));
  copies_.set_valid(qkv, false);
  submit({{qkv.data, Use::kWrite}, {view.cache, Use::kWrite}},
         [=, this, columns = qkv.columns, heads = spec.num_heads, kv_heads = spec.num_kv_heads,
          block_table = table_of(cache, layer)](std::size_t thread) {
           const Share tokens = share_of(step_->num_tokens(), thread, pool_.size());
           for (std::size_t token = tokens.first; token < tokens.end; ++token) {
             append_token(rows + token * columns, token, heads, kv_heads, table, view, block_table,
                          reinterpret_cast<float*>(scratch_[thread].data()));
           }
         });
}

void CpuDevice::attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out,
                          const float* sinks) {
  const StepBatch& batch = step();
  AttentionCall call;
  call.cache = checked_cache(qkv, spec, cache, layer);
  call.block_table = table_of(cache, layer);
  require(out.columns == spec.num_heads * spec.head_dim, "attention: the output must have num_heads * head_dim columns");
  const std::size_t tokens = batch.num_tokens();
  call.qkv = floats_of(qkv, tokens);
  call.qkv_columns = qkv.columns;
  call.scale = spec.scale;
  call.window = spec.window;
  call.soft_cap = spec.soft_cap;
  if (!spec.slopes.empty()) {
    require(spec.slopes.size() == spec.num_heads, "attention: a slope for each head is needed");
    call.slopes = spec.slopes.data();
  }
  call.sinks = sinks;
  const bool by_shares = has_parts_of_heads(qkv, spec);
  attention_.plan(batch, spec, by_shares);
  if (rotation_.rows != nullptr) {
    if (rotation_.rows != call.qkv || rotation_.cache != &cache || rotation_.layer != layer)
      throw std::logic_error("attention: its queries were not the last that were rotated");
    call.appends = true;
    call.awaits = by_shares;
    call.table = rotation_.table;
    rotation_ = {};
  }
  call.counters = attention_.begin_call();
  const bool rounds_later = out.type == Activation::kInt8Blocks && spec.head_dim % kBlock != 0;
  if (out.type == Activation::kFloat32) {
    call.floats = floats_of(out, tokens);
  } else if (!rounds_later) {
    call.int8 = int8_of(out, tokens);
  } else {
    if (attended_.size() < tokens * out.columns) attended_.resize(tokens * out.columns);
    call.floats = attended_.data();
  }
  const void* written = rounds_later ? attended_.data() : out.data;
  copies_.set_valid(out, false);
  submit({{qkv.data, call.awaits ? Use::kReadAwaited : Use::kRead},
          {call.cache.cache, call.appends ? Use::kWrite : Use::kRead},
          {written, Use::kWrite}},
         [this, call](std::size_t thread) { attention_.run(call, thread); });
  if (rounds_later) convert({attended_.data(), out.columns, tokens, Activation::kFloat32}, tokens, out);
}

void CpuDevice::gated(const Gating& gating, const Matrix& gate_up, std::size_t num_rows, const Matrix& out) {
  require(gate_up.columns == 2 * out.columns, "gated: the input must have twice the columns of the output");
  // The thread that has a share of the gate has the same of up: it finds what it wrote itself.
  activate_columns(gating, gate_up, shares_of_product(gate_up, num_rows, 2), floats_of(gate_up, num_rows) + out.columns, num_rows, out);
}

void CpuDevice::activate(Nonlinearity function, const Matrix& x, std::size_t num_rows, const Matrix& out) {
  require(x.columns == out.columns, "activate: the columns differ");
  activate_columns({function}, x, shares_of_product(x, num_rows, 1), nullptr, num_rows, out);
}

/// Every thread does its columns of all rows: those that begin in its share of the product `own`, else an even part. Where a block lies in
/// the shares of two, the first waits for the other one, behind all else.
void CpuDevice::activate_columns(const Gating& gating, const Matrix& x, const LinearWeight* own, const float* up, std::size_t num_rows,
                                 const Matrix& out) {
  const bool blocks = out.type == Activation::kInt8Blocks;
  const float* from = floats_of(x, num_rows);
  if (!blocks) floats_of(out, num_rows);
  if (blocks) int8_of(out, num_rows);
  const std::size_t n = out.columns, unit = blocks ? kBlock : 1;
  if (blocks) reserve_scratch(n * sizeof(float));
  copies_.set_valid(out, false);
  const auto columns_of_all = [=, this, gating = gating, stride = x.columns](std::size_t thread, std::size_t first, std::size_t end) {
    for (std::size_t t = 0; first < end && t < num_rows; ++t) {
      const RowOut row = row_out(out, t);
      float* to = blocks ? reinterpret_cast<float*>(scratch_[thread].data()) : row.floats + first;
      kernels_.activate(gating, from + t * stride + first, up == nullptr ? nullptr : up + t * stride + first, end - first, to);
      if (blocks) kernels_.quantise(to, (end - first) / kBlock, int8_row(int8_view(out), t, first / kBlock));
    }
  };
  const Access written{out.data, Use::kWrite};
  if (own == nullptr) {
    return submit({{x.data, Use::kRead}, written}, [=, this](std::size_t thread) {
      constexpr std::size_t kTogether = kBlock;
      const Share parts = share_of((n + kTogether - 1) / kTogether, thread, pool_.size());
      columns_of_all(thread, parts.first * kTogether, std::min(parts.end * kTogether, n));
    });
  }
  const bool whole = shares_are_whole(*own, unit);
  submit({{x.data, whole ? Use::kRead : Use::kReadAwaited, own}, written}, [=, this](std::size_t thread) {
    const UnitShare units = PartOfProduct{own, 0}.units(thread, unit);
    columns_of_all(thread, units.first * unit, units.whole_end * unit);
    if (units.whole_end == units.end) return;
    pool_.await_others(thread);
    columns_of_all(thread, units.whole_end * unit, units.end * unit);
  });
}

void CpuDevice::convert(const Matrix& x, std::size_t num_rows, const Matrix& out) {
  require(x.columns == out.columns, "convert: the columns differ");
  if (x.type == out.type) throw std::invalid_argument("convert: both matrices have the same type");
  const bool expands = x.type == Activation::kInt8Blocks;
  if (expands) {
    int8_of(x, num_rows);
  } else {
    floats_of(x, num_rows);
  }
  if (for_all(num_rows)) copy_row(x);
  const RowPlace source = copies_.find(x);
  into_rows(read_of(source), out, num_rows, [this, source, expands](std::size_t thread, std::size_t t, float* to) {
    const Matrix from = copies_.at(source, thread);
    if (expands) return expand_quants(int8_view(from), t, from.columns, to);
    std::memcpy(to, static_cast<const float*>(from.data) + t * from.columns, from.columns * sizeof(float));
  });
}

/// Scratch memory for expand_table_row, and `more` bytes behind it; returns where those begin.
std::size_t CpuDevice::reserve_table_row(const LinearWeight& table, std::size_t columns, std::size_t more) {
  require(columns == table.spec().columns && table.spec().first_column == 0, "the columns of a table and of the rows differ");
  require(table.num_parts() == 1, "a table has no parts");
  const std::size_t bytes = info(table.spec().dtype).block_quantised() ? 0 : row_bytes(table.spec().dtype, columns);
  const std::size_t end = (bytes + 63) / 64 * 64;
  reserve_scratch(end + more);
  return end;
}

void CpuDevice::expand_table_row(const LinearWeight& table, std::size_t index, std::size_t thread, std::span<float> row) {
  const PackedShape& shape = table.part(0).shape();
  const std::size_t panel = index / kLanes, owner = shape.share_of(panel);
  const std::byte* share = table.part(0).share(owner);
  if (info(shape.dtype).block_quantised()) {
    const std::byte* packed = share + (panel - shape.share_begin(owner)) * shape.panel_bytes();
    return kernels_.expand_row(shape.dtype, packed, row.size(), index % kLanes, row.data());
  }
  const std::span stored(scratch_[thread].data(), row_bytes(shape.dtype, row.size()));
  unpack_float_row(shape, share, index, stored);
  dequantise(shape.dtype, stored, row);
}

bool CpuDevice::for_all(std::size_t num_rows) const { return recording_ && num_rows == 1; }

CpuDevice::RowAccesses CpuDevice::read_of(const RowPlace& place) {
  return {{{place.real.data, place.offset == RowPlace::kNone ? Use::kRead : Use::kReadCopy}, {}}};
}

void CpuDevice::copy_row(const Matrix& x) {
  if (copies_.find(x).offset != RowPlace::kNone) return;
  const RowPlace place = place_of(x);
  submit({{x.data, Use::kRead}}, [=, this](std::size_t thread) {
    if (thread == 0) return;
    const Matrix to = copies_.at(place, thread);
    if (to.type == Activation::kFloat32) {
      std::memcpy(to.data, place.real.data, to.columns * sizeof(float));
      return;
    }
    const Int8View from_view = int8_view(place.real), to_view = int8_view(to);
    std::memcpy(to_view.quants, from_view.quants, to.columns);
    std::memcpy(to_view.scales, from_view.scales, to_view.blocks * sizeof(float));
    std::memcpy(to_view.scaled_sums, from_view.scaled_sums, to_view.blocks * sizeof(float));
    std::memcpy(to_view.sums, from_view.sums, 2 * to_view.blocks * sizeof(std::int32_t));
  });
  copies_.set_valid(x, true);
}

void CpuDevice::expand_quants(const Int8View& view, std::size_t row, std::size_t columns, float* to) {
  for (std::size_t i = 0; i < columns; ++i) {
    to[i] = view.scales[row * view.blocks + i / kBlock] * static_cast<float>(view.quants[row * view.stride + i]);
  }
}

CacheView CpuDevice::checked_cache(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer) {
  const CpuKvCache& own = static_cast<const CpuKvCache&>(cache);
  require(qkv.columns == (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
          "attention: qkv does not have (heads + 2 * KV heads) * head_dim columns");
  require(own.spec().num_kv_heads == spec.num_kv_heads && own.spec().head_dim == spec.head_dim && layer < own.spec().num_layers,
          "attention: the cache does not fit");
  return own.layer(layer);
}

std::size_t CpuDevice::table_of(const KvCache& cache, std::size_t layer) const {
  const std::size_t table = cache.spec().place_of(layer).table;
  require(table < step().num_tables, "a layer goes by a block table that the step does not have");
  return table;
}

void CpuDevice::check_table(const RotaryTable& table, const StepBatch& batch, std::size_t head_dim) {
  require(table.rotary_dim % 2 == 0 && table.rotary_dim <= head_dim, "rotary_dim must be even and at most head_dim");
  const std::size_t known = table.rotary_dim == 0 ? SIZE_MAX : std::min(table.cosines.size(), table.sines.size()) / (table.rotary_dim / 2);
  if (table.by_token) return require(known >= batch.num_tokens(), "the rotary table has fewer rows than the step has tokens");
  for (const std::int32_t position : batch.positions) {
    if (position < 0 || static_cast<std::size_t>(position) >= known) {
      throw std::out_of_range("position " + std::to_string(position) + " is outside the rotary table, which has " + std::to_string(known));
    }
  }
}

void CpuDevice::append_token(float* row, std::size_t token, std::size_t heads, std::size_t kv_heads, const RotaryTable* table,
                             const CacheView& cache, std::size_t block_table, float* scratch) const {
  const StepBatch& batch = *step_;
  const auto behind = std::upper_bound(batch.sequences.begin(), batch.sequences.end(), token,
                                       [](std::size_t t, const StepBatch::Sequence& sequence) { return t < sequence.first_token; });
  const StepBatch::Sequence& sequence = *(behind - 1);
  const std::size_t position = sequence.first_position + (token - sequence.first_token);
  const std::size_t angles = table != nullptr && table->by_token ? token : static_cast<std::size_t>(batch.positions[token]);
  const std::size_t first_entry = StepBatch::first_entry(sequence, block_table, cache.block_size);
  attention_.append_token(row, angles, heads, kv_heads, table, cache, batch.block_tables[first_entry + position / cache.block_size],
                          position % cache.block_size, scratch);
}

}  // namespace lockstep::device::cpu
