#include "engine/sampling/logit_changes.h"

#include <algorithm>
#include <bit>

namespace lockstep::engine {

using device::LogitChange;

bool changes_logits(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f ||
         params.no_repeat_ngram_size > 0 || !params.logit_bias.empty() || params.min_tokens > 0;
}

/// The change of this id, made at first sight. Null outside the vocabulary. Valid until the next call.
LogitChange* LogitChanges::find(std::int32_t id) {
  if (id < 0 || static_cast<std::size_t>(id) >= vocab_size_) return nullptr;
  const auto index = static_cast<std::size_t>(id);
  if (places_[index] == 0) {
    found_.push_back({.id = static_cast<std::uint32_t>(id)});
    occurrences_.push_back(0);
    places_[index] = static_cast<std::uint32_t>(found_.size());
    marks_[index / 64] |= std::uint64_t{1} << index % 64;
  }
  return &found_[places_[index] - 1];
}

void LogitChanges::penalise(const SamplingParams& params, const SamplingContext& context) {
  if (params.repetition_penalty != 1.0f) {
    for (const auto history : {context.prompt, context.generated}) {
      for (const std::int32_t id : history) {
        if (LogitChange* change = find(id)) change->repetition = params.repetition_penalty;
      }
    }
  }
  if (params.presence_penalty == 0.0f && params.frequency_penalty == 0.0f) return;
  for (const std::int32_t id : context.generated) {
    if (LogitChange* change = find(id)) {
      const std::uint32_t occurrences = ++occurrences_[static_cast<std::size_t>(change - found_.data())];
      change->subtracted = params.presence_penalty + params.frequency_penalty * static_cast<float>(occurrences);
    }
  }
}

/// Masks every token that, behind the last size - 1 ones, would make up `size` tokens that stand in the sequence already.
void LogitChanges::mask_repeated_ngrams(std::size_t size, const SamplingContext& context) {
  const std::size_t num_prompt = context.prompt.size();
  const std::size_t length = num_prompt + context.generated.size();
  if (length < size) return;
  const auto token = [&](std::size_t place) { return place < num_prompt ? context.prompt[place] : context.generated[place - num_prompt]; };
  for (std::size_t first = 0; first + size <= length; ++first) {
    std::size_t equal = 0;
    while (equal + 1 < size && token(first + equal) == token(length - size + 1 + equal)) ++equal;
    if (equal + 1 < size) continue;
    if (LogitChange* change = find(token(first + size - 1))) change->bias = LogitChange::kMask;
  }
}

void LogitChanges::collect(const SamplingParams& params, const SamplingContext& context, std::size_t vocab_size,
                           std::vector<LogitChange>& changes) {
  if (!changes_logits(params)) return;
  vocab_size_ = vocab_size;
  places_.resize(std::max(places_.size(), vocab_size), 0);
  marks_.resize(std::max(marks_.size(), (vocab_size + 63) / 64), 0);
  found_.clear();
  occurrences_.clear();
  for (const auto& [id, bias] : params.logit_bias) {
    if (LogitChange* change = find(id)) change->bias = bias;
  }
  penalise(params, context);
  if (params.no_repeat_ngram_size > 0) mask_repeated_ngrams(params.no_repeat_ngram_size, context);
  if (context.generated.size() < params.min_tokens) {
    for (const std::int32_t id : context.end_ids) {
      if (LogitChange* change = find(id)) change->bias = LogitChange::kMask;
    }
  }
  for (std::size_t word = 0; word < (vocab_size + 63) / 64; ++word) {
    for (std::uint64_t marks = marks_[word]; marks != 0; marks &= marks - 1) {
      const std::size_t id = word * 64 + static_cast<std::size_t>(std::countr_zero(marks));
      changes.push_back(found_[places_[id] - 1]);
      places_[id] = 0;
    }
    marks_[word] = 0;
  }
}

}  // namespace lockstep::engine
