#include "engine/runtime/kv_layout.h"

#include <algorithm>

namespace lockstep::engine {
namespace {

/// Every sequence has so many tables at most: they are part of each step.
constexpr std::size_t kMostTables = 8;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// Layers of a block: those that leave the fewest places empty, and of these the most.
std::size_t layers_of_block(std::size_t whole, std::size_t sliding) {
  std::size_t best = 0, fewest_places = 0;
  for (std::size_t layers = std::max(whole, sliding); layers > 0; --layers) {
    const std::size_t tables = divide_up(whole, layers) + divide_up(sliding, layers);
    if (tables > kMostTables) break;
    if (best == 0 || tables * layers < fewest_places) {
      best = layers;
      fewest_places = tables * layers;
    }
  }
  return best;
}

}  // namespace

KvLayout kv_layout(std::span<const std::uint32_t> windows) {
  KvLayout layout;
  if (windows.empty()) return layout;
  layout.window = *std::max_element(windows.begin(), windows.end());
  const auto whole = static_cast<std::size_t>(std::count(windows.begin(), windows.end(), 0u));
  if (whole == windows.size()) return layout;
  if (whole == 0) {
    layout.tables = {.whole = 0, .sliding = 1};
    return layout;
  }
  const std::size_t layers = layers_of_block(whole, windows.size() - whole);
  layout.tables = {.whole = divide_up(whole, layers), .sliding = divide_up(windows.size() - whole, layers)};
  std::size_t next_whole = 0, next_sliding = layout.tables.whole * layers;
  for (const std::uint32_t window : windows) {
    std::size_t& next = window == 0 ? next_whole : next_sliding;
    layout.places.push_back({static_cast<std::uint32_t>(next / layers), static_cast<std::uint32_t>(next % layers)});
    ++next;
  }
  return layout;
}

}  // namespace lockstep::engine
