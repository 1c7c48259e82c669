#include "engine/runtime/step_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace lockstep::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "step plans are written as they lie in memory");
static_assert(sizeof(device::StepBatch::Sequence) == 20 && std::is_trivially_copyable_v<device::StepBatch::Sequence>);
static_assert(sizeof(RowWants) == 1);
static_assert(sizeof(device::SelectionRow) == 40);
static_assert(sizeof(device::LogitChange) == 16 && std::is_trivially_copyable_v<device::LogitChange>);
static_assert(std::is_trivially_copyable_v<device::SelectionRow>);

constexpr std::uint32_t kMagic = 0x4e4c5053;  // "SPLN"
constexpr std::uint32_t kVersion = 6;

struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t kind = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_sequences = 0;
  std::uint32_t num_block_table_entries = 0;
  std::uint32_t num_logit_rows = 0;
  std::uint32_t num_selections = 0;
  std::uint32_t num_changes = 0;
  std::uint32_t num_fetched = 0;
  std::uint32_t reason_bytes = 0;
  std::uint32_t num_block_tables = 0;
  std::uint64_t sequence = 0;
  std::uint64_t total_bytes = 0;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

std::uint64_t total_bytes(const Header& header) {
  return sizeof(Header) + std::uint64_t{header.num_tokens} * 8 + std::uint64_t{header.num_sequences} * sizeof(device::StepBatch::Sequence) +
         std::uint64_t{header.num_block_table_entries} * 4 + std::uint64_t{header.num_logit_rows} * 5 +
         std::uint64_t{header.num_selections} * sizeof(device::SelectionRow) +
         std::uint64_t{header.num_changes} * sizeof(device::LogitChange) + std::uint64_t{header.num_fetched} * 4 + header.reason_bytes;
}

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error("step plan: " + what); }

std::uint32_t count(std::size_t size, const char* field) {
  if (size > std::numeric_limits<std::uint32_t>::max()) refuse(std::string(field) + ": too many (" + std::to_string(size) + ")");
  return static_cast<std::uint32_t>(size);
}

template <class Container>
void put(std::span<std::byte>& bytes, const Container& values) {
  const std::size_t num_bytes = values.size() * sizeof(typename Container::value_type);
  if (num_bytes > 0) std::memcpy(bytes.data(), values.data(), num_bytes);
  bytes = bytes.subspan(num_bytes);
}

template <class Container>
void take(std::span<const std::byte>& bytes, Container& values, std::size_t size) {
  values.resize(size);
  const std::size_t num_bytes = size * sizeof(typename Container::value_type);
  if (num_bytes > 0) std::memcpy(values.data(), bytes.data(), num_bytes);
  bytes = bytes.subspan(num_bytes);
}

Header read_header(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof(header))
    refuse("only " + std::to_string(bytes.size()) + " bytes, a header has " + std::to_string(sizeof(header)));
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) refuse("these are not the bytes of a plan (magic " + std::to_string(header.magic) + ")");
  if (header.version != kVersion) {
    refuse("version " + std::to_string(header.version) + ", this program speaks version " + std::to_string(kVersion));
  }
  if (header.kind > static_cast<std::uint32_t>(StepKind::kFetch)) refuse("unknown kind " + std::to_string(header.kind));
  if (header.num_block_tables == 0) refuse("sequences without block tables");
  if (header.total_bytes != bytes.size() || total_bytes(header) != bytes.size()) {
    refuse("it says " + std::to_string(header.total_bytes) + " bytes, its counts " + std::to_string(total_bytes(header)) +
           ", but there are " + std::to_string(bytes.size()));
  }
  return header;
}

void check_sequence(const device::StepBatch& batch, std::size_t index) {
  const auto& sequence = batch.sequences[index];
  const std::string name = "sequence " + std::to_string(index) + ": ";
  const std::uint64_t expected =
      index == 0 ? 0 : std::uint64_t{batch.sequences[index - 1].first_token} + batch.sequences[index - 1].num_tokens;
  if (sequence.first_token != expected) {
    refuse(name + "begins at row " + std::to_string(sequence.first_token) + " instead of " + std::to_string(expected));
  }
  if (sequence.num_tokens == 0 || sequence.num_tokens > batch.num_tokens() - sequence.first_token) {
    refuse(name + std::to_string(sequence.num_tokens) + " tokens from row " + std::to_string(sequence.first_token) + " of " +
           std::to_string(batch.num_tokens()));
  }
  if (sequence.block_table >= batch.block_tables.size()) {
    refuse(name + "block table at entry " + std::to_string(sequence.block_table) + " of " + std::to_string(batch.block_tables.size()));
  }
  for (std::uint32_t i = 0; i < sequence.num_tokens; ++i) {
    const std::int32_t position = batch.positions[sequence.first_token + i];
    if (position != static_cast<std::int64_t>(sequence.first_position) + i) {
      refuse(name + "position " + std::to_string(position) + " in row " + std::to_string(sequence.first_token + i) + ", not " +
             std::to_string(std::uint64_t{sequence.first_position} + i));
    }
  }
}

void check_changes(std::span<const device::LogitChange> changes, const std::string& name) {
  for (std::size_t i = 1; i < changes.size(); ++i) {
    if (changes[i].id <= changes[i - 1].id) refuse(name + "the change of id " + std::to_string(changes[i].id) + " is out of order");
  }
}

void check_selections(const StepPlan& plan) {
  std::uint64_t first_change = 0;
  std::size_t row = 0;
  for (std::size_t i = 0; i < plan.selections.size(); ++i) {
    const device::SelectionRow& selection = plan.selections[i];
    const std::string name = "selection " + std::to_string(i) + ": ";
    while (row < plan.wanted.size() && plan.wanted[row] != RowWants::kSelection) ++row;
    if (row == plan.wanted.size() || selection.row != row++) refuse(name + "row " + std::to_string(selection.row) + " does not want it");
    if (!(selection.scale >= 0.0) || std::isinf(selection.scale)) refuse(name + "scale " + std::to_string(selection.scale));
    if (!(selection.covered >= 0.0 && selection.covered <= 1.0)) refuse(name + "covered part " + std::to_string(selection.covered));
    if (selection.num_candidates == 0 || selection.num_candidates > device::kMaxCandidates || selection.num_best > device::kMaxCandidates) {
      refuse(name + std::to_string(selection.num_candidates) + " candidates and " + std::to_string(selection.num_best) + " best");
    }
    const bool is_mass = selection.log_sum == device::LogSum::kIsMass;
    if (selection.log_sum > device::LogSum::kIsMass || (is_mass && (selection.scale != 1.0 || selection.num_changes != 0)))
      refuse(name + "kind of log-sum " + std::to_string(static_cast<std::uint32_t>(selection.log_sum)));
    if (selection.num_changes > plan.changes.size() - first_change)
      refuse(name + "there are no " + std::to_string(selection.num_changes) + " changes left");
    const auto changes = std::span(plan.changes).subspan(first_change, selection.num_changes);
    check_changes(changes, name);
    const auto masked = std::count_if(changes.begin(), changes.end(), [](const auto& change) { return change.masks(); });
    if (selection.num_masked != static_cast<std::uint64_t>(masked)) refuse(name + std::to_string(selection.num_masked) + " masked ids");
    first_change += selection.num_changes;
  }
  if (std::find(plan.wanted.begin() + static_cast<std::ptrdiff_t>(row), plan.wanted.end(), RowWants::kSelection) != plan.wanted.end())
    refuse("a row that wants a selection has none");
  if (first_change != plan.changes.size()) refuse(std::to_string(plan.changes.size() - first_change) + " changes belong to no selection");
}

void check_fetched(const StepPlan& plan) {
  if ((plan.kind == StepKind::kFetch) == plan.fetched.empty()) refuse("rows to fetch belong to a plan to fetch them, and only there");
  for (std::size_t i = 1; i < plan.fetched.size(); ++i) {
    if (plan.fetched[i] <= plan.fetched[i - 1]) refuse("the row " + std::to_string(plan.fetched[i]) + " to fetch is out of order");
  }
}

void check_contents(const StepPlan& plan) {
  const device::StepBatch& batch = plan.batch;
  if (plan.kind == StepKind::kRun && batch.token_ids.empty()) refuse("there is no token to compute");
  for (const std::int32_t id : batch.token_ids) {
    if (id < 0) refuse("token id " + std::to_string(id));
  }
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) check_sequence(batch, i);
  const std::uint64_t covered =
      batch.sequences.empty() ? 0 : std::uint64_t{batch.sequences.back().first_token} + batch.sequences.back().num_tokens;
  if (covered != batch.num_tokens()) {
    refuse("its sequences have " + std::to_string(covered) + " of " + std::to_string(batch.num_tokens()) + " tokens");
  }
  for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
    if (batch.logit_rows[i] >= batch.num_tokens() || (i > 0 && batch.logit_rows[i] <= batch.logit_rows[i - 1])) {
      refuse("logit row " + std::to_string(batch.logit_rows[i]) + " is out of range or out of order");
    }
    if (plan.wanted[i] > RowWants::kSelection)
      refuse("unknown wish " + std::to_string(static_cast<int>(plan.wanted[i])) + " for a logit row");
  }
  check_selections(plan);
  check_fetched(plan);
}

}  // namespace

void StepPlan::reserve(std::size_t tokens, std::size_t num_sequences) {
  constexpr std::size_t kBlocks = 8192;
  batch.token_ids.reserve(tokens);
  batch.positions.reserve(tokens);
  batch.sequences.reserve(num_sequences);
  batch.block_tables.reserve(kBlocks);
  batch.logit_rows.reserve(num_sequences);
  wanted.reserve(num_sequences);
}

void StepPlan::clear() {
  kind = StepKind::kRun;
  batch.token_ids.clear();
  batch.positions.clear();
  batch.sequences.clear();
  batch.block_tables.clear();
  batch.num_tables = 1;
  batch.logit_rows.clear();
  wanted.clear();
  selections.clear();
  changes.clear();
  fetched.clear();
  reason.clear();
}

void serialize(const StepPlan& plan, std::vector<std::byte>& bytes) {
  const device::StepBatch& batch = plan.batch;
  if (batch.positions.size() != batch.token_ids.size()) refuse("as many positions as tokens are needed");
  if (plan.wanted.size() != batch.logit_rows.size()) refuse("as many wishes as logit rows are needed");
  Header header;
  header.kind = static_cast<std::uint32_t>(plan.kind);
  header.num_tokens = count(batch.token_ids.size(), "tokens");
  header.num_sequences = count(batch.sequences.size(), "sequences");
  header.num_block_table_entries = count(batch.block_tables.size(), "block table entries");
  header.num_logit_rows = count(batch.logit_rows.size(), "logit rows");
  header.num_selections = count(plan.selections.size(), "selections");
  header.num_changes = count(plan.changes.size(), "changes of logits");
  header.num_fetched = count(plan.fetched.size(), "rows to fetch");
  header.reason_bytes = count(plan.reason.size(), "bytes of the reason");
  header.num_block_tables = batch.num_tables;
  header.sequence = plan.sequence;
  header.total_bytes = total_bytes(header);

  bytes.resize(header.total_bytes);
  std::span<std::byte> rest(bytes);
  put(rest, std::span(&header, 1));
  put(rest, batch.token_ids);
  put(rest, batch.positions);
  put(rest, batch.sequences);
  put(rest, batch.block_tables);
  put(rest, batch.logit_rows);
  put(rest, plan.selections);
  put(rest, plan.changes);
  put(rest, plan.fetched);
  put(rest, plan.wanted);
  put(rest, plan.reason);
}

void deserialize(std::span<const std::byte> bytes, StepPlan& plan) {
  const Header header = read_header(bytes);
  bytes = bytes.subspan(sizeof(header));
  plan.kind = static_cast<StepKind>(header.kind);
  plan.sequence = header.sequence;
  plan.batch.num_tables = header.num_block_tables;
  take(bytes, plan.batch.token_ids, header.num_tokens);
  take(bytes, plan.batch.positions, header.num_tokens);
  take(bytes, plan.batch.sequences, header.num_sequences);
  take(bytes, plan.batch.block_tables, header.num_block_table_entries);
  take(bytes, plan.batch.logit_rows, header.num_logit_rows);
  take(bytes, plan.selections, header.num_selections);
  take(bytes, plan.changes, header.num_changes);
  take(bytes, plan.fetched, header.num_fetched);
  take(bytes, plan.wanted, header.num_logit_rows);
  take(bytes, plan.reason, header.reason_bytes);
  check_contents(plan);
}

void check_blocks(const device::StepBatch& batch, std::size_t block_size, std::size_t num_blocks, std::size_t num_tables) {
  if (batch.num_tables != num_tables) {
    refuse(std::to_string(batch.num_tables) + " block tables of a sequence, the cache has " + std::to_string(num_tables));
  }
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto& sequence = batch.sequences[i];
    const std::uint64_t end = std::uint64_t{sequence.first_position} + sequence.num_tokens;
    const std::uint64_t needed = (end + block_size - 1) / block_size * num_tables;
    if (sequence.block_table + needed > batch.block_tables.size()) {
      refuse("sequence " + std::to_string(i) + ": " + std::to_string(end) + " positions need " + std::to_string(needed) + " blocks of " +
             std::to_string(block_size) + ", its table is too short");
    }
    for (std::uint64_t entry = 0; entry < needed; ++entry) {
      const std::uint32_t block = batch.block_tables[sequence.block_table + entry];
      if (block >= num_blocks)
        refuse("sequence " + std::to_string(i) + ": block " + std::to_string(block) + " of " + std::to_string(num_blocks));
    }
  }
}

}  // namespace lockstep::engine
