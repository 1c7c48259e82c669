#include <algorithm>

#include <fmt/format.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "simt/executor.h"
#include "simt/sanitizers.h"

/// cp.async, ldmatrix and mma.
namespace simt {

namespace {

void check_shared(const void* address, const char* what, Site site) {
  check_alignment(address, 16, site);
  if (!current_grid()->in_shared(address, 16)) fail(site, "%s: %p is outside of the block's shared memory", what, address);
}

struct LoadArgument {
  const void* row;
  unsigned* out;
  bool transposed;
};

void load_rows(Collective& collective) {
  const std::uint16_t* rows[32];
  for (int lane = 0; lane < 32; ++lane) {
    rows[lane] = static_cast<const std::uint16_t*>(static_cast<LoadArgument*>(collective.arguments[lane])->row);
  }
  const bool transposed = static_cast<LoadArgument*>(collective.arguments[0])->transposed;
  Counters& counted = current_grid()->counted;
  ++counted.ldmatrix;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const std::uint16_t* const* row = rows + 8 * matrix;
    unsigned rows_in_bank_group[8] = {};
    unsigned most = 0;
    for (int i = 0; i < 8; ++i) most = std::max(most, ++rows_in_bank_group[reinterpret_cast<std::uintptr_t>(row[i]) / 16 % 8]);
    counted.ldmatrix_conflicts += most - 1;
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4;
      const int j = 2 * (lane % 4);
      const unsigned low = transposed ? row[j][i] : row[i][j];
      const unsigned high = transposed ? row[j + 1][i] : row[i][j + 1];
      static_cast<LoadArgument*>(collective.arguments[lane])->out[matrix] = low | high << 16;
    }
  }
}

struct MultiplyArgument {
  const unsigned* a;
  unsigned b0;
  unsigned b1;
  float* d;
};

template <Half type>
float value_of(unsigned bits) {
  if constexpr (type == Half::kBFloat16) return __builtin_bit_cast(float, bits << 16);
#if defined(__F16C__)
  return _cvtsh_ss(static_cast<unsigned short>(bits));
#else
  return __half2float(__half(__half_raw{static_cast<unsigned short>(bits)}));
#endif
}

/// Products and sums in fp32, k ascending, then added to d: a GPU's order is its own.
template <Half type>
void multiply(Collective& collective) {
  float a[16][16];
  float b[16][8];
  const auto put = [](float* pair, unsigned bits, int stride) {
    pair[0] = value_of<type>(bits & 0xFFFF);
    pair[stride] = value_of<type>(bits >> 16);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const auto& in = *static_cast<MultiplyArgument*>(collective.arguments[lane]);
    const int g = lane / 4;
    const int t = 2 * (lane % 4);
    put(&a[g][t], in.a[0], 1);
    put(&a[g + 8][t], in.a[1], 1);
    put(&a[g][t + 8], in.a[2], 1);
    put(&a[g + 8][t + 8], in.a[3], 1);
    put(&b[t][g], in.b0, 8);
    put(&b[t + 8][g], in.b1, 8);
  }
  float products[16][8];
  for (int i = 0; i < 16; ++i) {
    float sums[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) sums[j] += a[i][k] * b[k][j];
    }
    for (int j = 0; j < 8; ++j) products[i][j] = sums[j];
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* d = static_cast<MultiplyArgument*>(collective.arguments[lane])->d;
    const int g = lane / 4;
    const int t = 2 * (lane % 4);
    d[0] += products[g][t];
    d[1] += products[g][t + 1];
    d[2] += products[g + 8][t];
    d[3] += products[g + 8][t + 1];
  }
}

}  // namespace

/// The destination is poisoned now and written at the wait: as late as the hardware may.
void copy_async(void* shared, const void* global, bool valid, Site site) {
  check_shared(shared, "destination of cp.async", site);
  if (valid) {
    check_alignment(global, 16, site);
    if (is_poisoned(global, 16)) fail(site, "cp.async reads global memory out of bounds, at %p", global);
    note_read_16(global);
  }
  note_write_16(shared);
  fill_bytes(shared, 0xFF, 16);
  const Unseen unseen;
  current_fiber().copies.push_back({shared, valid ? global : nullptr});
}

void commit_copies() {
  const Unseen unseen;
  current_fiber().group_ends.push_back(current_fiber().copies.size());
}

void wait_copies(int groups_left) {
  Fiber& fiber = current_fiber();
  const auto left = static_cast<std::size_t>(groups_left);
  if (fiber.group_ends.size() <= left) return;
  const std::size_t groups = fiber.group_ends.size() - left;
  const std::size_t end = fiber.group_ends[groups - 1];
  for (std::size_t i = 0; i < end; ++i) {
    const PendingCopy& copy = fiber.copies[i];
    note_write_16(copy.to);
    const auto* from = static_cast<const std::uint64_t*>(copy.from);
    auto* to = static_cast<volatile std::uint64_t*>(copy.to);
    to[0] = from != nullptr ? from[0] : 0;
    to[1] = from != nullptr ? from[1] : 0;
  }
  const Unseen unseen;
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<std::ptrdiff_t>(end));
  fiber.group_ends.erase(fiber.group_ends.begin(), fiber.group_ends.begin() + static_cast<std::ptrdiff_t>(groups));
  for (std::size_t& group_end : fiber.group_ends) group_end -= end;
}

void load_matrices(unsigned (&r)[4], const void* row, bool transposed, Site site) {
  check_shared(row, "row of ldmatrix", site);
  note_read_16(row);
  unsigned out[4];
  LoadArgument argument{row, out, transposed};
  warp_collective(0xFFFFFFFFu, &argument, &load_rows, "ldmatrix", site);
  for (int i = 0; i < 4; ++i) r[i] = out[i];
}

void multiply_matrices(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Half type, Site site) {
  MultiplyArgument argument{a, b0, b1, d};
  auto* compute = type == Half::kBFloat16 ? &multiply<Half::kBFloat16> : &multiply<Half::kFloat16>;
  warp_collective(0xFFFFFFFFu, &argument, compute, "mma.sync", site);
}

}  // namespace simt
