#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"

namespace lockstep::engine {

/// Block tables of a sequence: first those of layers that see all positions, then those of layers that see a window only, whose blocks are
/// given back one after the other.
struct BlockTables {
  std::size_t whole = 1;
  std::size_t sliding = 0;
  std::size_t all() const { return whole + sliding; }
};

/// How the layers of a model are put into the blocks of the KV cache. Where all see equally far, a block has all layers. Else it has a few
/// layers of one kind, as many for both kinds, so that one pool of blocks serves both.
struct KvLayout {
  BlockTables tables;
  std::vector<device::KvPlace> places;  // see device::KvCacheSpec
  std::size_t window = 0;               // how far back the sliding layers see at most
};

/// @param windows  of each layer, in positions; 0: it sees all
KvLayout kv_layout(std::span<const std::uint32_t> windows);

}  // namespace lockstep::engine
