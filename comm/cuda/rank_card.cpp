#include "comm/cuda/rank_card.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <cuda_runtime.h>
#include <unistd.h>

#include "device/cuda/error.h"

namespace lockstep::comm::cuda {
namespace {

std::string describe(const RankCard& card) {
  char place[64];
  std::snprintf(place, sizeof place, "%04x:%02x:%02x", static_cast<unsigned>(card.pci[0]), static_cast<unsigned>(card.pci[1]),
                static_cast<unsigned>(card.pci[2]));
  return std::string(card.gpu_name.data(), strnlen(card.gpu_name.data(), card.gpu_name.size())) + " (PCI " + place +
         ", compute capability " + std::to_string(card.capability / 10) + "." + std::to_string(card.capability % 10) + ")";
}

std::string name_pair(const std::vector<RankCard>& cards, std::size_t a, std::size_t b) {
  return "rank " + std::to_string(a) + " has " + describe(cards[a]) + ", rank " + std::to_string(b) + " has " + describe(cards[b]);
}

}  // namespace

RankCard make_card(std::uint64_t settings) {
  RankCard card;
  int device = 0;
  device::cuda::check(cudaGetDevice(&device), "asking for the current GPU");
  cudaDeviceProp properties{};
  device::cuda::check(cudaGetDeviceProperties(&properties, device), "asking for the properties of the GPU");
  std::memcpy(card.gpu_uuid.data(), properties.uuid.bytes, card.gpu_uuid.size());
  card.pci[0] = properties.pciDomainID;
  card.pci[1] = properties.pciBusID;
  card.pci[2] = properties.pciDeviceID;
  card.capability = 10 * properties.major + properties.minor;
  std::copy_n(properties.name, card.gpu_name.size() - 1, card.gpu_name.begin());
  card.num_multiprocessors = properties.multiProcessorCount;
  card.ordinal = device;
  card.process = static_cast<std::uint64_t>(getpid());
  card.settings = settings;
  return card;
}

std::vector<RankCard> exchange_cards(Communicator& host, const RankCard& mine) {
  std::vector<RankCard> cards(static_cast<std::size_t>(host.size()));
  const std::vector<std::size_t> sizes(cards.size(), sizeof(RankCard));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(cards)), sizes);
  return cards;
}

bool same_gpu(const RankCard& a, const RankCard& b) {
  return a.gpu_uuid == b.gpu_uuid && std::equal(std::begin(a.pci), std::end(a.pci), std::begin(b.pci));
}

std::string card_error(const std::vector<RankCard>& cards, bool share_gpu) {
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].capability != cards[0].capability)
      return "GPUs of different architectures give different bits: " + name_pair(cards, 0, rank) + ". Use GPUs of one architecture";
    if (cards[rank].settings != cards[0].settings)
      return "ranks 0 and " + std::to_string(rank) +
             " have different settings for communication between GPUs (sizes, --reduction, or the "
             "table of transports)";
  }
  for (std::size_t a = 0; a < cards.size() && !share_gpu; ++a) {
    for (std::size_t b = a + 1; b < cards.size(); ++b) {
      if (same_gpu(cards[a], cards[b]))
        return "two ranks have the same GPU: " + name_pair(cards, a, b) + ". Start as many ranks as there are GPUs";
    }
  }
  return {};
}

}  // namespace lockstep::comm::cuda
