#pragma once

#include <cstdint>
#include <vector>

#include "device/selection.h"
#include "engine/sampling/context.h"
#include "engine/sampling/params.h"

namespace lockstep::engine {

/// True if the parameters can change a logit.
bool changes_logits(const SamplingParams& params);

/// What logit_bias, penalties and masks do to a row, as a list of changes of single logits. An object only holds working memory.
class LogitChanges {
 public:
  /// Appends the changes to `changes`, ids ascending, each once. Ids outside the vocabulary are passed over.
  void collect(const SamplingParams& params, const SamplingContext& context, std::size_t vocab_size,
               std::vector<device::LogitChange>& changes);

 private:
  device::LogitChange* find(std::int32_t id);
  void penalise(const SamplingParams& params, const SamplingContext& context);
  void mask_repeated_ngrams(std::size_t size, const SamplingContext& context);

  std::size_t vocab_size_ = 0;
  std::vector<std::uint32_t> places_;  // [vocab_size] 1 + index in found_, 0: not yet there; all zero between calls
  std::vector<std::uint64_t> marks_;   // a bit an id, of those that are there; all zero between calls
  std::vector<device::LogitChange> found_;
  std::vector<std::uint32_t> occurrences_;  // [found_] in the generated tokens
};

}  // namespace lockstep::engine
