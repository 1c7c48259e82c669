#include "device/cpu/weight.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "device/cpu/kernels.h"

namespace lockstep::device::cpu {

std::unique_ptr<CpuWeight> load_cpu_weight(WeightSpec spec, bool q8_offset, const ReadRows& read, ThreadPool& pool,
                                           std::span<Arena> arenas) {
  spec.check(kMaxOpenSums);
  const PackedShape shape{spec.dtype, spec.rows, spec.columns, spec.first_column, pool.size(), q8_offset};
  std::vector<Arena::Piece> pieces(pool.size());
  for (std::size_t thread = 0; thread < pool.size(); ++thread) pieces[thread] = arenas[thread].take(shape.share_bytes(thread));
  const std::size_t bytes_of_row = spec.stored_row_bytes();
  pool.run([&](std::size_t thread) {
    const std::size_t begin = shape.share_begin(thread), end = shape.share_begin(thread + 1);
    std::vector<std::byte> stored(std::min(kLanes * kWidePanel, spec.rows) * bytes_of_row);
    for (std::size_t panel = begin; panel < end; panel += kWidePanel) {
      const std::size_t panels = std::min(kWidePanel, end - panel);
      const std::size_t count = std::min(kLanes * panels, spec.rows - kLanes * panel);
      read(kLanes * panel, count, std::span(stored).first(count * bytes_of_row));
      const std::size_t width = shape.group_width(panel, end);
      for (std::size_t at = 0; at < panels; at += width) {
        const std::size_t rows = std::min(kLanes * width, count - kLanes * at);
        pack_group(shape, width, std::span<const std::byte>(stored).subspan(kLanes * at * bytes_of_row), rows,
                   pieces[thread].data + (panel - begin + at) * shape.panel_bytes());
      }
    }
  });
  return std::make_unique<CpuWeight>(std::move(spec), shape, std::move(pieces));
}

}  // namespace lockstep::device::cpu
